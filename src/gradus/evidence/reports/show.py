"""Episodes on a terminal: one turn by turn, and members of a group beside each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from gradus.core import Episode, EpisodeView, Message, Reward, ToolCall, Turn
from gradus.core.spec import ViewPanel
from gradus.evidence.reports.episode_data import json_values
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
    return Group(*parts, Rule(style="dim"), _end(episode))


def _head(episode: Episode) -> Text:
    from rich.text import Text

    task = episode.task
    head = Text(f"{task.environment} · {task.condition} · seed {task.seed} · {episode.policy}", style="bold")
    if episode.member or episode.group:
        head.append(f" · group {episode.group}, member {episode.member}", style="dim")
    return head


def _turn(episode: Episode, turn: Turn) -> Text:
    """What was read, answered and called, what was wrong with it, and what it earned."""
    from rich.text import Text

    text = Text(f"\n{turn.index + 1:>3} ", style="bold")
    if turn.restart and turn.index:
        text.append("(reads anew) ", style="dim")
    text.append(_observed(turn.messages, turn.observation), style="dim")
    text.append("\n  → ", style="bold")
    text.append_text(_answer(turn))
    for call in turn.calls:
        text.append(f"\n    {_called(call)}", style="red" if call.fault else "cyan")
    if not turn.valid:
        text.append(f"\n    not understood: {turn.error or 'no reason given'}", style="red")
    if turn.cut:
        text.append("\n    cut by the token budget", style="red")
    facts = _facts(turn, episode.reward)
    if facts:
        text.append(f"\n    {' · '.join(facts)}", style="dim")
    return text


def _observed(messages: Sequence[Message], text: str) -> str:
    """Renders an observation; results of tools stand under their names."""
    if all(message.role != "tool" for message in messages):
        return text
    lines = [
        f"{message.name} gave {message.content}" if message.role == "tool" else message.content for message in messages
    ]
    return "\n    ".join(lines)


def _called(call: ToolCall) -> str:
    arguments = ", ".join(f"{key} = {_short(value)}" for key, value in call.arguments.items())
    fault = f": {call.fault}, {call.error}" if call.fault else ""
    return f"calls {call.name or '?'}({arguments}){fault}"


def _answer(turn: Turn) -> Text:
    """The answer with its spans underlined, and their texts beside it."""
    from rich.text import Text

    answer = Text(turn.action or "(nothing)")
    styles: dict[str, str] = {}
    for span in turn.spans:
        style = styles.setdefault(span.name, SPAN_STYLES[len(styles) % len(SPAN_STYLES)])
        answer.stylize(style, span.start, span.end)
    if styles and not turn.calls:
        spans = ", ".join(f"{span.name}: {turn.action[span.start : span.end]!r}" for span in turn.spans)
        answer.append(f"   {spans}", style="dim")
    return answer


def _facts(turn: Turn, reward: Reward | None) -> list[str]:
    """The environment's reward, reward terms by component and span, what was understood, and how sure the policy was."""
    facts: list[str] = []
    if turn.env_reward is not None:
        facts.append(f"reward {format_signed(turn.env_reward, 2)}")
    terms = dict(enumerate(reward.terms)) if reward else {}
    for term in terms.get(turn.index, ()):
        span = f" ({term.span})" if term.span else ""
        facts.append(f"{_words(term.component)}{span} {format_signed(term.value, 4)}")
    understood = _pairs(turn.action_data)
    if understood:
        facts.append(f"understood {understood}")
    if turn.tokens is not None:
        logprob = format_number(sum(turn.tokens.logprobs), 2)
        facts.append(f"log-prob {logprob} of {len(turn.tokens.action_ids)} tokens")
    return facts


def _end(episode: Episode) -> Text:
    """How the episode ended, its reward and figures, and what was hidden."""
    from rich.text import Text

    text = Text()
    results = _observed(episode.final.messages, "") if episode.final else ""
    if results:
        text.append(f"{results}\n", style="dim")
    if episode.failure is not None:
        failure = episode.failure
        text.append(f"failed in {failure.stage}: {failure.type}: {failure.message}\n", style="red")
    elif episode.stop != "terminated":
        text.append(f"not finished: {_words(episode.stop.value)}\n", style="red")
    if episode.reward is not None:
        text.append_text(_reward(episode.reward))
    figures = _figures({"return": episode.env_return, **episode.metrics})
    if figures:
        text.append(" · ".join(figures) + "\n")
    if episode.outcome:
        text.append(f"what was hidden: {_pairs(episode.outcome)}", style="dim")
    return text


def _reward(reward: Reward) -> Text:
    from rich.text import Text

    if reward.value is None:
        text = Text(f"not graded by {reward.grader}: {reward.error or 'no reason given'}\n", style="red")
    else:
        components = ", ".join(_figures(reward.components))
        text = Text().append(f"reward {reward.grader} {format_number(reward.value)}", style="bold")
        text.append(f" ({components})\n" if components else "\n")
    if reward.extras:
        text.append(f"logged: {_pairs(reward.extras)}\n", style="default")
    return text


def _figures(values: Mapping[str, float | None]) -> list[str]:
    return [f"{_words(name)} {format_number(value)}" for name, value in values.items() if value is not None]


def _view(view: EpisodeView) -> Text:
    """Lines as a row of eight heights, strips as words."""
    from rich.text import Text

    text = Text(view.title)
    for panel in view.panels:
        if panel.kind == "lines":
            text.append(f"\n{panel.title}", style="dim")
            for name, values in panel.series.items():
                text.append(f"\n  {name:<14}{_heights(values, panel)}")
                if name in panel.truth:
                    text.append(f"  truth {format_number(panel.truth[name], 2)}")
        elif panel.kind == "strip":
            text.append(f"\n{panel.title}: ", style="dim")
            text.append(" ".join(panel.labels))
    return text


def _heights(values: Sequence[float | None], panel: ViewPanel) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    low, high = panel.limits or (min(known), max(known))
    top = len(MARKS) - 1
    step = (high - low) / top or 1.0
    return "".join("·" if value is None else MARKS[min(top, max(0, round((value - low) / step)))] for value in values)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {_short(value)}" for key, value in values.items() if value is not None)


def _short(value: Any) -> str:
    return format_number(value) if isinstance(value, float) else str(json_values(value, digits=3))


def members_of(episodes: Sequence[Episode], episode: Episode) -> list[Episode]:
    """The episodes of one episode's group: the same policy met the same task with the same noise."""
    group = (episode.policy, episode.task, episode.group)
    return [member for member in episodes if (member.policy, member.task, member.group) == group]


def show_differences(members: Sequence[Episode]) -> RenderableType:
    """A line for each member, best first, then each turn with more than one answer: the words that the best one did not say are bold."""
    from rich.console import Group
    from rich.text import Text

    ranked = sorted(members, key=_value, reverse=True)
    task, best = ranked[0].task, ranked[0]
    head = f"{task.environment} · {task.condition} · seed {task.seed} · {best.policy} · group {best.group}"
    parts: list[RenderableType] = [Text(head, style="bold"), *map(_line, ranked)]
    if len(ranked) == 1:
        return Group(*parts, Text("the file holds no other member of this group"))
    turns: list[RenderableType] = []
    for place in range(max(len(member.turns) for member in ranked)):
        answers = _answers(ranked, place)
        if len(answers) > 1:
            turns += [Text(f"\nturn {place + 1}", style="bold"), *_differing(answers)]
    note = "all members answered the same at every turn"
    if turns:
        note = "Up to here all did the same; from the next turn on they may read different things."
    return Group(*parts, Text(note, style="dim" if turns else ""), *turns)


def _value(episode: Episode) -> float:
    value = episode.reward.value if episode.reward else None
    return float("-inf") if value is None else value


def _line(episode: Episode) -> Text:
    from rich.text import Text

    figures = {"reward": episode.reward and episode.reward.value, "true_reward": episode.metrics.get("true_reward")}
    rewards = " · ".join(_figures(figures)) or "no reward"
    return Text(f"  member {episode.member}: {rewards} · {len(episode.turns)} turns · {episode.stop.value}")


def _answers(ranked: Sequence[Episode], place: int) -> dict[str, list[str]]:
    """Answer -> the members that gave it, the best member's first; one that has ended answers nothing."""
    answers: dict[str, list[str]] = {}
    for member in ranked:
        answer = "(ended)"
        if place < len(member.turns):
            answer = member.turns[place].action.strip() or "(nothing)"
        answers.setdefault(answer, []).append(str(member.member))
    return answers


def _differing(answers: Mapping[str, Sequence[str]]) -> list[Text]:
    """The answers of one turn, one a line."""
    from rich.text import Text

    first = next(iter(answers)).split()
    lines: list[Text] = []
    for answer, members in answers.items():
        text = Text(f"  {', '.join(members)}: ", style="cyan")
        words = answer.split()
        shared = _shared(first, words)
        for index, word in enumerate(words):
            text.append(f"{word} ", style="default" if index in shared else "bold yellow")
        lines.append(text)
    return lines


def _shared(first: Sequence[str], words: Sequence[str]) -> Collection[int]:
    """The places in ``words`` that stand in ``first`` as well, in the same order."""
    blocks = SequenceMatcher(a=first, b=words, autojunk=False).get_matching_blocks()
    return {block.b + offset for block in blocks for offset in range(block.size)}
