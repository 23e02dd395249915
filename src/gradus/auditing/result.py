"""The result of an audit: checks, verdict, the document that machines read, and how it is shown in a terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import TypeAdapter
from rich.table import Table
from rich.text import Text

from gradus.auditing.plans.judged import Judged
from gradus.auditing.records import (
    STATUS_WORDS,
    AuditCheck,
    GradedCompletion,
    Kind,
    Point,
)
from gradus.auditing.text.rates import quoted
from gradus.core.documents import SCHEMA, AuditRecord
from gradus.core.findings import Status, worst
from gradus.core.frozen_record import frozen_record
from gradus.core.printing import beginning
from gradus.core.values import Json, JsonDict
from gradus.stats import format_interval

# What to change if a check fails.
_REMEDIES = {
    "separation": "Give the skill that is missing a component of its own, or more weight.",
    "exploits": "See which component rewards the degenerate policy, and reward what it is meant to measure.",
    "alignment": "Drop what the true reward does not know.",
    "search": "Read the episode, close the hole, and audit again.",
    "one plan": "Declare a teacher that earns more, or give no reward for what the plan does.",
    "hygiene": "Fix what the sentence names.",
    "figure": "Pay nothing for the completion that is shown.",
    "grading": "Return the least reward in place of what is raised; `gradus rewards try` scores one answer.",
    "sanity": "Accept the gold answer, and make the reward a function of task and answer alone.",
    "gold": "Pay gold more than the answers of other tasks.",
    "blind answers": "Compare the answer with the reference answer first; reward form only around a right answer.",
    "reflexes": "Read the answer out of its form and compare it alone; text copied from the question must earn nothing.",
    "the source": "Pay for what the named line looks for only around a right answer, and less than being right does.",
    "wrong answers": "Compare the whole answer, not a part of it, and take one answer block only.",
    "judge": "Take the mean of several samples, lower the temperature, or sharpen the rubric.",
    "hostile answers": "Never execute an answer in the grader's process, and limit its time.",
    "leaks": "Take the answer out of what is shown.",
    "tasks": "Take everything random from the seed, and keep test questions out of training.",
    "files and processes": "Run the answer in a process of its own that can neither read nor write what decides the reward.",
}


@frozen_record
class AuditResult:
    """``verdict`` is pass, fail or unresolved; a check that was left out does not count."""

    environment: str
    grader: str
    true_reward_name: str
    condition: str
    episodes: int
    seed: int
    checks: Sequence[AuditCheck]
    points: Sequence[Point] = ()  # every policy, for the figure; none if the grader was probed with answers
    hack: Judged | None = None  # what the search brought, with an episode to look at
    most: int | None = None  # episodes that there are tasks for
    place: tuple[str, int] = ("", 0)  # file and line of the grader, relative to the working folder if it lies there

    @property
    def verdict(self) -> str:
        """pass, fail or unresolved."""
        return verdict_of(self.checks)

    @property
    def notes(self) -> list[GradedCompletion]:
        """The completions that the checks show, exploits first, the shortest of a kind first."""
        notes = [note for check in self.checks for note in check.notes]
        return sorted(notes, key=lambda note: (_KINDS.index(note.kind), len(note.completion)))

    @property
    def review(self) -> list[Json]:
        """Accepted answers that a person has to judge."""
        return [row for check in self.checks for row in check.review]

    @property
    def exploit(self) -> GradedCompletion | None:
        """The first completion that pays without a right answer, or None."""
        notes = (note for check in self.checks for note in check.notes)
        return next((note for note in notes if note.kind == "exploit"), None)

    @property
    def more_episodes(self) -> int | None:
        """Returns how many episodes to try if what is open is a matter of how many there were; None if it is not."""
        unsure = [check for check in self.checks if check.status == "open"]
        # Without figures something is to be declared.
        is_counted = bool(unsure) and all(check.subject in _BY_EPISODES and check.measured for check in unsure)
        is_possible = self.most is None or self.episodes < self.most
        # Of four times as many episodes intervals are half as wide.
        return 4 * self.episodes if is_counted and is_possible else None

    @property
    def broken(self) -> AuditCheck | None:
        """The check that says on what the grader gives no reward, if no other check fails; None if it always gives one."""
        failed = [check for check in self.checks if check.status == "fail" and check.subject != "grading"]
        missing = (check for check in self.checks if check.subject == "grading" and check.status != "pass")
        return None if failed else next(missing, None)

    @property
    def summary(self) -> str:
        """One line a person can act on."""
        broken = self.broken
        failed = self.named("fail")
        if broken is not None:
            # Episodes that failed, or whose answers were not valid, have no reward either, which says nothing of the grader.
            is_known = broken.status == "fail" and not broken.measured.get("failed")
            verdict = "is broken" if is_known else "cannot be audited"
            return f"{self.grader} {verdict}: {broken.evidence}. Fix this, then audit again."
        if failed:
            return f"{self.grader} can be exploited ({failed}): fix this before training."
        unsure = self.named("open")
        if unsure:
            return f"{self.grader} is unresolved: {unsure} could still fail; {self._way_out}."
        noted_kinds = {note.kind for note in self.notes}
        kinds = [kind for kind in _NOTED if kind in noted_kinds]
        noted = f" It is {' and '.join(kinds)} about some forms, which a run does not exploit." if kinds else ""
        if any(check.subject == "alignment" and check.status == "note" for check in self.checks):
            limit = "This is what can be known without a true reward of its own"
            return f"{self.grader}: nothing was found. {limit}.{noted}"
        return f"{self.grader} passes: no exploit was found.{noted}"

    def named(self, status: Status) -> str:
        """The checks with this status. The figure is one of them only where it fails."""
        names = [check.subject for check in self.checks if check.status == status]
        return ", ".join(name for name in names if name != "figure" or status == "fail")

    @property
    def _way_out(self) -> str:
        """What would settle an open verdict."""
        more = self.more_episodes
        if more is not None:
            return f"the same audit with --episodes {more} would tell more (in a recipe: audit.episodes)"
        if self.episodes == self.most:
            return f"these {self.most} are all tasks there are, more rows would tell more"
        return "the evidence says what would tell"

    def to_json(self) -> AuditRecord:
        """The document of schema 2 (docs/audit.md); the same audit gives the same bytes."""
        document = plain(
            {
                "schema": SCHEMA,
                **{name: getattr(self, name) for name in _FIELDS},
                "checks": [_document(check) for check in self.checks],
                "hack": self.hack.to_json() if self.hack else None,
            }
        )
        return cast(AuditRecord, document)


_FIELDS = (
    "environment",
    "grader",
    "verdict",
    "summary",
    "true_reward_name",
    "condition",
    "episodes",
    "seed",
    "points",
    "exploit",
    "review",
)
_BY_EPISODES = {"separation", "exploits", "alignment"}  # more episodes narrow what these look at


def _document(check: AuditCheck) -> JsonDict:
    """A check in the words of the document; one that fails says what to change."""
    document: JsonDict = {
        "name": check.subject,
        "status": STATUS_WORDS[check.status],
        "evidence": check.evidence,
        "measured": check.measured,
        "notes": check.notes,
    }
    if check.status == "fail":
        document["remedy"] = _remedy(check)
    return document


def _remedy(check: AuditCheck) -> str:
    """What to change: of the kind of answer that pays, if the check shows one."""
    # That of the completion knows more than that of the check.
    changes = (note.change for note in check.notes if note.kind == "exploit" and note.change)
    return next(changes, "") or _REMEDIES[check.subject]


_VERDICTS: Mapping[Status, str] = {**STATUS_WORDS, "note": "pass"}


def verdict_of(checks: Sequence[AuditCheck]) -> str:
    """fail if any check fails; unresolved if one is open; else pass."""
    return _VERDICTS[worst(checks)]


def plain(value: Any) -> Any:
    """JSON values only: records as objects, what is not finite as null."""
    # pydantic knows dataclasses and writes what is not finite as null; json does neither.
    return json.loads(TypeAdapter(Any).dump_json(value))


MARKS: Mapping[Status, str] = {
    "pass": "pass",
    "fail": "FAIL",
    "open": "?",
    "note": "-",
}
STYLES: Mapping[Status, str] = {
    "pass": "green",
    "fail": "bold red",
    "open": "yellow",
    "note": "dim",
}
_VERDICT_STYLES = {word: STYLES[status] for status, word in STATUS_WORDS.items()}

# Of a screen: rows of policies, notes of a kind, characters of a completion and of a sentence.
_POLICIES = 6
_NOTES = 2
_QUOTED = 60
_EVIDENCE = 230
_KINDS: Sequence[Kind] = ("exploit", "lenient", "strict", "open")
_NOTED: Mapping[Kind, str] = {
    "lenient": "it accepts words around a right answer, or gives a small part of the reward for form",
    "strict": "it refuses forms of the right answer",
}
_LISTED: Mapping[Status, str] = {"pass": "passed", "note": "left out"}
_SHOWN: Mapping[Kind, str] = {
    **_NOTED,
    "open": "the rows do not say whether these answers are wrong",
}


def screen(result: AuditResult, *, whole: bool = False) -> list[Any]:
    """The verdict, what pays, the checks that did not pass, and what is lenient or strict: one screen. ``whole``: all of it, uncut.

    Brackets in names, answers and intervals are not read as markup.
    """
    verdict = (result.verdict, _VERDICT_STYLES[result.verdict])
    parts: list[Any] = [Text.assemble(verdict, f"  {result.summary}"), ""]
    subject = f"{result.environment} · {result.condition} · grader {result.grader} · {result.episodes} episodes"
    if result.points:
        parts += [_policies(result, subject, None if whole else _POLICIES), ""]
    else:
        parts.append(Text(subject, style="dim"))
    if result.exploit is not None:
        completion = quoted(result.exploit.completion, _QUOTED)
        parts.append(Text(f"this completion alone earns {result.exploit.reward:.3g}: {completion}"))
    figure = next((check for check in result.checks if check.subject == "figure"), None)
    if figure is not None and figure.status != "fail":
        parts.append(Text(f"as a share of {figure.measured['of']}: {figure.evidence}"))
    if figure is not None and figure.measured.get("skipped"):
        parts.append(Text(time_for_the_rest(figure)))
    if result.hack is not None:
        parts.append(Text(f"the hack that was found: {beginning(result.hack.plan, _EVIDENCE)}"))
    for check in result.checks:
        # On what a grader is broken, the verdict above has said already.
        is_told = check.status in ("fail", "open") and check is not result.broken
        if whole or is_told:
            evidence = check.evidence if whole else beginning(check.evidence, _EVIDENCE)
            mark = (MARKS[check.status], STYLES[check.status])
            parts.append(Text.assemble(mark, f" {check.subject}: {evidence}"))
            if check.status == "fail" and check.subject != "figure":
                parts.append(Text(f"     fix: {_remedy(check)}"))
    for status, word in _LISTED.items():
        names = result.named(status)
        if names:
            parts.append(Text(f"{word}: {names}", style="dim"))
    for kind in _SHOWN:
        parts += _noted(result, kind, None if whole else _NOTES)
    return parts


def _noted(result: AuditResult, kind: Kind, most: int | None) -> list[Text]:
    """The completions of a kind, at most so many."""
    notes = [note for note in result.notes if note.kind == kind]
    if not notes:
        return []
    lines = [Text(f"{kind}: {_SHOWN[kind]}")]
    for note in notes[:most]:
        completion = f"{quoted(note.completion, _QUOTED)} for {quoted(note.gold, 20)}"
        line = f"  {note.what} ({note.share}): {completion}"
        if note.change:
            line += f"; {note.change}"
        lines.append(Text(line))
    hidden = len(notes) - len(notes[:most])
    if hidden:
        lines.append(Text(f"  and {hidden} more (--verbose)", style="dim"))
    return lines


def time_for_the_rest(figure: AuditCheck) -> str:
    """How many answers were asked of how many, and how much time asks the rest."""
    count, skipped = figure.measured["asked"], figure.measured["skipped"]
    total = count + skipped
    # As much time an answer as until now, in tens, and ten more.
    seconds = 10 * math.ceil(figure.measured["limit"] * total / max(1, count) / 10 + 1)
    return f"{count:,} of {total:,} answers asked; --seconds {seconds} asks the rest"


def _policies(result: AuditResult, subject: str, most: int | None) -> Table:
    """A table of the policies, the best reward first."""

    def rank(point: Point) -> float:
        return 1e9 if point.reward.mean is None else -point.reward.mean

    columns = ("policy", "role", "reward", result.true_reward_name)
    table = Table(*columns, title=Text(subject), box=None, title_justify="left")
    for point in sorted(result.points, key=rank)[:most]:
        cells = (point.policy, point.role, format_interval(point.reward), format_interval(point.true_reward))
        table.add_row(*map(Text, cells))
    return table
