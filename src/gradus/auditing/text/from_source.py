"""Answers made of the grader's source: its words alone, beside an answer or around one, and lengths of its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gradus.auditing.records import LEAST_EFFECT, AuditCheck, is_above
from gradus.auditing.text.asking import Ground
from gradus.auditing.text.mutations import WRONG
from gradus.auditing.text.paying import unearned
from gradus.auditing.text.rates import Probe
from gradus.auditing.text.source import SLOT, Dictionary, Place, read_source
from gradus.auditing.text.tasks import TextTask
from gradus.core.frozen_record import frozen_record
from gradus.stats import wilson

NAME = "the source"
_SECONDS = 3.0
_MOST = 1500  # answers that are tried
_FINALISTS = 6
_TASKS = 24  # that judge
_LONGEST = 2000  # a number in the source above this is not a length
_NEAR = "9 percent more"
_BESIDE = (
    "TRY GOLD",
    "GOLD TRY",
    "TRY\nGOLD",
    "GOLD\nTRY",
    "TRYGOLD",
    "GOLDTRY",
)
# A word that opens something may be looked for together with what closes it.
_BRACKETS = {"{": "}", "[": "]", "(": ")"}


@frozen_record
class Try:
    """A text for any task, with a slot for an answer or without."""

    text: str
    place: Place  # the line that its words come from
    bare: bool = False  # it is the whole completion, without the form that the task asks for
    near: bool = False  # the answer is a number that lies near gold

    @property
    def name(self) -> str:
        """The text, or its beginning and how long it is."""
        text = self.text.replace(SLOT, "...")
        if len(text) <= 60:
            return repr(text)
        return f"{text[:57]!r}...; {len(text.split())} words, {len(text):,} characters"

    def completion(self, ground: Ground, task: TextTask, answer: str | None = None) -> str | None:
        """The completion for a task, with a wrong answer in the slot unless one is given; None if the task has none."""
        if answer is None and SLOT in self.text:
            gold = ground.golds[task.key]
            rng = ground.rng("wrong 0", task)  # the wrong answer whose reward the task's base holds
            if self.near:
                answer = next(iter(WRONG[_NEAR].answers(gold, rng)), None)
            else:
                answer = gold.another(rng)
            if answer is None:
                return None
        text = self.text.replace(SLOT, answer or "")
        return text if self.bare else task.completion(text)


def from_source(ground: Ground) -> AuditCheck:
    """Answers that are made of the words, patterns and numbers of the grader's source."""
    ground.enter(NAME)
    source = read_source(() if ground.subject.remote else ground.subject.functions)
    if not source.files:
        evidence = "the grader's source cannot be read: it is built in, in another process, or was not given"
        return AuditCheck(subject=NAME, status="note", evidence=evidence)
    first, *further = ground.usable_tasks
    # What pays nothing on the first task is not asked on others: hundreds of answers can be made of a source.
    gains, tried = _gains(ground, source, first)
    if not tried:
        return AuditCheck(subject=NAME, status="note", evidence="the grader's source holds no words or numbers to try")
    judges = (further or [first])[:_TASKS]
    winners = {finalist.name: finalist for finalist in _finalists(gains) if _outweighs(ground, finalist, judges)}
    probes = {name: _probes(ground, winner, judges) for name, winner in winners.items()}
    rates = ground.rates(probes, ground.guess)
    check = unearned(ground, NAME, [*rates.values()], tried=tried)
    if check.status == "fail":
        place = winners[check.notes[0].what].place
        line = {"file": place.file, "line": place.line, "text": place.text}
        evidence = f"{check.evidence}, because of {place.name}: {place.text}"
        return replace(check, evidence=evidence, measured={**check.measured, "line": line})
    files = ", ".join(sorted(Path(file).name for file in source.files))
    read = f"{len(source.words)} words and {len(source.numbers)} numbers of {files}"
    evidence = f"none of {tried} answers built from the grader's source is an exploit ({read})"
    measured = {**check.measured, "tried": tried}
    return AuditCheck(subject=NAME, status="pass", evidence=evidence, measured=measured)


def _gains(ground: Ground, source: Dictionary, task: TextTask) -> tuple[dict[Try, float], int]:
    """Returns the answers that pay on one task, with their gain on a wrong answer, of all that three seconds allow, and how many were tried."""
    gains: dict[Try, float] = {}
    base = ground.bases[task.key]
    started = ground.scorer.spent
    tried = 0
    for attempt in _tries(source):
        if ground.scorer.spent - started > _SECONDS or tried >= _MOST:
            break
        completion = attempt.completion(ground, task)
        if completion is None:
            continue
        tried += 1
        (score,) = ground.scorer.score([(task, completion)])
        gain = (score.value or 0.0) - max(base.wrong, base.silence)
        if gain > LEAST_EFFECT * ground.span:
            gains[attempt] = gain
    return gains, tried


def _tries(source: Dictionary) -> Iterator[Try]:
    """Every word alone, then with an answer beside or inside it, each as it is and in the form that is asked for."""
    texts = dict(source.words)
    for text, place in _lengths(source).items():
        texts.setdefault(text, place)
    for text, place in texts.items():
        yield from _in_both_forms(text, place)
    # A pattern says itself where the answer stands; those come first, for the time may not do for all.
    with_slot = {text: place for text, place in source.words.items() if SLOT in text}
    for text, place in source.words.items():
        if SLOT in text:
            continue
        for wrapped in (text + SLOT, f"{text} {SLOT}", f"{SLOT} {text}", *_closed(text)):
            with_slot.setdefault(wrapped, place)
    for near in (False, True):
        for text, place in with_slot.items():
            yield from _in_both_forms(text, place, near=near)


def _in_both_forms(text: str, place: Place, *, near: bool = False) -> Iterator[Try]:
    """The text as a whole completion, and in the form that the task asks for."""
    for bare in (True, False):
        yield Try(text=text, place=place, bare=bare, near=near)


def _lengths(source: Dictionary) -> Mapping[str, Place]:
    """Texts of as many words, and of as many characters, as the numbers of the source say, one less and one more."""
    # A limit may be meant as "more than" or as "at least".
    texts: dict[str, Place] = {}
    for number, place in source.numbers.items():
        is_length = 1 < number <= _LONGEST and number == int(number)
        for size in range(int(number) - 1, int(number) + 2) if is_length else ():
            words = " ".join(f"word{i}" for i in range(size))
            texts.setdefault(words, place)
            texts.setdefault(words[:size], place)
    return texts


def _closed(text: str) -> Iterator[str]:
    """The slot inside of what the word opens."""
    if text.startswith("<") and text.endswith(">") and text[1:2].isalpha():
        yield f"{text}{SLOT}</{text[1:-1].split()[0]}>"
    if text[-1:] in _BRACKETS:
        yield f"{text}{SLOT}{_BRACKETS[text[-1]]}"


def _finalists(gains: Mapping[Try, float]) -> list[Try]:
    """The tries that gain most, one for each line of the source, the shortest first among equals."""

    def rank(attempt: Try) -> tuple[float, int, str]:
        return -round(gains[attempt], 6), len(attempt.text), attempt.text

    # One for each line: variants of one exploit would take all the places.
    best: dict[Place, Try] = {}
    for attempt in sorted(gains, key=rank):
        best.setdefault(attempt.place, attempt)
    return list(best.values())[:_FINALISTS]


def _probes(
    ground: Ground,
    attempt: Try,
    tasks: Sequence[TextTask],
    *,
    right: bool = False,
) -> list[Probe]:
    """``right``: with the gold answer in the slot."""
    rows: list[tuple[str, TextTask, str]] = []
    for task in tasks:
        completion = attempt.completion(ground, task, task.gold if right else None)
        if completion is not None:
            rows.append((attempt.name, replace(task, before="", after=""), completion))
    # Each is logged under the check that it is an answer for, so that the figure of what is free counts no gold and no near miss.
    if right:
        return ground.ask("right answers", rows)
    return ground.ask("wrong answers" if attempt.near else NAME, rows)


def _outweighs(ground: Ground, attempt: Try, tasks: Sequence[TextTask]) -> bool:
    """Returns True if the try earns more by its form than the right answer adds to it: else it is a bonus for a form.

    A value near gold has to earn all that gold earns: rewards that fall with the distance pay it less.
    """
    probes = _probes(ground, attempt, tasks)
    bases = [ground.bases[probe.task.key] for probe in probes]
    if attempt.near:
        full = 0
        for probe, base in zip(probes, bases, strict=True):
            full += probe.value is not None and probe.value >= base.gold - 1e-6 * ground.span
        return is_above(wilson(full, len(probes)), 0.5)
    texts = [attempt.text]
    if SLOT not in attempt.text:
        texts = [form.replace("GOLD", SLOT).replace("TRY", attempt.text) for form in _BESIDE]
    with_gold = [_probes(ground, replace(attempt, text=text), tasks[:_FINALISTS], right=True) for text in texts]
    best = max(map(_mean_reward, with_gold))
    by_form = sum(probe.reward - base.wrong for probe, base in zip(probes, bases, strict=True)) / len(probes)
    floor = sum(base.wrong for base in bases) / len(bases)
    by_gold = best - floor - by_form
    return by_form > by_gold + 1e-9


def _mean_reward(probes: Sequence[Probe]) -> float:
    """The mean reward of probes, 0 without any."""
    return sum(probe.reward for probe in probes) / max(1, len(probes))
