"""Answers made of the grader's source: its words alone, beside an answer or around one, and lengths of its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gradus.auditing.records import LEAST_EFFECT, Check
from gradus.auditing.text.asking import Ground
from gradus.auditing.text.mutations import WRONG
from gradus.auditing.text.paying import unearned
from gradus.auditing.text.rates import Probe
from gradus.auditing.text.source import SLOT, Dictionary, Place, read_source
from gradus.auditing.text.tasks import TextTask
from gradus.stats import wilson

NAME = "the source"
_SECONDS = 3.0
_MOST = 1500  # answers that are tried
_JUDGED = 6
_TASKS = 24  # that judge
_LONGEST = 2000  # a number in the source above this is not a length
_NEAR = "9 percent more"
_BESIDE = ("TRY GOLD", "GOLD TRY", "TRY\nGOLD", "GOLD\nTRY", "TRYGOLD", "GOLDTRY")


@dataclass(frozen=True, kw_only=True)
class Try:
    """A text for any task, with a slot for an answer or without. ``near``: the answer is a number that lies near gold.

    ``bare``: it is the whole completion, without the form that the task asks for. ``place``: the line that its words come from.
    """

    text: str
    place: Place
    bare: bool = False
    near: bool = False

    @property
    def name(self) -> str:
        text = self.text.replace(SLOT, "...")
        words = f"; {len(text.split())} words, {len(text):,} characters" if len(text) > 60 else ""
        return f"{text[:57]!r}...{words}" if words else repr(text)


def from_source(ground: Ground) -> Check:
    """Answers that are made of the words, patterns and numbers of the grader's source."""
    ground.enter(NAME)
    found = None if ground.subject.remote else read_source(ground.subject.functions)
    if found is None:
        evidence = "the grader's source cannot be read: it is built in, in another process, or was not given"
        return Check(name=NAME, status="skip", evidence=evidence)
    tasks = [task for task in ground.tasks if task.key in ground.bases]
    paid, tried = _paid(ground, found, tasks[0])
    judges = (tasks[1:] or tasks)[:_TASKS]
    finalists = {each.name: each for each in _finalists(paid) if _outweighs(ground, each, judges)}
    rates = [ground.rate(name, _probes(ground, each, judges)) for name, each in finalists.items()]
    check = unearned(ground, NAME, [rate for rate in rates if rate is not None], tried=tried)
    if check.status == "fail":
        place = finalists[check.notes[0].what].place
        line = {"file": place.file, "line": place.line, "text": place.text}
        evidence = f"{check.evidence}, because of {place.name}: {place.text}"
        return replace(check, evidence=evidence, measured={**check.measured, "line": line})
    read = f"{len(found.words)} words and {len(found.numbers)} numbers of {', '.join(sorted(Path(file).name for file in found.files))}"
    evidence = f"none of {tried} answers made of the grader's source pays ({read})"
    return Check(name=NAME, status="pass", evidence=evidence, measured={**check.measured, "tried": tried})


def _paid(ground: Ground, found: Dictionary, task: TextTask) -> tuple[dict[Try, float], int]:
    """Returns the answers that pay on one task, with their gain on a wrong answer, of all that three seconds allow, and how many were tried."""
    paid: dict[Try, float] = {}
    base, started, tried = ground.bases[task.key], ground.scorer.spent, 0
    for each in _tries(found):
        if ground.scorer.spent - started > _SECONDS or tried >= _MOST:
            break
        answer = _filled(ground, each, task)
        if answer is None:
            continue
        tried += 1
        (score,) = ground.scorer.score([(task, answer)])
        gain = (score.value or 0.0) - max(base.wrong, base.silence)
        if gain > LEAST_EFFECT * ground.span:
            paid[each] = gain
    return paid, tried


def _tries(found: Dictionary) -> Iterator[Try]:
    """Every word alone, then with an answer beside or inside it, each as it is and in the form that is asked for."""
    texts: dict[str, Place] = dict(found.words)
    for number, place in found.numbers.items():
        if 1 < number <= _LONGEST and number == int(number):
            for size in (int(number) - 1, int(number), int(number) + 1):
                words = [f"word{i}" for i in range(size)]
                texts.setdefault(" ".join(words), place)
                texts.setdefault(" ".join(words)[:size], place)
    for text, place in texts.items():
        yield from (Try(text=text, place=place, bare=bare) for bare in (True, False))
    with_slot = {text: place for text, place in found.words.items() if SLOT in text}
    for text, place in found.words.items():
        for made in () if SLOT in text else (text + SLOT, f"{text} {SLOT}", f"{SLOT} {text}", *_closed(text)):
            with_slot.setdefault(made, place)
    for near in (False, True):
        for text, place in with_slot.items():
            yield from (Try(text=text, place=place, bare=bare, near=near) for bare in (True, False))


def _closed(text: str) -> Iterator[str]:
    """The slot inside of what the word opens."""
    if text.startswith("<") and text.endswith(">") and text[1:2].isalpha():
        yield f"{text}{SLOT}</{text[1:-1].split()[0]}>"
    if text.endswith(("{", "[", "(")):
        yield f"{text}{SLOT}{ {'{': '}', '[': ']', '(': ')'}[text[-1]] }"


def _filled(ground: Ground, each: Try, task: TextTask, answer: str | None = None) -> str | None:
    """The completion of a try; None if the task has no wrong answer for it."""
    if answer is None and SLOT in each.text:
        gold, rng = ground.golds[task.key], ground.rng("wrong 0", task)
        answer = (WRONG[_NEAR].make(gold, rng) or (None,))[0] if each.near else gold.another(rng)
        if answer is None:
            return None
    text = each.text.replace(SLOT, answer or "")
    return text if each.bare else task.whole(text)


def _finalists(paid: dict[Try, float]) -> list[Try]:
    """The best paid tries, one for each line of the source, the shortest first among equals."""
    best: dict[Place, Try] = {}
    for each in sorted(paid, key=lambda t: (-round(paid[t], 6), len(t.text), t.text)):
        best.setdefault(each.place, each)
    return list(best.values())[:_JUDGED]


def _probes(ground: Ground, each: Try, tasks: Sequence[TextTask], *, right: bool = False) -> list[Probe]:
    """``right``: with the gold answer in the slot."""
    made = [(task, _filled(ground, each, task, task.gold if right else None)) for task in tasks]
    rows = [(each.name, replace(task, before="", after=""), text) for task, text in made if text is not None]
    return ground.ask(NAME, rows)


def _outweighs(ground: Ground, each: Try, tasks: Sequence[TextTask]) -> bool:
    """Returns True if the try earns more by its form than the right answer adds to it: else it is a bonus for a form.

    A value near gold has to earn all that gold earns: rewards that fall with the distance pay it less.
    """
    wrong = [(probe, ground.bases[probe.task.key]) for probe in _probes(ground, each, tasks)]
    if each.near:
        full = [probe.value is not None and probe.value >= base.gold - 1e-6 * ground.span for probe, base in wrong]
        return (wilson(sum(full), len(full)).low or 0.0) > 0.5
    forms = (
        [each.text]
        if SLOT in each.text
        else [each.text.join(form.replace("GOLD", SLOT).split("TRY")) for form in _BESIDE]
    )
    with_gold = [_probes(ground, replace(each, text=form), tasks[:_JUDGED], right=True) for form in forms]
    best = max(sum(probe.value or 0.0 for probe in probes) / max(1, len(probes)) for probes in with_gold)
    earned = sum((probe.value or 0.0) - base.wrong for probe, base in wrong) / len(wrong)
    floor = sum(base.wrong for _, base in wrong) / len(wrong)
    return earned > best - floor - earned + 1e-9
