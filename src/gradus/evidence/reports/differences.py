"""Members of a group beside each other on a terminal: what they got, and every turn at which they did not answer the same."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from gradus.core import Episode
from gradus.stats import format_number

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text


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
