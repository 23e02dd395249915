"""Answers made of the grader's source: its words alone, in pairs and bred by the lines that they reach."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path

from gradus.auditing.records import LEAST_EFFECT, Check
from gradus.auditing.text.asking import Ground, Result
from gradus.auditing.text.gold import states
from gradus.auditing.text.patterns import SLOT
from gradus.auditing.text.rates import Probe, Rate
from gradus.auditing.text.source import Dictionary, Place, read_source
from gradus.auditing.text.tasks import TextTask
from gradus.core import child_rng
from gradus.stats import holm, wilson

NAME = "the source"
_SECONDS = 3.0
_MOST = 1500  # answers that are tried with their lines
_BRED = 300  # of them by joining what reached new lines
_JUDGED = 6
_TASKS = 24  # that judge
_LONGEST = 2000  # a number in the source above this is no length
_NEAR = 0.9  # of a tolerance
_FAR = 0.05  # of a decimal number: what lies nearer may be rounding
_JOINERS = ("", " ", "\n")
_BESIDE = ("TRY GOLD", "GOLD TRY", "TRY\nGOLD", "GOLD\nTRY", "TRYGOLD", "GOLDTRY")


@dataclass(frozen=True, kw_only=True)
class Try:
    """A text for any task. ``text``: with a slot for an answer or without. ``near``: the slot holds a value that is off by so much of gold, or by so much.

    ``bare``: it is the whole completion, without the form that the task asks for. ``place``: the line that its words come from.
    """

    text: str
    place: Place
    bare: bool = False
    near: tuple[float, str] | None = None

    @property
    def name(self) -> str:
        text = self.text.replace(SLOT, "..." if self.near is None else "(a near value)")
        words = f"; {len(text.split())} words, {len(text):,} characters" if len(text) > 60 else ""
        return f"{text[:57]!r}...{words}" if words else repr(text)

    def completion(self, task: TextTask, answer: str) -> str:
        """The whole completion, with an answer in the slot."""
        text = self.text.replace(SLOT, answer)
        return text if self.bare else task.whole(text)


@dataclass(kw_only=True)
class _Search:
    """The answers that were tried on one task. ``plain``: the lines of gold, of a wrong answer and of silence; ``unpaid``: of all that does not pay.

    ``kept``: tries that reached a new line or earned more than a wrong answer, with their reward and lines.
    """

    ground: Ground
    found: Dictionary
    task: TextTask
    known: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    plain: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    unpaid: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    kept: dict[Try, tuple[float, Sequence[tuple[str, int]]]] = field(
        default_factory=dict[Try, tuple[float, Sequence[tuple[str, int]]]]
    )
    tried: int = 0

    def ask(self, each: Try) -> None:
        answer = _filled(self.ground, each, self.task)
        if answer is None:
            return
        self.tried += 1
        score, lines = self.ground.scorer.traced(self.task, answer, sorted(self.found.files))
        base = self.ground.bases[self.task.key]
        gain = (score.value or 0.0) - max(base.wrong, base.silence)
        if score.skipped or score.hung:
            return
        if gain > LEAST_EFFECT * self.ground.span:
            self.kept[each] = (gain, lines)
        else:
            self.unpaid.update(lines)
            if not self.known.issuperset(lines):
                self.kept[each] = (gain, lines)
        self.known.update(lines)

    def line(self, each: Try) -> Place:
        """The first line that only paid tries came to, else the first that no plain answer came to, else the line of the words."""
        if each.text == SLOT:
            return each.place
        lines = self.kept[each][1]
        new = next((line for known in (self.unpaid, self.plain) for line in lines if line not in known), None)
        return each.place if new is None else Place(file=new[0], line=new[1])


def from_source(ground: Ground) -> Result:
    """Answers that are made of the words, patterns and numbers of the grader's source."""
    ground.enter(NAME)
    functions = ground.subject.functions
    found = None if ground.subject.remote else read_source(functions)
    if found is None:
        why = (
            "a server's is not read"
            if ground.subject.remote
            else "it is built in, or in another process"
            if functions
            else "none was given"
        )
        return Result(check=Check(name=NAME, status="skip", evidence=f"the grader's source cannot be read: {why}"))
    tasks = [task for task in ground.tasks if task.key in ground.bases]
    search = _searched(ground, found, tasks[0])
    finalists = _finalists(search)
    rates = {each: rate for each in finalists if (rate := _rate(ground, each, tasks[1:] or tasks)) is not None}
    adjusted = holm([rate.p for rate in rates.values()])
    winners = [
        each
        for each, p in zip(rates, adjusted, strict=True)
        if p is not None and p < 0.05 and _outweighs(ground, each, rates[each], tasks)
    ]
    measured = {
        "tried": search.tried,
        "words": len(found.words),
        "numbers": len(found.numbers),
        "calls that run or open text": {name: place.name for name, place in found.sinks.items()},
        "best": [asdict(rate) for rate in list(rates.values())[:4]],
    }
    read = f"{len(found.words)} words and {len(found.numbers)} numbers of {', '.join(sorted(Path(file).name for file in found.files))}"
    if not winners:
        evidence = f"none of {search.tried} answers made of the grader's source pays ({read})"
        return Result(
            check=Check(name=NAME, status="pass", evidence=evidence, measured=measured), rates=list(rates.values())
        )
    best = winners[0]
    rate, place = rates[best], search.line(best)
    measured["line"] = {"file": place.file, "line": place.line, "text": place.text}
    evidence = f"{best.name} earns {rate.mean:.3g} on {rate.n} tasks, e.g. {rate.example['answer']!r}, because of {place.name}: {place.text}"
    return Result(
        check=Check(name=NAME, status="fail", evidence=evidence, measured=measured),
        rates=[rates[each] for each in winners],
    )


def _searched(ground: Ground, found: Dictionary, task: TextTask) -> _Search:
    """Tries single words first, then what was kept joined with each other, within three seconds."""
    search = _Search(ground=ground, found=found, task=task)
    gold, files = task.gold or "", sorted(found.files)
    for answer in (gold, ground.golds[task.key].another(ground.rng("wrong 0", task)) or "", ""):
        for whole in {task.whole(answer), answer}:
            lines = ground.scorer.traced(task, whole, files)[1]
            search.known.update(lines)
            search.plain.update(lines)
            search.unpaid.update(lines if answer != gold else ())
    started = ground.scorer.spent
    for each in chain(_singles(found, is_number=ground.golds[task.key].number is not None), _bred(search)):
        if ground.scorer.spent - started > _SECONDS or search.tried >= _MOST:
            break
        search.ask(each)
    return search


def _singles(found: Dictionary, *, is_number: bool) -> Iterator[Try]:
    """Every word alone, then with an answer beside or inside it, each as it is and in the form that is asked for."""
    texts: dict[str, Place] = dict(found.words)
    for number, place in found.numbers.items():
        if number == int(number) and 1 < number <= _LONGEST:
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
    for text, place in with_slot.items():
        yield from (Try(text=text, place=place, bare=bare) for bare in (True, False))
    offsets = sorted(number for number in found.numbers if 0 < number <= _LONGEST) if is_number else []
    for text, place in {SLOT: Place(file="", line=0), **with_slot}.items():
        for number in offsets:
            for how in ("+", "-", "*") if number < 1 else ("+", "-"):
                at = place if place.line else found.numbers[number]
                yield Try(text=text, place=at, near=(number, how), bare=text != SLOT)


def _closed(text: str) -> Iterator[str]:
    """The slot inside of what the word opens."""
    if text.startswith("<") and text.endswith(">") and text[1:2].isalpha():
        yield f"{text}{SLOT}</{text[1:-1].split()[0]}>"
    if text.endswith(("{", "[", "(")):
        yield f"{text}{SLOT}{ {'{': '}', '[': ']', '(': ')'}[text[-1]] }"


def _bred(search: _Search) -> Iterator[Try]:
    """Joins two of what was kept, or one with any word."""
    rng = child_rng(search.ground.seed, "audit", "the source")
    words = list(search.found.words.items())
    for _ in range(_BRED):
        kept = list(search.kept)
        if not kept or not words:
            return
        first = rng.choice(kept)
        second = rng.choice(kept) if rng.random() < 0.5 else None
        text, place = (second.text, second.place) if second else rng.choice(words)
        pair = [first.text, text]
        rng.shuffle(pair)
        yield Try(text=rng.choice(_JOINERS).join(pair), place=first.place if second else place, bare=first.bare)


def _filled(ground: Ground, each: Try, task: TextTask, answer: str | None = None) -> str | None:
    """The completion of a try; None if the task has no wrong or near answer for it."""
    gold = ground.golds[task.key]
    if answer is None and SLOT in each.text:
        rng = ground.rng("wrong 0", task)
        answer = gold.another(rng) if each.near is None else _near(gold.number, each.near)
        if answer is None or states(answer, task.gold or ""):
            return None
    return each.completion(task, answer or "")


def _near(gold: str | None, near: tuple[float, str]) -> str | None:
    """A number so far from gold, written as gold is; None if it is the same number, or so near that it may be rounding."""
    try:
        value, places = float(gold or ""), len((gold or "").partition(".")[2])
    except ValueError:
        return None
    size, how = near
    changed = value * (1 + _NEAR * size) if how == "*" else value + _NEAR * size * (1 if how == "+" else -1)
    changed = round(changed, places)
    if changed == value or (places and abs(changed - value) < _FAR * abs(value)):
        return None
    return f"{changed:.{places}f}"


def _finalists(search: _Search) -> list[Try]:
    """The best paid tries, one for each line that pays, the shortest first among equals."""
    paid = {each: gain for each, (gain, _) in search.kept.items() if gain > LEAST_EFFECT * search.ground.span}
    best: dict[Place, Try] = {}
    for each in sorted(paid, key=lambda t: (-round(paid[t], 6), t.near is not None, len(t.text), t.text)):
        best.setdefault(search.line(each), each)
    return list(best.values())[:_JUDGED]


def _rate(ground: Ground, each: Try, tasks: Sequence[TextTask]) -> Rate | None:
    return ground.rate(each.name, _probes(ground, each, tasks[:_TASKS]))


def _probes(ground: Ground, each: Try, tasks: Sequence[TextTask], answer: str | None = None) -> list[Probe]:
    rows = [(task, made) for task in tasks if (made := _filled(ground, each, task, answer)) is not None]
    plain = [(replace(task, before="", after=""), made) for task, made in rows]
    return ground.ask(NAME, each.name, plain)


def _outweighs(ground: Ground, each: Try, rate: Rate, tasks: Sequence[TextTask]) -> bool:
    """Returns True if the try earns more by its form than the right answer adds to it: else it is a bonus for a form.

    A value near gold has to earn all that gold earns: rewards that fall with the distance pay it less.
    """
    some = tasks[1 : 1 + _JUDGED] or tasks
    wrong = [(probe, ground.bases[probe.task.key]) for probe in _probes(ground, each, tasks[1 : 1 + _TASKS] or tasks)]
    if each.near is not None:
        full = [probe.value is not None and probe.value >= base.gold - 1e-6 * ground.span for probe, base in wrong]
        return (wilson(sum(full), len(full)).low or 0.0) > 0.5
    forms = (
        [each.text]
        if SLOT in each.text
        else [each.text.join(form.replace("GOLD", SLOT).split("TRY")) for form in _BESIDE]
    )
    best = max(_mean_with_gold(ground, replace(each, text=form), some) for form in forms)
    earned = sum((probe.value or 0.0) - base.wrong for probe, base in wrong) / len(wrong)
    floor = sum(base.wrong for _, base in wrong) / len(wrong)
    return earned > best - floor - earned + 1e-9


def _mean_with_gold(ground: Ground, each: Try, tasks: Sequence[TextTask]) -> float:
    values = [probe.value or 0.0 for task in tasks for probe in _probes(ground, each, [task], task.gold or "")]
    return sum(values) / max(1, len(values))
