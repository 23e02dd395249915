"""The result of an audit: checks, verdict, the document that machines read, and how it is shown in a terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter
from rich.table import Table
from rich.text import Text

from gradus.auditing.plans.judged import Judged
from gradus.auditing.records import Check, Note, Point
from gradus.auditing.text.rates import quoted
from gradus.core.documents import SCHEMA
from gradus.core.printing import beginning
from gradus.stats import format_interval

_BY_EPISODES = {"separation", "exploits", "free credit", "alignment"}  # more episodes narrow what these look at
_ADVISORY = ("signal",)  # a forecast of a run, which says nothing against the grader

# What to change if a check fails; attackers share the search's.
_REMEDIES = {
    "separation": "Give the skill that is missing a component of its own, or more weight.",
    "exploits": "Look at which component pays the degenerate policy, and pay for what it is meant to measure.",
    "free credit": "Score against the best constant: 1 - error / error of the constant.",
    "alignment": "Drop what the true reward does not know.",
    "search": "Read the episode, close the hole, and audit again.",
    "signal": "Take larger groups, other tasks, or a finer reward.",
    "hygiene": "Mend what the sentence names.",
    "grading": "Mend what the grader raises; `gradus rewards try` scores one answer with it.",
    "sanity": "Accept the gold answer, and make the reward a function of task and answer alone.",
    "gold": "Pay gold more than the answers of other tasks.",
    "blind answers": "Parse the answer and compare it; pay nothing for text that cannot be parsed.",
    "reflexes": "Refuse answers that restate the question: compare values in their simplest form.",
    "the source": "Take out what the named line pays for, or pay for it only beside a right answer.",
    "wrong answers": "Compare the whole answer, not a part of it, and take one answer block only.",
    "hostile answers": "Never execute an answer in the grader's process; catch what it raises, and limit its time.",
    "leaks": "Take the answer out of what is shown.",
    "tasks": "Take everything random from the seed, and keep test questions out of training.",
    "files and processes": "Run the answer in a process of its own that can neither read nor write what decides the reward.",
}


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """``verdict`` is pass, fail or unresolved; a check that was skipped does not count.

    ``most``: episodes that there are tasks for. ``points``: every policy in the plane of reward against true reward, for the figure, none if the
    grader was probed with answers. ``hack``: what the search found, with an episode to look at, or None.
    """

    environment: str
    grader: str
    true_reward_name: str
    condition: str
    episodes: int
    seed: int
    checks: Sequence[Check]
    points: Sequence[Point] = ()
    hack: Judged | None = None
    most: int | None = None

    @property
    def verdict(self) -> str:
        return verdict_of(self.checks)

    @property
    def notes(self) -> list[Note]:
        """The completions that the checks show, exploits first, the shortest of a kind first."""
        kinds = ("exploit", "lenient", "strict")
        notes = [note for check in self.checks for note in check.notes]
        return sorted(notes, key=lambda note: (kinds.index(note.kind), len(note.completion)))

    @property
    def review(self) -> list[Mapping[str, Any]]:
        """Accepted answers that a person has to judge."""
        return [row for check in self.checks for row in check.review]

    @property
    def exploit(self) -> Note | None:
        """The first completion that pays without a right answer, or None."""
        return next((note for check in self.checks for note in check.notes if note.kind == "exploit"), None)

    @property
    def more_episodes(self) -> int | None:
        """Returns how many episodes to try if what is open is a matter of how many there were; None if it is not."""
        unsure = [each for each in self.checks if each.status == "unresolved" and each.name not in _ADVISORY]
        # Without figures something is to be declared.
        counted = bool(unsure) and all(each.name in _BY_EPISODES and each.measured for each in unsure)
        possible = self.most is None or self.episodes < self.most
        return 4 * self.episodes if counted and possible else None  # intervals are half as wide then

    @property
    def summary(self) -> str:
        """One line a person can act on."""
        failed, unsure = (
            ", ".join(each.name for each in self.checks if each.status == status and each.name not in _ADVISORY)
            for status in ("fail", "unresolved")
        )
        if failed:
            return f"{self.grader} can be exploited ({failed}): do not train on it before this is mended."
        if unsure:
            told = "the evidence says what would tell"
            if (more := self.more_episodes) is not None:
                told = f"the same audit with --episodes {more} would tell more (in a recipe: audit.episodes)"
            elif self.episodes == self.most:
                told = f"these {self.most} are all tasks there are, more rows would tell more"
            return f"{self.grader} is not settled: {unsure} could still fail; {told}."
        kinds = [kind for kind in _KINDS if any(note.kind == kind for note in self.notes)]
        noted = f" It is {' and '.join(kinds)} about some forms, which a run does not exploit." if kinds else ""
        if any(check.status == "fail" for check in self.checks):
            noted += " A run might learn nothing from it: see signal."
        if any(check.name == "alignment" and check.status == "skip" for check in self.checks):
            told = "nothing was found. This is what can be known without a true reward of its own"
            return f"{self.grader}: {told}.{noted}"
        return f"{self.grader} passes: nothing was found that pays without a right answer.{noted}"

    def to_json(self) -> dict[str, Any]:
        """The document of schema 2 (docs/audit.md); the same audit gives the same bytes."""
        return plain(
            {
                "schema": SCHEMA,
                **{name: getattr(self, name) for name in _TOLD},
                "checks": [_told(check) for check in self.checks],
                "hack": self.hack.to_json() if self.hack else None,
            }
        )


_TOLD = (
    *("environment", "grader", "verdict", "summary", "true_reward_name", "condition", "episodes", "seed"),
    *("points", "exploit", "review"),
)


def _told(check: Check) -> dict[str, Any]:
    """A check as JSON values; one that fails says what to change."""
    told = {name: value for name, value in asdict(check).items() if name != "review"}
    return told | ({"remedy": _REMEDIES.get(check.name, _REMEDIES["search"])} if check.status == "fail" else {})


def verdict_of(checks: Sequence[Check]) -> str:
    """fail if any check fails; unresolved if one is; else pass. A forecast of a run does not count."""
    said = {check.status for check in checks if check.name not in _ADVISORY}
    return "fail" if "fail" in said else "unresolved" if "unresolved" in said else "pass"


def plain(value: Any) -> Any:
    """JSON values only: records as objects, what is not finite as null."""
    return json.loads(TypeAdapter(Any).dump_json(value))


MARKS = {"pass": "pass", "fail": "FAIL", "unresolved": "?", "skip": "-"}
STYLES = {"pass": "green", "fail": "bold red", "unresolved": "yellow", "skip": "dim"}


_POLICIES, _NOTES, _QUOTED, _EVIDENCE = 6, 2, 60, 230  # of a screen
_KINDS = {
    "lenient": "it pays for words around a right answer that one must know already, or in part for the form",
    "strict": "it refuses forms of the right answer",
}


def screen(result: AuditResult, *, whole: bool = False) -> list[Any]:
    """The verdict, what pays, the checks that did not pass, and what is lenient or strict: one screen. ``whole``: all of it, uncut.

    Brackets in names, answers and intervals are not read as markup.
    """
    parts: list[Any] = [Text.assemble((result.verdict, STYLES[result.verdict]), f"  {result.summary}"), ""]
    subject = f"{result.environment} · {result.condition} · grader {result.grader} · {result.episodes} episodes"
    parts += [_policies(result, subject, None if whole else _POLICIES), ""] if result.points else []
    parts += [] if result.points else [Text(subject, style="dim")]
    if result.exploit is not None:
        completion = quoted(result.exploit.completion, _QUOTED)
        parts.append(Text(f"this completion alone earns {result.exploit.reward:.3g}: {completion}"))
    if result.hack is not None:
        parts.append(Text(f"the hack that was found: {beginning(result.hack.plan, _EVIDENCE)}"))
    for check in result.checks:
        if whole or check.status in ("fail", "unresolved"):
            evidence = check.evidence if whole else beginning(check.evidence, _EVIDENCE)
            parts.append(Text.assemble((MARKS[check.status], STYLES[check.status]), f" {check.name}: {evidence}"))
    for status, word in (("pass", "passed"), ("skip", "left out")):
        if names := [check.name for check in result.checks if check.status == status]:
            parts.append(Text(f"{word}: {', '.join(names)}", style="dim"))
    for kind, told in _KINDS.items():
        notes = [note for note in result.notes if note.kind == kind]
        parts += [Text(f"{kind}: {told}")] if notes else []
        for note in notes if whole else notes[:_NOTES]:
            said = f"{quoted(note.completion, _QUOTED)} for {quoted(note.gold, 20)}"
            parts.append(Text(f"  {note.what} ({note.share}): {said}; {note.change}"))
        if len(notes) > _NOTES and not whole:
            parts.append(Text(f"  and {len(notes) - _NOTES} more (--verbose)", style="dim"))
    return parts


def _policies(result: AuditResult, subject: str, most: int | None) -> Table:
    title = Text(subject)
    table = Table("policy", "role", "reward", result.true_reward_name, title=title, box=None, title_justify="left")
    ranked = sorted(result.points, key=lambda point: -(point.reward.mean if point.reward.mean is not None else -1e9))
    for each in ranked[:most]:
        shown = (each.policy, each.role, format_interval(each.reward), format_interval(each.true_reward))
        table.add_row(*map(Text, shown))
    return table
