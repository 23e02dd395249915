"""Episodes on a terminal: one turn by turn, and members of a group beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from gradus.core import Episode, EpisodeView, Message, Reward, Turn
from gradus.core.spec import ViewPanel
from gradus.core.values import Json
from gradus.evidence.reports.episode_data import json_values
from gradus.stats import format_number, format_signed

SPAN_STYLES = ("underline", "underline bold", "underline italic", "underline dim")
MARKS = "▁▂▃▄▅▆▇█"
_INDENT = "\n    "


def show_episode(episode: Episode, view: EpisodeView | None = None) -> RenderableType:
    """The transcript with rewards, terms, spans and errors, as a rich renderable; ``view`` adds its pictures in small."""
    head = Text(_title(episode), style="bold")
    if episode.member or episode.group:
        head.append(f" · group {episode.group}, member {episode.member}", style="dim")
    pictures = [] if view is None else [_view(view), Rule(style="dim")]
    turns = [_turn(turn, episode.reward) for turn in episode.turns]
    return Group(head, *pictures, *turns, Rule(style="dim"), _end(episode))


def _title(episode: Episode) -> str:
    task = episode.task
    return f"{task.environment} · {task.condition} · seed {task.seed} · {episode.policy}"


def _turn(turn: Turn, reward: Reward | None) -> Text:
    """What was read, answered and called, what was wrong with it, and what it earned."""
    observed = _results(turn.messages) or turn.observation
    if turn.restart and turn.index:  # the first turn always begins a sequence
        observed = f"(reads anew) {observed}"
    number = (f"\n{turn.index + 1:>3} ", "bold")
    text = Text.assemble(number, (observed, "dim"), ("\n  → ", "bold"), _answer(turn))
    for call in turn.calls:
        arguments = ", ".join(f"{key} = {_short(value)}" for key, value in call.arguments.items())
        text.append(f"{_INDENT}calls {call.name or '?'}({arguments})", style="red" if call.fault else "cyan")
        if call.fault:
            text.append(f": {call.fault}, {call.error}", style="red")
    if not turn.valid:
        text.append(f"{_INDENT}not understood: {turn.error or 'no reason given'}", style="red")
    if turn.cut:
        text.append(f"{_INDENT}cut by the token budget", style="red")
    facts = " · ".join(_facts(turn, reward))
    return text.append(f"{_INDENT}{facts}", style="dim") if facts else text


def _results(messages: Sequence[Message]) -> str:
    """An observation with results of tools, which stand under their names; empty without any."""
    lines = [
        f"{message.name} gave {message.content}" if message.role == "tool" else message.content for message in messages
    ]
    has_results = any(message.role == "tool" for message in messages)
    return _INDENT.join(lines) if has_results else ""


def _answer(turn: Turn) -> Text:
    """The answer with its spans underlined, and their texts beside it."""
    answer = Text(turn.action or "(nothing)")
    styles: dict[str, str] = {}  # the spans of one name look alike
    for span in turn.spans:
        style = styles.setdefault(span.name, SPAN_STYLES[len(styles) % len(SPAN_STYLES)])
        answer.stylize(style, span.start, span.end)
    if styles and not turn.calls:  # calls are listed below
        spans = ", ".join(f"{span.name}: {turn.action[span.start : span.end]!r}" for span in turn.spans)
        answer.append(f"   {spans}", style="dim")
    return answer


def _facts(turn: Turn, reward: Reward | None) -> list[str]:
    """The environment's reward, reward terms by component and span, what was understood, and how sure the policy was."""
    facts: list[str] = []
    if turn.env_reward is not None:
        facts.append(f"reward {format_signed(turn.env_reward, 2)}")
    terms = reward.terms if reward else ()  # a stored reward may have none
    for term in terms[turn.index] if turn.index < len(terms) else ():
        span = f" ({term.span})" if term.span else ""
        facts.append(f"{_words(term.component)}{span} {format_signed(term.value, 4)}")
    understood = _pairs(turn.action_data)
    if understood:
        facts.append(f"understood {understood}")
    if turn.tokens is not None:
        total = format_number(sum(turn.tokens.logprobs), 2)
        facts.append(f"log-prob {total} of {len(turn.tokens.action_ids)} tokens")
    return facts


def _end(episode: Episode) -> Text:
    """How the episode ended, its reward and figures, and what was hidden."""
    text, failure = Text(), episode.failure
    results = _results(episode.final.messages) if episode.final else ""
    if results:
        text.append(f"{results}\n", style="dim")
    if failure is not None:
        text.append(f"failed in {failure.stage}: {failure.type}: {failure.message}\n", style="red")
    elif episode.stop != "terminated":
        text.append(f"not finished: {_words(episode.stop.value)}\n", style="red")
    if episode.reward is not None:
        text.append_text(_graded(episode.reward))
    figures = _figures({"return": episode.env_return, **episode.metrics}, " · ")
    if figures:
        text.append(f"{figures}\n")
    if episode.outcome:
        text.append(f"what was hidden: {_pairs(episode.outcome)}", style="dim")
    return text


def _graded(reward: Reward) -> Text:
    """A reward with its components, or why there is none, and what its functions logged."""
    text = Text()
    if reward.value is None:
        text.append(f"not graded by {reward.grader}: {reward.error or 'no reason given'}\n", style="red")
    else:
        components = _figures(reward.components, ", ")
        text.append(f"reward {reward.grader} {format_number(reward.value)}", style="bold")
        text.append(f" ({components})\n" if components else "\n")
    if reward.extras:
        text.append(f"logged: {_pairs(reward.extras)}\n")
    return text


def _figures(values: Mapping[str, float | None], separator: str) -> str:
    measured = {name: value for name, value in values.items() if value is not None}
    return separator.join(f"{_words(name)} {format_number(value)}" for name, value in measured.items())


def _view(view: EpisodeView) -> Text:
    """Lines as a row of eight heights, strips as words."""
    text = Text(view.title)
    for panel in view.panels:
        if panel.kind == "lines":
            text.append(f"\n{panel.title}", style="dim")
            for name, values in panel.series.items():
                truth = f"  truth {format_number(panel.truth[name], 2)}" if name in panel.truth else ""
                text.append(f"\n  {name:<14}{_heights(values, panel)}{truth}")
        elif panel.kind == "strip":
            text.append(f"\n{panel.title}: ", style="dim")
            text.append(" ".join(panel.labels))
    return text


def _heights(values: Sequence[float | None], panel: ViewPanel) -> str:
    """One character a value, as high as the value; a dot for a missing one."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return "–"
    low, high = panel.limits or (min(numbers), max(numbers))
    top = len(MARKS) - 1
    step = (high - low) / top or 1.0  # a flat line has no step
    marks = ""
    for value in values:
        if value is None:
            marks += "·"
        else:
            height = round((value - low) / step)
            marks += MARKS[min(top, max(0, height))]  # a value may lie beyond the limits
    return marks


def _words(name: str) -> str:
    return name.replace("_", " ")


def _pairs(values: Json) -> str:
    return ", ".join(f"{key} {_short(value)}" for key, value in values.items() if value is not None)


def _short(value: Any) -> str:
    return format_number(value) if isinstance(value, float) else str(json_values(value, digits=3))
