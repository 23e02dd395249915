"""Episodes on a terminal: one turn by turn, and members of a group beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from gradus.core import Episode, EpisodeView, Message, ToolCall, Turn
from gradus.stats import format_number, format_signed

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text


SPAN_STYLES = ("underline", "underline bold", "underline italic", "underline dim")
MARKS = "▁▂▃▄▅▆▇█"


def show_episode(episode: Episode, view: EpisodeView | None = None) -> RenderableType:
    """The transcript with rewards, terms, spans and errors, as a rich renderable; ``view`` adds its pictures in small."""
    from rich.console import Group
    from rich.rule import Rule

    parts: list[RenderableType] = [_head(episode)]
    if view is not None:
        parts += [_view(view), Rule(style="dim")]
    parts += [_turn(episode, turn) for turn in episode.turns]
    parts += [Rule(style="dim"), _end(episode)]
    return Group(*parts)


def _head(episode: Episode) -> Text:
    from rich.text import Text

    task = episode.task
    head = Text(f"{task.environment} · {task.condition} · seed {task.seed} · {episode.policy}", style="bold")
    if episode.member or episode.group:
        head.append(f" · group {episode.group}, member {episode.member}", style="dim")
    return head


def _turn(episode: Episode, turn: Turn) -> Text:
    from rich.text import Text

    text = Text(f"\n{turn.index + 1:>3} ", style="bold")
    if turn.restart and turn.index:
        text.append("(reads anew) ", style="dim")
    text.append(_seen(turn.messages, turn.observation), style="dim")
    text.append("\n  → ", style="bold")
    text.append_text(_answer(turn))
    for call in turn.calls:
        text.append(f"\n    {_called(call)}", style="red" if call.fault else "cyan")
    if not turn.valid:
        text.append(f"\n    not understood: {turn.error or 'no reason given'}", style="red")
    if turn.cut:
        text.append("\n    cut by the token budget", style="red")
    if facts := _facts(episode, turn):
        text.append(f"\n    {facts}", style="dim")
    return text


def _seen(messages: Sequence[Message], text: str) -> str:
    """Renders an observation; results of tools stand under their names."""
    if not any(each.role == "tool" for each in messages):
        return text
    return "\n    ".join(
        f"{each.name} gave {each.content}" if each.role == "tool" else each.content for each in messages
    )


def _called(call: ToolCall) -> str:
    arguments = ", ".join(f"{key} = {_short(value)}" for key, value in call.arguments.items())
    return f"calls {call.name or '?'}({arguments})" + (f": {call.fault}, {call.error}" if call.fault else "")


def _answer(turn: Turn) -> Text:
    from rich.text import Text

    answer = Text(turn.action or "(nothing)")
    names = list(dict.fromkeys(span.name for span in turn.spans))
    for span in turn.spans:
        answer.stylize(SPAN_STYLES[names.index(span.name) % len(SPAN_STYLES)], span.start, span.end)
    if names and not turn.calls:
        spans = ", ".join(f"{span.name}: {turn.action[span.start : span.end]!r}" for span in turn.spans)
        answer.append(f"   {spans}", style="dim")
    return answer


def _facts(episode: Episode, turn: Turn) -> str:
    """The environment's reward, reward terms by component and span, what was understood, and how sure the policy was."""
    facts: list[str] = []
    if turn.env_reward is not None:
        facts.append(f"reward {format_signed(turn.env_reward, 2)}")
    terms = dict(enumerate(episode.reward.terms)) if episode.reward else {}
    for term in terms.get(turn.index, ()):
        where = f" ({term.span})" if term.span else ""
        facts.append(f"{term.component.replace('_', ' ')}{where} {format_signed(term.value, 4)}")
    understood = {key: value for key, value in turn.action_data.items() if value is not None}
    if understood:
        facts.append("understood " + ", ".join(f"{key} {_short(value)}" for key, value in understood.items()))
    if turn.tokens is not None:
        facts.append(f"log-prob {format_number(sum(turn.tokens.logprobs), 2)} of {len(turn.tokens.action_ids)} tokens")
    return " · ".join(facts)


def _end(episode: Episode) -> Text:
    from rich.text import Text

    text = Text()
    if episode.final is not None and any(each.role == "tool" for each in episode.final.messages):
        text.append(_seen(episode.final.messages, "") + "\n", style="dim")
    if episode.failure is not None:
        failure = episode.failure
        text.append(f"failed in {failure.stage}: {failure.type}: {failure.message}\n", style="red")
    elif episode.stop != "terminated":
        text.append(f"not finished: {episode.stop.value.replace('_', ' ')}\n", style="red")
    if episode.reward is not None:
        reward = episode.reward
        if reward.value is None:
            text.append(f"not graded by {reward.grader}: {reward.error or 'no reason given'}\n", style="red")
        else:
            parts = ", ".join(
                f"{name.replace('_', ' ')} {format_number(value)}" for name, value in reward.components.items()
            )
            text.append(f"reward {reward.grader} {format_number(reward.value)}", style="bold")
            text.append(f" ({parts})\n" if parts else "\n")
        if reward.extras:
            text.append(f"logged: {_pairs(reward.extras)}\n")
    figures = {"return": episode.env_return, **episode.metrics}
    shown = [f"{name.replace('_', ' ')} {format_number(value)}" for name, value in figures.items() if value is not None]
    if shown:
        text.append(" · ".join(shown) + "\n")
    if episode.outcome:
        text.append(
            "what was hidden: " + _pairs({key: each for key, each in episode.outcome.items() if each is not None}),
            style="dim",
        )
    return text


def _view(view: EpisodeView) -> Text:
    """Lines as a row of eight heights, strips as words."""
    from rich.text import Text

    text = Text(view.title)
    for panel in view.panels:
        if panel.kind == "lines":
            text.append(f"\n{panel.title}", style="dim")
            for name, values in panel.series.items():
                aim = f"  truth {format_number(panel.truth[name], 2)}" if name in panel.truth else ""
                text.append(f"\n  {name:<14}{_heights(values, panel.limits)}{aim}")
        elif panel.kind == "strip":
            text.append(f"\n{panel.title}: ", style="dim")
            text.append(" ".join(panel.labels))
    return text


def _heights(values: Any, limits: tuple[float, float] | None) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    low, high = limits or (min(known), max(known))
    step = (high - low) / (len(MARKS) - 1) or 1.0
    top = len(MARKS) - 1
    return "".join("·" if value is None else MARKS[min(top, max(0, round((value - low) / step)))] for value in values)


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {_short(value)}" for key, value in values.items())


def _short(value: Any) -> str:
    if isinstance(value, float):
        return format_number(value)
    if isinstance(value, Mapping):
        return "{" + _pairs(value) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_short(each) for each in value) + "]"
    return str(value)


def members_of(episodes: Sequence[Episode], chosen: Episode) -> list[Episode]:
    """The episodes of ``chosen``'s group: the same policy met the same task with the same noise."""
    key = (chosen.policy, chosen.task, chosen.group)
    return [each for each in episodes if (each.policy, each.task, each.group) == key]


def show_differences(members: Sequence[Episode]) -> RenderableType:
    """A line for each member, best first, then each turn with more than one answer: the words that the best one did not say are bold."""
    from rich.console import Group
    from rich.text import Text

    ranked = sorted(members, key=lambda each: -_reward(each))
    best = ranked[0]
    head = (
        f"{best.task.environment} · {best.task.condition} · seed {best.task.seed} · {best.policy} · group {best.group}"
    )
    parts: list[RenderableType] = [Text(head, style="bold"), *(_line(each) for each in ranked)]
    if len(ranked) < 2:
        return Group(*parts, Text("the file holds no other member of this group"))
    same = True
    for place in range(max(len(each.turns) for each in ranked)):
        answers = _answers(ranked, place)
        if len(answers) < 2:
            continue
        if same:
            parts.append(
                Text("Up to here all did the same; from the next turn on they may read different things.", "dim")
            )
            same = False
        parts += [Text(f"\nturn {place + 1}", style="bold"), *_differing(answers)]
    return Group(*parts, *([Text("all members answered the same at every turn")] if same else []))


def _reward(episode: Episode) -> float:
    value = episode.reward.value if episode.reward else None
    return float("-inf") if value is None else value


def _line(episode: Episode) -> Text:
    from rich.text import Text

    reward = format_number(episode.reward.value if episode.reward else None)
    true_reward = episode.metrics.get("true_reward")
    told = f" · true reward {format_number(true_reward)}" if true_reward is not None else ""
    return Text(f"  member {episode.member}: reward {reward}{told} · {len(episode.turns)} turns · {episode.stop.value}")


def _answers(ranked: Sequence[Episode], place: int) -> dict[str, list[str]]:
    """Answer -> the members that gave it, the best member's first; one that has ended answers nothing."""
    answers: dict[str, list[str]] = {}
    for each in ranked:
        text = each.turns[place].action.strip() or "(nothing)" if place < len(each.turns) else "(ended)"
        answers.setdefault(text, []).append(str(each.member))
    return answers


def _differing(answers: dict[str, list[str]]) -> list[Text]:
    from rich.text import Text

    lines: list[Text] = []
    first: list[str] | None = None
    for answer, who in answers.items():
        words = answer.split()
        text = Text(f"  {', '.join(who)}: ", style="cyan")
        kept = set(range(len(words))) if first is None else _shared(first, words)
        for index, word in enumerate(words):
            text.append(f"{word} ", style="default" if index in kept else "bold yellow")
        first = words if first is None else first
        lines.append(text)
    return lines


def _shared(first: Sequence[str], words: Sequence[str]) -> set[int]:
    """The places in ``words`` that stand in ``first`` as well, in the same order."""
    blocks = SequenceMatcher(a=first, b=words, autojunk=False).get_matching_blocks()
    return {place for block in blocks for place in range(block.b, block.b + block.size)}
