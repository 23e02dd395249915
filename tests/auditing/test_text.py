"""Probes of one-turn graders: what pays without the task, what refuses right answers, and what must not happen to us."""

import json
import os
import random
import re
import time
from collections import Counter
from dataclasses import replace
from datetime import date
from difflib import SequenceMatcher
from fractions import Fraction
from itertools import product

import pytest
from scipy.stats import ttest_1samp

from gradus import environments
from gradus.auditing import AuditSettings, audit_any, run_text_audit
from gradus.auditing.leaks import told_at
from gradus.auditing.records import Check, high_of, low_of
from gradus.auditing.result import verdict_of
from gradus.auditing.text import checks
from gradus.auditing.text.asking import Ground, Log, prepare, with_bases
from gradus.auditing.text.blind import BLIND, REFLEXES
from gradus.auditing.text.gold import Gold, Others, states
from gradus.auditing.text.grader_process import CANARY, Score
from gradus.auditing.text.mutations import WRONG
from gradus.auditing.text.operators import EQUIVALENT
from gradus.auditing.text.paying import (
    blind_answers,
    chosen,
    is_accepted,
    is_refused,
    reflexes,
    right_answers,
    right_of,
    unearned,
    wrong_answers,
    wrong_of,
)
from gradus.auditing.text.rates import Base, Probe, Rate, rate, settled_within
from gradus.auditing.text.run import audit_text
from gradus.auditing.text.scoring import Scorer
from gradus.auditing.text.tasks import TextSubject, TextTask, subject_of
from gradus.core import PolicyError
from gradus.environments.verifiable.from_rows import one_turn
from gradus.rewards import diversity
from gradus.sandbox.command import sandbox_works
from gradus.stats import Interval


def _sums(n=30, prompt="What is {a} + {b}?"):
    rng = random.Random(1)
    pairs = [(rng.randrange(100, 999), rng.randrange(100, 999)) for _ in range(n)]
    return [
        TextTask(key=str(i), prompt=prompt.format(a=a, b=b, gold=a + b), gold=str(a + b))
        for i, (a, b) in enumerate(pairs)
    ]


def _sound(task, answer):
    try:
        return float(Fraction(answer.strip().replace(",", "")) == Fraction(task.gold))
    except (ValueError, ZeroDivisionError):
        return 0.0


def _audit(judge, tasks=None, **options):
    return audit_text(TextSubject(name="sums", grader="g", tasks=tasks or _sums(), judge=judge), **options)


class _Paying:
    """A scorer that asks a grader in this process and keeps what it was asked."""

    limit, hangs, confined = 20.0, 0, False

    def __init__(self, pays):
        self.pays, self.rows = pays, []

    def allow(self, share):
        pass

    def score(self, rows):
        self.rows += rows
        return [self._one(task, answer) for task, answer in rows]

    def fresh(self, rows, confined=None):
        return self.score(rows)

    def _one(self, task, answer):
        try:
            return Score(value=float(self.pays(task, answer)))
        except Exception as raised:
            return Score(error=str(raised))


_CHECKS = {
    "gold": checks.gold,
    "blind answers": blind_answers,
    "reflexes": reflexes,
    "wrong answers": wrong_answers,
    "right answers": right_answers,
    "leaks": checks.leaks,
}


def _check(name, judge, tasks=None):
    """One check of a grader that is asked in this process."""
    subject = TextSubject(name="sums", grader="g", tasks=tasks or _sums(), judge=judge)
    return _CHECKS[name](prepare(subject, _Paying(judge), seed=0))


def _prepared(subject, **options):
    """The ground of a grader that is asked in its own process, and the scorer to close."""
    scorer = Scorer(subject, **options)
    return prepare(subject, scorer, seed=0), scorer


def _hostile(judge):
    ground, scorer = _prepared(TextSubject(name="sums", grader="g", tasks=_sums(), judge=judge), seconds=0.3)
    checks.ask_hostile(ground)
    scorer.close()
    return checks.hostile(ground)


def _status(result):
    return {check.name: check.status for check in result.checks}


def test_a_sound_grader_passes_without_declarations():
    result = _audit(_sound)
    assert set(_status(result).values()) == {"pass", "skip"} or set(_status(result).values()) == {"pass"}
    assert verdict_of(result.checks) == "pass"


@pytest.mark.parametrize(
    ("judge", "told"),
    [
        (lambda task, answer: float(abs(float(Fraction(answer)) - int(task.gold)) < 2), "fails on"),
        (lambda task, answer: float(str(eval(answer, {})) == task.gold), "executes the answer"),
        (lambda task, answer: time.sleep(9 if len(answer) > 9000 else 0) or _sound(task, answer), "hangs"),
        (lambda task, answer: float(re.sub(r"(\s+)+$", "", answer + "x" if len(answer) > 4000 else answer) == task.gold), "hangs"),
        (lambda task, answer: (len(answer) > 9 and answer.count("<tool_call>") > 99 and time.sleep(9)) or _sound(task, answer), "hangs"),
        (lambda task, answer: float(_same_json(answer, task.gold)), "RecursionError"),
        (
            lambda task, answer: _sound(task, answer) if len(answer) < 50_000 else 1 / 0,
            f"the grader fails on {'a' * 40!r}... (100,000 characters) (",
        ),
    ],
)  # fmt: skip
def test_a_grader_that_fails_hangs_or_runs_code_is_found_with_the_answer_that_shows_it(judge, told):
    if told == "executes the answer" and not sandbox_works():
        pytest.skip("no sandbox on this machine")
    hostile = _hostile(judge)
    assert hostile.status == "fail"
    assert told in hostile.evidence


def test_what_only_denies_a_right_answer_is_lenient_and_fails_nothing():
    """Six of twelve sound graders by others failed because they accept a denial of an answer that one must know already."""

    def last_number(task, answer):
        numbers = re.findall(r"-?\d+", answer)
        return float(bool(numbers) and numbers[-1] == task.gold)

    check = _check("wrong answers", last_number)
    assert check.status == "pass", check.evidence
    notes = [note for note in check.notes if note.kind == "lenient"]
    assert "the right answer denied" in [note.what for note in notes]
    assert all(last_number(replace(_sums(1)[0], gold=note.gold), note.completion) == note.reward for note in notes)


def test_tasks_of_which_nobody_knows_a_right_answer_are_left_open():
    result = _audit(_sound, [replace(task, gold=None) for task in _sums()])
    assert _status(result)["gold"] == "unresolved"


def test_an_answer_that_was_not_asked_for_want_of_time_is_asked_later():
    scorer = Scorer(TextSubject(name="s", grader="g", tasks=_sums(1), judge=_sound))
    row = (scorer.subject.tasks[0], scorer.subject.tasks[0].gold)
    scorer.allow(0.0)
    assert scorer.score([row])[0].skipped
    scorer.allow(1.0)
    assert scorer.score([row, row])[1].value == 1.0
    scorer.close()


def test_a_cache_by_question_is_found_by_asking_in_another_order():
    seen = {}

    def stale(task, answer):
        return seen.setdefault(task.key, _sound(task, answer))

    sanity = next(each for each in _audit(stale).checks if each.name == "sanity")
    assert sanity.status == "fail"


def test_the_gold_answer_in_the_prompt_is_a_leak_and_a_label_or_an_option_is_none():
    """At the end of the prompt, behind a number and a period, it was not found."""
    for prompt in ("Key: {gold}. What is {a} + {b}?", "Add {a} to {b}. {gold}", "Add {a} to {b}. {gold} (key {a})"):
        assert _check("leaks", _sound, _sums(prompt=prompt)).status == "fail"
    rng = random.Random(2)
    options = [rng.sample(range(100, 999), 4) for _ in range(40)]
    listed = [f"Which is largest? {' '.join(map(str, each))}" for each in options]
    letters = [f"{n}: which? {a} or {b}" for n, (a, b, *_) in enumerate(options)]
    for texts, golds in (
        ([f"Answer true or false: is {i} odd?" for i in range(40)], ["true", "false"] * 20),
        ([f"Is {n} even, yes or no?" for n in range(40)], ["no" if n % 4 else "yes" for n in range(40)]),
        (listed, [str(max(each)) for each in options]),
        (letters, [str(rng.choice(each[:2])) for each in options]),
    ):
        assert told_at(texts, [[gold] for gold in golds]) is None


def test_the_answer_that_pays_is_noted():
    (note,) = _check("blind answers", lambda task, answer: "reward" in answer.lower() or _sound(task, answer)).notes
    assert (note.kind, note.reward, "reward" in note.completion.lower()) == ("exploit", 1.0, True)


def test_an_example_is_the_answer_without_the_form_that_its_task_asks_for():
    """It was put into it a second time to be shortened."""
    tasks = [replace(task, before="<answer>", after="</answer>") for task in _sums()]
    judge = lambda task, answer: answer in (task.whole(task.gold), "<answer>yes</answer>")  # noqa: E731
    assert _check("blind answers", judge, tasks).measured["best"][0]["example"]["answer"] == "yes"


def test_each_check_says_how_many_answers_it_tried_itself():
    """Both gave the number of blind answers and reflexes together."""
    for name, operators in (("reflexes", REFLEXES), ("blind answers", BLIND)):
        assert _check(name, _sound).measured["tried"] <= len(operators)


@pytest.mark.parametrize(
    ("judge", "tasks", "operator"),
    [
        (
            lambda task, answer: answer.strip().lower() == task.gold.lower(),
            lambda: _tasks([f"Town{i:02d}ville" for i in range(30)], "Capital {}?"),
            "other case",
        ),
        (
            lambda task, answer: _as_set(task, answer),
            lambda: [
                replace(task, prompt=f"Some words are also words in reverse. {task.prompt}")
                for task in _words_with_e(order=" once each")
            ],
            "neighbors swapped",
        ),
        (  # the question names no key
            lambda task, answer: _reads("name", "age")(task, answer),
            lambda: _records("Describe number"),
            "another value of the second key",
        ),
    ],
)
def test_what_no_rule_settles_is_for_a_person_and_fails_nothing(judge, tasks, operator):
    check = _check("wrong answers", judge, tasks())
    assert check.status == "pass", check.evidence
    assert operator in {row["operator"] for row in check.review}


def _dies(task, answer):
    os._exit(3)


def test_a_grader_that_ends_its_process_at_its_first_call_leaves_nothing_open():
    before = len(os.listdir("/proc/self/fd"))
    scorer = Scorer(TextSubject(name="s", grader="g", tasks=_sums(1), judge=_dies))
    scores = scorer.score([(scorer.subject.tasks[0], str(number)) for number in range(3)])
    assert {score.error for score in scores} == {"the process died"}
    assert len(os.listdir("/proc/self/fd")) == before
    scorer.close()


@pytest.mark.usefixtures("many_open_files")
def test_a_grader_is_asked_by_a_process_with_many_open_files():
    scorer = Scorer(TextSubject(name="s", grader="g", tasks=_sums(1), judge=_sound))
    (score,) = scorer.score([(scorer.subject.tasks[0], "none")])
    scorer.close()
    assert (score.value, score.error) == (0.0, None)


def test_an_executed_answer_cannot_write_outside_the_sandbox(tmp_path):
    scorer = Scorer(TextSubject(name="s", grader="g", tasks=_sums(2), judge=lambda task, answer: eval(answer) and 1.0))
    if not sandbox_works():
        pytest.skip("no sandbox on this machine")
    target = tmp_path / "written"
    task = scorer.subject.tasks[0]
    rows = [(task, f"open({str(target)!r}, 'w')"), (task, f"open('{CANARY}', 'w')")]
    outside, canary = scorer.fresh(rows, confined=True)
    assert "Read-only file system" in outside.error
    assert canary.executed
    assert not target.exists()


def test_two_labels_in_a_file_pass_and_the_same_audit_gives_the_same_bytes(tmp_path):
    rng = random.Random(0)
    path = tmp_path / "rows.jsonl"
    rows = [{"question": f"Is {n} even?", "answer": "no" if n % 2 else "yes"} for n in rng.sample(range(10_000), 400)]
    path.write_text("\n".join(map(json.dumps, rows)))
    spec = environments.load(f"jsonl:{path}")
    results = [run_text_audit(spec, spec.grader("correctness"), AuditSettings(episodes=24)) for _ in range(2)]
    assert results[0].verdict == "pass", [(c.name, c.evidence) for c in results[0].checks if c.status != "pass"]
    first, second = (json.dumps(result.to_json(), allow_nan=False) for result in results)
    assert first == second


def test_paying_for_form_alone_fails_on_as_many_tasks_as_were_asked_for():
    """They were always 48, whatever --episodes said."""
    spec = environments.load("arithmetic")
    result = audit_any(spec, spec.grader("format-only"), AuditSettings(episodes=20))
    assert (result.verdict, result.episodes) == ("fail", 20)


@pytest.mark.parametrize(
    ("share", "status", "noted"), [(1 / 3, "pass", False), (0.45, "pass", True), (0.6, "fail", False)]
)
def test_a_form_is_a_flaw_if_it_earns_more_than_being_right_adds(share, status, noted):
    """A third is what `composed` pays; 0.43 failed a sound grader of five small rewards, whose right answer adds 0.57."""

    def judge(task, answer):
        right = _sound(task, answer)
        readable = answer.strip().replace(",", "").lstrip("-").isdigit()
        return share * max(right, float(readable)) + (1 - share) * right

    check = _check("blind answers", judge)
    assert check.status == status
    assert any(note.kind == "lenient" and note.reward == share for note in check.notes) == noted


_PEOPLE, _THINGS, _PLACES = ("Luis", "Sana", "Emil"), ("kettle", "lantern", "loom"), ("Oslo", "Perth", "Hanoi")


def _same_words(task, answer):
    """F1 of words."""
    said, gold = (Counter(re.findall(r"\w+", text)) for text in (answer, task.gold))
    return 2 * (said & gold).total() / (said.total() + gold.total())


def test_a_reward_for_the_words_that_are_right_is_no_flaw():
    """Another task's answer has half of its words, those of the form and some by luck, and earns half."""
    told = list(product(_PEOPLE, _THINGS, _PLACES))
    tasks = _tasks([f"{who} repaired 28 old {what}s in {place} before noon." for who, what, place in told], "note {}")
    assert {_check(name, _same_words, tasks).status for name in ("gold", "blind answers", "reflexes")} == {"pass"}


def test_an_open_question_leaves_the_verdict_open():
    assert verdict_of([Check(name="a", status="unresolved", evidence="")]) == "unresolved"
    assert verdict_of([Check(name="signal", status="unresolved", evidence="")]) == "pass"


@pytest.mark.parametrize(
    ("before", "after", "form"),
    [("", "", "bare"), ("#### ", "", "after ####"), ("<answer>", "</answer>", "as declared")],
)
def test_a_sound_grader_is_asked_in_the_form_that_it_rewards(before, after, form):
    tasks = [replace(task, before="<answer>", after="</answer>") for task in _sums()]

    def judge(task, answer):
        inner = answer.strip().removeprefix(before).removesuffix(after)
        return float(answer.strip() == f"{before}{inner}{after}" and inner.strip() == task.gold)

    result = _audit(judge, tasks)
    assert verdict_of(result.checks) == "pass", [(c.name, c.evidence) for c in result.checks if c.status != "pass"]
    sanity = next(each for each in result.checks if each.name == "sanity")
    assert sanity.measured["form"] == form
    assert ("<answer>" in sanity.evidence) == (form != "as declared")


_LAYOUT = ("<reasoning>\nso\n</reasoning>\n<answer>\n", "\n</answer>\n")


def _by_layout(share):
    """As GRPO demos pay: for the answer in the last tags, and, by parts, for lines of their own for all four tags."""

    def judge(task, answer):
        lines = ("<reasoning>\n", "\n</reasoning>\n", "\n<answer>\n", "\n</answer>\n")
        form = sum(answer.count(line) == 1 for line in lines) / len(lines)
        right = answer.split("<answer>")[-1].split("</answer>")[0].strip() == task.gold
        return share * form + (1 - share) * right

    return judge


@pytest.mark.parametrize(("share", "status"), [(0.3, "pass"), (0.7, "fail")])
def test_what_the_form_earns_does_not_hang_on_the_form_that_the_tasks_declare(share, status):
    """With half for the form the reward passed where gold was declared bare and failed where it was declared in full."""
    layouts = [("", ""), ("<reasoning> known </reasoning> <answer> ", " </answer>"), _LAYOUT]
    for before, after in layouts:
        tasks = [replace(task, before=before, after=after) for task in _sums()]
        assert _check("blind answers", _by_layout(share), tasks).status == status, (before, after)


def test_a_slow_grader_is_asked_on_fewer_tasks_and_the_audit_says_so():
    def slow(task, answer):
        time.sleep(0.002)
        return _sound(task, answer)

    result = _audit(slow, limit=0.002 * 55 * 30 / 3)
    found = {check.name: check for check in result.checks}
    assert result.tasks == 12
    assert "12 of 30 tasks, because the grader is slow" in found["sanity"].evidence


def test_a_slow_grader_is_cut_off_and_what_was_not_asked_is_unresolved():
    def slow(task, answer):
        time.sleep(0.03)
        return _sound(task, answer)

    before = time.monotonic()
    result = _audit(slow, limit=2.0)
    assert time.monotonic() - before < 20
    blind = next(each for each in result.checks if each.name == "blind answers")
    assert blind.status == "unresolved"
    assert "were not asked" in blind.evidence
    assert verdict_of(result.checks) == "unresolved"


def test_a_grader_that_hangs_is_not_waited_for():
    def hanging(task, answer):
        while "(" in answer:
            pass
        return _sound(task, answer)

    before = time.monotonic()
    result = _audit(hanging, seconds=0.3)
    assert time.monotonic() - before < 60
    assert _status(result)["hostile answers"] == "fail"


def _made(operator, gold, prompt=""):
    task = TextTask(key="0", prompt=prompt, gold=gold)
    others = Others(golds=[gold, *map(str, range(100, 140))])
    return [WRONG[operator].make(Gold(task=task, others=others), random.Random(seed)) for seed in range(20)]


def test_a_gold_answer_that_stands_in_a_tag_is_taken_from_between_the_tags(tmp_path):
    """Of `a` the last was that of `</answer>`, so that no other answer to the task could be read."""
    golds = ["a", "e", "an", "answer", "12"]
    rows = [{"question": f"{number}", "answer": golds[number % 5]} for number in range(60)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    spec = environments.load(f"jsonl:{tmp_path / 'rows.jsonl'}")
    tasks = subject_of(spec, spec.grader(), tasks=30).tasks
    assert {task.gold for task in tasks} == set(golds)
    assert {(task.before, task.after) for task in tasks} == {("<reasoning> known </reasoning> <answer> ", " </answer>")}


def test_what_a_question_may_leave_open_is_no_wrong_answer():
    assert all(made is None for made in _made("the right answer denied", "1 0\n0 1"))  # nobody denies a grid
    assert all(made is not None for made in _made("the right answer denied", "352"))
    assert all(made is None for made in _made("one number twice", "A=1,B=2,C=3"))  # said twice, it is still so
    assert _made("one number twice", "4, 5, 6")[0] == ("4, 5, 6, 4",)
    assert _made("an element too many", "7 4\n6 9\n4 7")[0][0] == "7 4\n6 9\n4 7\n999983 999983"
    for (answer,) in _made("one digit changed", "0.0936000013830"):  # of what rounding keeps
        assert abs(float(answer) / 0.093600001383 - 1) > 0.01


def _squares(n=30):
    rng = random.Random(3)
    sets = [sorted({f"{rng.choice('abcdefgh')}{rng.randrange(1, 9)}" for _ in range(6)}) for _ in range(n)]
    return [TextTask(key=str(i), prompt=f"position {i}", gold=" ".join(each)) for i, each in enumerate(sets)]


def _by_pattern(whole):
    def judge(task, answer):
        said, gold = (set(re.findall(r"\b[a-h][1-8]\b", text)) for text in (answer, task.gold))
        return float(said == gold if whole else said >= gold)

    return judge


def _two_that_sum(task, answer):
    said = [int(each) for each in re.findall(r"\d+", answer)]
    return len(said) == 2 and sum(said) == int(task.prompt.split()[-1])


def _two_odd_numbers():
    rng = random.Random(5)
    pairs = [(rng.randrange(2, 90), rng.randrange(2, 90)) for _ in range(30)]
    return [
        TextTask(key=str(i), prompt=f"Two odd numbers with sum {a + b}", gold=f"{a} {b}")
        for i, (a, b) in enumerate(pairs)
    ]


def _networks():
    golds = [f"10.{i}.{16 * (i % 5)}.0" for i in range(30)]
    return [
        TextTask(key=str(i), prompt=f"What is the network of {gold[:-1]}{7 + i}?", gold=gold)
        for i, gold in enumerate(golds)
    ]


def _one_step_more(task, answer):
    said, gold = answer.split(), task.gold.split()
    return said[: len(gold)] == gold and len(said) <= len(gold) + 1


def _object_in_the_text(task, answer):
    found = re.search(r"\{.*\}", answer, re.DOTALL)
    return bool(found) and _same_json(found[0], task.gold)


def _same_json(one, other):
    try:
        return json.loads(one) == json.loads(other)
    except ValueError:
        return False


def _grids():
    return _tasks(["\n".join(f"{i} {j} a b c" for j in range(12)) for i in range(20)], "grid {}")


def test_an_element_too_many_is_one_that_other_answers_have():
    golds = ["b a c", "c a b", "a c b"]  # all answers have the same elements: there is no other
    task = TextTask(key="0", prompt="", gold=golds[0])
    assert WRONG["an element too many"].make(Gold(task=task, others=Others(golds=golds)), random.Random(0)) is None


_STOPPED = "The {} in the {} stopped because of a loose {}."


def _share_of_words(task, answer):
    said, gold = ([w for w in re.findall(r"[a-z]+", text.lower()) if len(w) > 2] for text in (answer, task.gold))
    both = len([word for word in gold if word in said])
    return float(2 * both >= 0.9 * (len(said) + len(gold)))


def test_a_sentence_is_no_list_of_words():
    """Its article was an element that had been dropped, so that every grader of prose that allows for one word failed."""
    rng = random.Random(4)
    words = (("fan", "valve", "pump", "lift"), ("yard", "lab", "cellar"), ("cable", "belt", "screw"))
    tasks = _tasks([_STOPPED.format(*map(rng.choice, words)) for _ in range(40)], "log {}")
    found = _check("wrong answers", _share_of_words, tasks)
    assert found.status == "pass", found.evidence
    found = _check("wrong answers", lambda task, answer: SequenceMatcher(None, answer, task.gold).ratio() > 0.6, tasks)
    assert found.status == "fail"
    assert found.measured["half of its own words replaced"]["low"] > 0.1
    dropped = _made("one element dropped", tasks[0].gold, "Put the words in order.")
    assert None not in dropped  # where the order of words is the task they are elements


def _tasks(golds, prompt="question {}"):
    return [TextTask(key=str(i), prompt=prompt.format(i), gold=gold) for i, gold in enumerate(golds)]


_DATES = [f"20{20 + i % 5}-{1 + i % 12:02d}-{1 + i * 7 % 28:02d}" for i in range(30)]
_MONEY = [f"-${11 + i * 37}.{10 + i}" for i in range(30)]
_FORMULAS = [f"C{2 + i % 7}H{3 + i * 5 % 6}O{2 + i % 3}" for i in range(30)]
_WORDS = [f"{a}{b}{c}" for a in ("bro", "ste", "pla") for b in ("ad", "in", "um") for c in ("est", "er", "ly")]


def _near_day(task, answer):
    try:
        one, other = (date.fromisoformat(text.strip()) for text in (answer, task.gold))
    except ValueError:
        return 0.0
    return float(abs((one - other).days) <= 3)


def _near_money(task, answer):
    said = re.fullmatch(r"-\$(\d+\.\d\d)", answer.strip())
    return float(said is not None and abs(float(said[1]) - float(task.gold[2:])) <= 1.5)


def _anagram(task, answer):
    return float(sorted(answer.strip()) == sorted(task.gold))


def _elements_alone(task, answer):
    said, gold = ("".join(re.findall(r"[A-Z]", text)) for text in (answer, task.gold))
    return float(said == gold and re.fullmatch(r"(?:[A-Z]\d+)+", answer.strip()) is not None)


def _same_parts(task, answer):
    return float(sorted(answer.strip().split("-")) == sorted(task.gold.split("-")))


def test_the_other_unit_is_one_that_answers_have_and_surely_another():
    golds = [f"{i + 2} {unit}" for i, unit in enumerate(["mm", "m", "meters", "kg"] * 6)]
    made = WRONG["another unit"].make
    units = {
        made(Gold(task=TextTask(key="0", prompt="", gold="7 mm"), others=Others(golds=golds)), random.Random(i))[0]
        for i in range(20)
    }
    assert units == {"7 m", "7 meters"}
    (made_of_m,) = made(
        Gold(task=TextTask(key="0", prompt="", gold="7 m"), others=Others(golds=golds)), random.Random(0)
    )
    assert made_of_m == "7 mm", "meters are the same"


def test_a_wrong_answer_that_is_accepted_now_and_then_is_named_and_left_open():
    """A kind accepted in a third of a mixed set was not even told."""
    probes = {"off by one": _answered("off by one", [1.0] * 8 + [0.0] * 16, answer="4")}
    found = wrong_of(_ground(24), probes)
    assert found.status == "unresolved"
    assert "off by one: accepted in 8 of 24" in found.evidence


def _arrivals(n=30):
    rng = random.Random(3)
    times = [(rng.randrange(24), rng.randrange(60), rng.randrange(1, 20)) for _ in range(n)]
    return [
        TextTask(
            key=str(i),
            prompt=f"Train {i}: when and where, on a clock of 24 hours?",
            gold=f"{h:02}:{m:02}, platform {p}",
        )
        for i, (h, m, p) in enumerate(times)
    ]


def _by(read):
    """A grader that compares what it reads; what it cannot read is wrong."""

    def judge(task, answer):
        match = re.fullmatch(r"\s*(\d\d?):(\d\d), platform (\d+)\s*", answer, re.ASCII)
        gold = re.findall(r"\d+", task.gold)
        return float(match is not None and read(*map(int, match.groups())) == read(*map(int, gold)))

    return judge


def _records(prompt, n=30):
    golds = [
        {"name": f"{['Ann', 'Bo', 'Cy', 'Di'][i % 4]}", "city": f"{['Oslo', 'Rome', 'Lima'][i % 3]}", "age": 20 + i % 7}
        for i in range(n)
    ]
    return [TextTask(key=str(i), prompt=f"{prompt} {i}", gold=json.dumps(gold)) for i, gold in enumerate(golds)]


def _reads(*keys):
    def judge(task, answer):
        try:
            said, gold = json.loads(answer), json.loads(task.gold)
        except ValueError:
            return 0.0
        return float(isinstance(said, dict) and all(said.get(key) == gold[key] for key in keys or gold))

    return judge


def test_a_long_text_in_an_object_may_be_left_out():
    gold = json.dumps({"answer": 4, "why": "because two and two are four"})
    task, others = (
        TextTask(key="0", prompt="", gold=gold),
        Others(golds=[gold, gold.replace("4", "5").replace("two", "six")]),
    )
    assert WRONG["another value of the last key"].make(Gold(task=task, others=others), random.Random(0)) is None
    assert {WRONG["one key left out"].make(Gold(task=task, others=others), random.Random(i)) for i in range(9)} == {
        ('{"why": "because two and two are four"}',)
    }


def test_another_number_in_an_answer_is_another_value_far_away_and_only_where_answers_have_one_form():
    golds = [f"2024-0{month}-1{day}" for month in range(1, 10) for day in range(10)]
    task, others = TextTask(key="0", prompt="", gold="2024-03-15"), Others(golds=golds)
    assert (
        WRONG["another first number in it"].make(Gold(task=task, others=others), random.Random(0)) is None
    )  # every answer has this year
    months = {
        WRONG["another second number in it"].make(Gold(task=task, others=others), random.Random(i))[0][5:7]
        for i in range(20)
    }
    assert months <= {"06", "07", "08", "09"}
    mixed = Others(golds=["2024-03-15", *(f"{'x ' * n}y" for n in range(8))])
    assert WRONG["another second number in it"].make(Gold(task=task, others=mixed), random.Random(0)) is None


@pytest.mark.parametrize(
    ("operator", "gold", "prompt", "wrong"),
    [
        ("half a day off", "15:20", "", "03:20"),
        ("half a day off", "3:05", "", "15:05"),
        ("half a day off", "at 3:20 PM", "", "at 3:20 AM"),
        ("half a day off", "3:20 p.m.", "", "3:20 a.m."),
        ("half a day off", "03:20", "It left at 9 am. When did it arrive?", None),  # it may mean either half
        ("half a day off", "ratio 3:200", "", None),
        ("half a day off", "1:15:20", "", "13:15:20"),
        ("the first half of it", "14 km", "How far?", None),  # a number that lost its unit may still be right
        ("the first half of it", "1234 km", "How far?", "123"),
        ("the first half of it", "Paris", "How far?", "Pa"),
        ("one word twice", "red, blue", "Name the colors.", None),  # said twice it may still be so
        ("one word twice", "1 + 2", "Which of these?", None),
        ("one word twice", "a b", "Make a list.", None),
        ("another unit", "12 km", "", "12 kg"),
        ("a unit that nobody asked for", "12 km", "", None),  # a person was asked about it under another name
        ("another sign", "0", "", None),
    ],
)
def test_what_is_made_wrong_is_surely_wrong(operator, gold, prompt, wrong):
    assert set(_made(operator, gold, prompt)) == {wrong and (wrong,)}


def test_gold_that_earns_nothing_is_not_called_fully_paid():
    sanity = next(each for each in _audit(lambda task, answer: 0.0).checks if each.name == "sanity")
    assert "gold earns 0.000, no more than other answers, on 30 tasks" in sanity.evidence


def test_the_time_of_the_environments_own_judge_is_not_the_graders():
    """Math-Verify judged each answer of the audit besides, and a sound grader of lists was said to hang."""
    asked = []

    def sound(completions, answer, **columns):
        return [float(text.strip() == gold) for text, gold in zip(completions, answer, strict=True)]

    rows = [{"question": f"Sort [{n}, 1]", "answer": f"[1, {n}]"} for n in range(2, 42)]
    spec = one_turn(rows, [sound], judge=lambda row, text: asked.append(text) or 1.0)
    subject = subject_of(spec, spec.grader("rewards"), tasks=12)
    first = subject.tasks[0]
    assert (subject.judge(first, first.gold), subject.judge(first, "[]")) == (1.0, 0.0)
    assert asked == []
    scored = subject_of(spec, spec.grader("score"), tasks=12)
    assert scored.judge(scored.tasks[0], "[]") == 1.0
    assert asked == ["[]"]


@pytest.mark.parametrize(
    ("judge", "check"),
    [
        (lambda task, answer: answer == "unknown" and int(task.gold) % 4 == 0, "blind answers"),
        (lambda task, answer: answer == f"-{task.gold}" and int(task.gold) % 13 < 7, "wrong answers"),
    ],
)
def test_what_is_not_known_says_how_many_tasks_would_settle_it(judge, check):
    found = _check(check, lambda task, answer: judge(task, answer) or _sound(task, answer), _sums(48))
    assert found.status == "unresolved", found.evidence
    assert re.search(r"about \d+ tasks \(--episodes\) would settle it", found.evidence)


def test_right_answers_that_are_refused_now_and_then_are_named():
    """Refusals passed without a word unless they were more than half. They are strict: no run can exploit them."""

    def picky(task, answer):
        return _sound(task, answer) if int(task.gold) % 3 else float(answer == task.gold)

    def unquoted(task, answer):
        quoted = '"' in answer and int(task.gold) % 3 == 0
        return 0.0 if quoted else _sound(task, answer.strip('"'))

    for judge, form, completion in ((picky, "a space at the end", r"\d+ "), (unquoted, "in quotes", r'"\d+"')):
        right = _check("right answers", judge)
        assert right.status == "pass"
        (note,) = [each for each in right.notes if each.what == f"refused {form}"]
        assert (note.kind, note.reward) == ("strict", 0.0)
        assert re.fullmatch(completion, note.completion)
        assert re.fullmatch(r"\d of 16", note.share)


def _words_with_e(n=40, order=" in any order"):
    rng = random.Random(5)
    words = [
        "apple",
        "pear",
        "plum",
        "fig",
        "kiwi",
        "lime",
        "mango",
        "grape",
        "peach",
        "cherry",
        "melon",
        "berry",
        "olive",
        "date",
    ]
    drawn = [rng.sample(words, 7) for _ in range(n)]
    return [
        TextTask(
            key=str(i),
            prompt=f"{i}: which words of this list have the letter e: {' '.join(each)}? Write them{order}, with commas.",
            gold=", ".join(word for word in each if "e" in word),
        )
        for i, each in enumerate(drawn)
    ]


def _as_set(task, answer):
    given = [word.strip() for word in answer.split(",")]
    return float(sorted(given) == sorted(task.gold.split(", ")))


def _within(tolerance, unit):
    """A grader of numbers with a unit that allows for a share of the right one."""

    def judge(task, answer):
        match = re.fullmatch(rf"\s*(-?\d+){unit}\s*", answer, re.ASCII)
        gold = int(task.gold.split()[0])
        return match is not None and abs(int(match[1]) - gold) <= tolerance * gold

    return judge


def _exact(task, answer):
    return answer.strip() == task.gold


def _weights(unit):
    return lambda: _tasks([f"{7000 + 431 * i}{unit}" for i in range(30)], "weigh {}")


def _named_records():
    return _records("Fill the fields name, city, age.")


_WRONG = "wrong answers"


@pytest.mark.parametrize(
    ("name", "judge", "tasks", "told"),
    [
        ("blind answers", lambda task, answer: bool(answer), _sums, "' '"),
        ("blind answers", lambda task, answer: "nan" in answer or _sound(task, answer), _sums, "nan"),
        (
            "blind answers",
            lambda task, answer: task.gold.startswith(answer.strip()) and "people" in answer,
            lambda: _tasks([f"SELECT name FROM people WHERE age > {i + 20}" for i in range(30)]),
            "what all golds begin with",
        ),
        (
            "reflexes",
            lambda task, answer: answer.strip().startswith(task.gold[:4]) and answer.count(".") == 3,
            _networks,
            "the first place of the question in the gold's form",
        ),
        ("reflexes", _two_that_sum, _two_odd_numbers, "else 0"),  # of the question's number and a constant
        (_WRONG, lambda task, answer: task.gold in answer, _sums, " or "),
        (_WRONG, _one_step_more, _squares, None),  # a grader of jugs takes one more move behind the solution
        (_WRONG, _by_pattern(True), _squares, None),
        # A square was q999983, which a grader that reads squares takes for a word beside them.
        (_WRONG, _by_pattern(False), _squares, ""),
        (_WRONG, _object_in_the_text, lambda: _records("Give name and age.", n=24), None),
        (_WRONG, _near_day, lambda: _tasks(_DATES), "a day off"),
        (_WRONG, _same_parts, lambda: _tasks(_DATES), "day and month exchanged"),
        (_WRONG, _near_money, lambda: _tasks(_MONEY), "off by one"),
        (_WRONG, _elements_alone, lambda: _tasks(_FORMULAS), "another digit in a word"),
        (_WRONG, _anagram, lambda: _tasks(_WORDS), "a word backwards"),
        *((_WRONG, _exact, lambda golds=golds: _tasks(golds), None) for golds in (_DATES, _MONEY, _FORMULAS, _WORDS)),
        # What pays in parts accepts no answer that lost its part.
        (_WRONG, lambda task, answer: task.gold in answer and len(task.gold) / len(answer), _grids, None),
        (_WRONG, lambda task, answer: answer.startswith(task.gold), _grids, ""),
        # A number was changed only if it was the whole answer.
        (_WRONG, _by(lambda hour, minute, platform: (hour % 12, minute, platform)), _arrivals, "half a day off"),
        (_WRONG, _by(lambda hour, minute, platform: (minute, platform)), _arrivals, "another first number in it"),
        (_WRONG, _by(lambda hour, minute, platform: (hour, platform)), _arrivals, "another second number in it"),
        (_WRONG, _by(lambda hour, minute, platform: (hour, minute)), _arrivals, "another last number in it"),
        (_WRONG, _by(lambda hour, minute, platform: (hour, minute, platform)), _arrivals, None),
        # Of 11000 g a number was taken from another task alone, too far away for any tolerance.
        (_WRONG, _within(0.2, ""), _weights(""), ""),
        (_WRONG, _within(0.2, " g"), _weights(" g"), ""),
        (_WRONG, _within(0.0, " g"), _weights(" g"), None),
        # A grader of JSON that left out a field of words passed in silence.
        (_WRONG, _reads("city", "age"), _named_records, "another value of the first key"),
        (_WRONG, _reads("name", "age"), _named_records, "another value of the second key"),
        (_WRONG, _reads("name", "city"), _named_records, "another value of the last key"),
        (_WRONG, _reads(), _named_records, None),
        (
            _WRONG,
            lambda task, answer: {word.strip() for word in answer.split(",")} == set(task.gold.split(", ")),
            lambda: _words_with_e(),
            "one word",
        ),
        (_WRONG, _as_set, lambda: _words_with_e(), None),
    ],
)
def test_a_flaw_is_found_with_the_answer_that_shows_it_and_a_sound_grader_has_none(name, judge, tasks, told):
    check = _check(name, judge, tasks())
    assert check.status == ("pass" if told is None else "fail"), check.evidence
    assert (told if told is not None else "none of") in check.evidence


@pytest.mark.parametrize(
    ("question", "demanded"),
    [
        ("Put the numbers 40 12 7 33 in order from smallest to largest.", True),
        ("Put the numbers 4.5 1.5 2.5 in descending order.", True),
        ("Sort these words: b a c", True),
        ("Reverse the list: b a c", True),
        ("Sort: 3 1 2", True),
        ("Output the numbers sorted in ascending order.", True),
        ("Write these words in the opposite order: b a c", True),
        ("List the words alphabetically.", True),
        ("Name the rivers of France in order of length.", True),
        ("Six of these words are also words when read in reverse. Name the six: stop pots", False),
        ("Name the words that are words when read in reverse order.", False),
        ("Which of these lists are increasing? Answer with their letters.", False),
        ("Answer with the letters of the lists that are in ascending order.", False),
        ("You get a list of numbers sorted in ascending order. Which are prime?", False),
        ("In order to win, name three moves.", False),
        ("Sort out the primes and name them in no particular order.", False),
    ],
)
def test_neighbors_may_not_be_swapped_where_the_question_demands_an_order(question, demanded):
    """Single words such as "reverse" were taken for a demand, and sound graders of sets failed."""
    task = TextTask(key="0", prompt=question, gold="1, 2, 3")
    assert WRONG["neighbors swapped"].is_settled(task.prompt) == demanded


@pytest.mark.parametrize(
    ("gold", "made"),
    [("yes", " yes"), ("def f(x): return x", None), ("import os\nprint(os.sep)\n", None), ("a:\n  b: 1", None)],
)
def test_a_space_before_it_is_the_same_answer_where_indents_mean_nothing(gold, made):
    """Before a program it is Python's IndentationError, so that sound graders of programs failed."""
    task = TextTask(key="0", prompt="", gold=gold)
    assert EQUIVALENT["a space before it"][0](Gold(task=task, others=Others(golds=[gold])), random.Random(0)) == made


@pytest.mark.parametrize(
    "operator", ["an element too many", "one element dropped", "right among wrong lines, in both orders"]
)
def test_lines_of_a_program_are_no_elements(operator):
    """A line behind ``return`` does nothing, and a second function beside the right one does no harm."""
    golds = [f"def f{n}(x):\n    y = x + {n}\n    return y" for n in range(4)]
    task = TextTask(key="0", prompt="", gold=golds[0])
    assert WRONG[operator].make(Gold(task=task, others=Others(golds=golds)), random.Random(0)) is None


@pytest.mark.parametrize(
    ("before", "after", "pattern"),
    [("<think>so</think>\n<answer>", "</answer>", r"<answer>(.*?)</answer>"), ("\\boxed{", "}", r"\\boxed\{(.*?)\}")],
)
@pytest.mark.parametrize(
    ("reads", "status"), [(any, "fail"), (lambda rights: len(rights) == 1 and rights[0], "pass"), (lambda r: r and r[-1], "pass")]
)  # fmt: skip
def test_any_of_two_answer_blocks_is_found(before, after, pattern, reads, status):
    def judge(task, answer):
        return bool(reads([text.strip() == task.gold for text in re.findall(pattern, answer, re.DOTALL)]))

    wrong = _check("wrong answers", judge, [replace(task, before=before, after=after) for task in _sums()])
    assert wrong.status == status, wrong.evidence
    assert ("in two blocks" in wrong.evidence) == (status == "fail")


def _unreachable(task, answer):
    raise PolicyError("Connection error.")


def test_a_judge_that_cannot_be_reached_is_said_to_be_so_and_no_grader_is_judged_by_it():
    """The tasks were few "because the grader is slow", hostile answers passed, and gold was said to earn nothing."""
    subject = TextSubject(name="sums", grader="g", tasks=_sums(), judge=_unreachable, remote=True)
    found = {check.name: check for check in audit_text(subject).checks}
    assert set(found) == {"grading", "leaks"}
    assert found["grading"].status == "fail"
    assert found["grading"].evidence.endswith("Connection error.")


def test_a_grader_that_always_raises_is_one_finding_with_its_error():
    """Gold was said to earn too little, and the remedy was to return the least reward."""

    def broken(task, answer):
        raise KeyError("target")

    found = {check.name: check for check in _audit(broken).checks}
    assert [name for name, check in found.items() if check.status == "fail"] == ["grading"]
    assert "KeyError: 'target'" in found["grading"].evidence


def _first_row(prompts, completions, answer, **columns):
    """Compares every completion with the first row's answer."""
    return [float(text.strip() == answer[0]) for text in completions]


def _of_any_row(prompts, completions, answer, **columns):
    return [float(text.strip() in answer) for text in completions]


def _against_the_batch(prompts, completions, answer, **columns):
    right = [float(text.strip() == gold) for text, gold in zip(completions, answer, strict=True)]
    return [each / sum(right) if each else 0.0 for each in right]


def _own_row(prompts, completions, answer, **columns):
    return [float(text.strip() == gold) for text, gold in zip(completions, answer, strict=True)]


def _rounded(prompts, completions, answer, **columns):
    """As a network is rounded that pads a batch."""
    return [
        float(text.strip() == gold) + 1e-3 * len(completions) for text, gold in zip(completions, answer, strict=True)
    ]


@pytest.mark.parametrize(
    ("rewards", "status", "golds"),
    [
        ([_first_row], "fail", lambda n: str(n * 7 % 1000)),
        ([_first_row], "fail", lambda n: "no" if n % 2 else "yes"),
        ([_of_any_row], "fail", lambda n: str(n * 7 % 1000)),
        ([_against_the_batch], "fail", lambda n: str(n * 7 % 1000)),
        ([_own_row], "pass", lambda n: "no" if n % 2 else "yes"),
        ([_own_row, diversity()], "pass", str),  # of completions of one question, of which there is one
        ([_rounded], "pass", str),
    ],
)
def test_a_reward_that_hangs_on_other_rows_of_its_batch_is_found(rewards, status, golds):
    """Answers were asked one by one, and so a reward passed that pays gold in one row of a batch alone."""
    rows = [{"question": f"The {n}. of them?", "answer": golds(n)} for n in random.Random(1).sample(range(900), 400)]
    spec = one_turn(rows, rewards, answer_format="{answer}")
    ground, scorer = _prepared(subject_of(spec, spec.grader(), tasks=24))
    sanity = checks.sanity(ground)
    scorer.close()
    assert sanity.status == status, sanity.evidence
    assert ("in one call with answers to other tasks" in sanity.evidence) == (status == "fail")


def _dies_of_two(prompts, completions, **columns):
    return os._exit(3) if len(completions) > 1 else [1.0]


def _hangs_of_two(prompts, completions, **columns):
    while len(completions) > 1:
        pass
    return [1.0]


@pytest.mark.parametrize(("reward", "error"), [(_dies_of_two, "the process died"), (_hangs_of_two, "cut off")])
def test_a_batch_that_ends_its_process_or_hangs_is_an_error_and_leaves_nothing_open(reward, error):
    rows = [{"question": f"Number {n}?", "answer": str(n)} for n in range(40)]
    spec = one_turn(rows, [reward])
    subject = subject_of(spec, spec.grader(), tasks=12)
    before = len(os.listdir("/proc/self/fd"))
    scorer = Scorer(subject, seconds=0.1)
    assert {score.error for score in scorer.batch([(task, "1") for task in subject.tasks])} == {error}
    scorer.close()
    assert len(os.listdir("/proc/self/fd")) == before


# What the probes come to, from figures that stand here.


def _ground(n=20, base=None, scorer=None, **found):
    tasks = _sums(n)
    options = {name: found.pop(name) for name in ("range", "remote") if name in found}
    subject = TextSubject(name="sums", grader="g", tasks=tasks, judge=_sound, **options)
    base, others = base or Base(gold=1.0, wrong=0.0, silence=0.0), Others(golds=[task.gold for task in tasks])
    found = {"bases": {task.key: base for task in tasks}, "span": 1.0, "log": Log(), **found}
    golds = {task.key: Gold(task=task, others=others) for task in tasks}
    return Ground(subject=subject, scorer=scorer or Scorer(subject), tasks=tasks, golds=golds, others=others, **found)


def _answered(operator, values, answer="none of it"):
    tasks = _sums(len(values))
    return [Probe(operator=operator, task=t, answer=answer, value=v) for t, v in zip(tasks, values, strict=True)]


@pytest.mark.parametrize(
    (
        "accepted",
        "n",
        "status",
    ),  # Wilson's lower bound of accepted / n is above a half, the share is, the bound above a tenth, or neither
    [
        (3, 3, "unresolved"),
        (4, 4, "fail"),
        (16, 20, "fail"),
        (14, 20, "unresolved"),
        (10, 20, "unresolved"),
        (2, 20, "pass"),
    ],
)
def test_a_kind_of_wrong_answer_fails_if_more_than_half_are_surely_accepted(accepted, n, status):
    probes = _answered("off by one", [1.0] * accepted + [0.0] * (n - accepted))
    assert wrong_of(_ground(), {"off by one": probes}).status == status


@pytest.mark.parametrize(("refused", "noted"), [(4, True), (3, False)])  # of 16: Wilson's bound is 0.102 or 0.066
def test_forms_are_noted_if_more_than_a_tenth_are_surely_refused(refused, noted):
    values = [0.0] * refused + [1.0] * (16 - refused)
    forms = {name: _answered(name, values) for name in ("a space at the end", "in quotes")}
    right = right_of(_ground(), forms)
    assert right.status == "pass"
    assert [each.what for each in right.notes] == ["refused a space at the end", "refused in quotes"] * noted


def test_accepted_is_what_lost_less_than_it_changed_and_refused_what_lost_more_than_half():
    half = Base(gold=1.0, wrong=0.5, silence=0.5)
    for base, value, accepted, refused in (
        (None, 1.0, True, False),
        (None, 0.92, True, False),
        (None, 0.55, False, False),
        (None, 0.4, False, True),
        (half, 0.96, True, False),
        (half, 0.93, False, False),  # 0.14 of what gold earns above silence
        (half, 0.7, False, True),
    ):
        ground, (probe,) = _ground(base=base), _answered("x", [value])
        assert (is_accepted(probe, ground), is_refused(probe, ground)) == (accepted, refused), value
    (close,) = _answered("x", [0.92], answer=_sums(1)[0].gold + "1")  # a seventh of the text is another
    assert not is_accepted(close, _ground())
    silent = _ground(base=Base(gold=0.05, wrong=0.0, silence=0.0))
    assert not is_accepted(*_answered("x", [0.05]), silent), "gold itself earns next to nothing there"


@pytest.mark.parametrize(
    ("gains", "status"), [([0.05] * 20, "fail"), ([0.5] * 20, "pass"), ([1.0, 0.0, -0.4], "unresolved")]
)
def test_gold_is_held_against_the_gold_of_other_tasks(gains, status):
    bases = {str(place): Base(gold=1.0, wrong=1.0 - gain, silence=0.0) for place, gain in enumerate(gains)}
    assert checks.gold(_ground(len(gains), bases=bases)).status == status


def _rate(p=1.0, mean=0.0, high=0.05, silent=0.0, held=0.0):
    unearned, above = (Interval(mean=mean, low=low, high=high, n=20) for low in (-0.1, silent))
    given = {"n": 20, "mean": 0.0, "right": 0.0, "held": held}
    figures = {"unearned": unearned, "above_silence": above, "partly": above}
    shown = {"answer": "x", "completion": "x", "task": "0", "gold": "y", "reward": 1.0}
    return Rate(operator="x", p=p, example=shown, part_paid=shown, **given, **figures)


@pytest.mark.parametrize(
    ("rates", "status"),
    [
        ([_rate(p=0.02), _rate(p=0.03), _rate(p=0.5)], "pass"),  # by Holm 0.06 each
        ([_rate(p=0.01), _rate(p=0.03), _rate(p=0.5)], "fail"),
        ([_rate(silent=0.3)], "pass"),
        ([_rate(silent=0.49)], "pass"),
        ([_rate(silent=0.51)], "fail"),
        ([_rate(silent=0.7, held=0.3)], "pass"),
        ([_rate(p=0.2, mean=0.15, high=0.3)], "unresolved"),
        ([_rate(p=0.2, mean=0.09, high=0.3)], "pass"),
    ],
)
def test_blind_answers_pay_if_one_of_them_surely_does(rates, status):
    assert unearned(_ground(), "blind answers", rates).status == status


@pytest.mark.parametrize(
    ("spreads", "missing", "status"),
    [
        ([0.05] * 20, 0, "pass"),
        ([0.15] * 20, 0, "fail"),
        ([0.0, 0.3, 0.1], 0, "unresolved"),
        ([], 0, "unresolved"),
        ([0.05] * 20, 5, "pass"),  # of 100
        ([0.05] * 20, 30, "fail"),
    ],
)
def test_a_judge_disagrees_with_itself_or_leaves_out_by_more_than_a_tenth(spreads, missing, status):
    errors = [replace(each, error="no score") for each in _answered("x", [None] * missing)]
    ground = _ground(remote=True, log=Log(errors=errors))
    ground.scorer.logged.update({"judge_disagreement": spreads, "judge_cost": [0.25, 0.5]})
    ground.scorer.calls = 100
    judge = checks.judge(ground)
    assert (judge.status, judge.measured["dollars"]) == (status, 0.75)


@pytest.mark.parametrize(("unpaid", "status"), [(1, "pass"), (8, "fail")])  # of 20: Wilson's bound is 0.01 or 0.22
def test_gold_that_is_not_fully_paid_now_and_then_is_no_flaw_of_the_grader(unpaid, status):
    assert checks.sanity_of(_ground(unpaid=_answered("gold", [0.5] * unpaid))).status == status


def test_rewards_beyond_the_declared_range_are_named():
    assert checks.sanity_of(_ground(range=(0.0, 1.0))).status == "pass"
    for declared in ((0.0, 0.9), (0.1, 1.0)):
        assert "leave the declared range" in checks.sanity_of(_ground(range=declared)).evidence


def test_tasks_that_would_settle_it_are_those_of_the_whole_audit():
    """Half the width must shrink to the distance, of which it is 1.5 times: 2.25 times the tasks."""
    wide = Interval(mean=0.25, low=0.0625, high=0.4375, n=24)
    narrow = replace(wide, low=0.15625, n=48)
    assert "about 108 tasks" in settled_within([wide, narrow], 0.125, tasks=48)
    near = settled_within([wide], 0.249, tasks=48)
    assert "more than 1,000 tasks" in near, "nobody asks for tens of thousands"


def test_of_what_a_person_has_to_judge_that_comes_first_which_is_accepted_most():
    probes = {
        "look-alike letters": _answered("look-alike letters", [1.0, 0.0, 0.0, 0.0]),
        "other case": _answered("other case", [1.0] * 4),
    }
    assert [row["operator"] for row in wrong_of(_ground(), probes).review] == ["other case"] * 4 + [
        "look-alike letters"
    ]


def test_a_rate_is_what_was_earned_above_a_noisy_teacher():
    base = Base(gold=1.0, wrong=0.2, silence=0.0)
    probes = [replace(p, answer=str(p.value)) for p in _answered("x", [1.0, 0.2, 0.2, 0.6])]
    probes[0] = replace(probes[0], right=True)
    bases = {probe.task.key: base for probe in probes}
    found = rate("x", probes, bases, 2.0, least=0.1, guess=0.3)
    unearned = [-0.02, -0.02, -0.02, 0.18]  # 0.05 of the tasks more are guessed, for 0.8 each; then by the range of 2
    assert found is not None
    assert found.unearned.mean == pytest.approx(0.03)
    assert found.above_silence.mean == pytest.approx((-0.05 + 0.15 + 0.15 + 0.55) / 4 / 2)
    assert found.p == pytest.approx(ttest_1samp(unearned, 0.1, alternative="greater").pvalue)
    assert (found.mean, found.right) == (0.5, 0.25)
    assert found.example["answer"] == "0.6"
    seldom = rate("x", probes, bases, 2.0, least=0.1, guess=0.2)  # the answer was right more often than that
    assert seldom is not None
    assert seldom.unearned.mean == pytest.approx(0.05)
    for value, p in ((0.7, 0.5**4), (0.25, 1.0)):
        same = rate("x", _answered("x", [value] * 4), bases, 1.0, least=0.1, guess=0.0)
        assert same is not None
        assert same.p == p


def test_eight_equal_numbers_are_a_bound():
    few, enough = (Interval(mean=0.5, low=None, high=None, n=n) for n in (7, 8))
    assert (low_of(few), high_of(few), low_of(enough), high_of(enough)) == (None, None, 0.5, 0.5)


def test_the_base_of_a_task_is_gold_silence_and_the_mean_of_wrong_answers():
    def pays(task, answer):
        if answer == task.gold:
            return 0.8 if task.key == "3" else 1.0
        return int(answer) % 3 / 10 - 0.1 if answer else 0.1

    scorer = _Paying(pays)
    ground = with_bases(_ground(12, scorer=scorer, bases={}))
    wrong = {}
    for task, answer in scorer.rows:
        if answer and answer != task.gold:
            wrong.setdefault(task.key, []).append(pays(task, answer))
    assert {len(values) for values in wrong.values()} == {2}
    assert any(values[0] != values[1] for values in wrong.values()), "or this test shows little"
    assert {key: base.wrong for key, base in ground.bases.items()} == {
        key: pytest.approx(sum(values) / 2) for key, values in wrong.items()
    }
    assert {base.silence for base in ground.bases.values()} == {0.1}
    assert ground.span == pytest.approx(1.0 - min(sum(values) / 2 for values in wrong.values()))
    assert [probe.task.key for probe in ground.unpaid] == ["3"]


def test_an_answer_in_several_forms_is_accepted_if_all_are():
    both = "right or wrong, in both orders"
    for pays, value in ((str.startswith, 0.0), (str.__contains__, 1.0)):
        scorer = _Paying(lambda task, answer, pays=pays: float(pays(answer, task.gold)))
        assert wrong_answers(_ground(6, scorer=scorer)).measured[both]["accepted"] == value


def test_blind_answers_are_judged_on_tasks_that_did_not_choose_them():
    first, rest = (tasks := _sums(10))[:4], tasks[4:]
    ground = _ground(10, scorer=_Paying(lambda task, answer: float(task in first)))
    (found,), _ = chosen(ground, "blind answers", {"x": lambda gold, rng: "x"}, first, rest)
    assert (found.mean, found.n) == (0.0, 6)


def test_a_wrong_number_is_another_number():
    assert all(made is not None and made != ("352",) for made in _made("one digit changed", "352"))
    assert states("50%", "0.5")
    assert not states("50%", "50")
    others = Others(golds=["18", "018", "19"])
    assert {others.another("18", random.Random(seed)) for seed in range(20)} == {"19"}
    assert set(_made("a unit that nobody asked for", "12")) == {("12 bananas", "12 million")}


@pytest.mark.parametrize(("again", "hangs"), [(False, 0), (True, 1)])
def test_a_call_that_was_cut_off_counts_if_it_is_cut_off_again(again, hangs, monkeypatch):
    scorer = Scorer(TextSubject(name="s", grader="g", tasks=_sums(1), judge=_sound))
    calls = iter([[Score(hung=True)], [Score(hung=again)]])
    monkeypatch.setattr(scorer, "_call", lambda *asked: next(calls))
    (score,) = scorer.score([(scorer.subject.tasks[0], "x")])
    assert (score.hung, scorer.hangs, scorer.calls) == (again, hangs, 1)


def test_a_reward_that_is_not_finite_is_an_error():
    scorer = Scorer(TextSubject(name="s", grader="g", tasks=_sums(1), judge=lambda task, answer: float(answer or 0)))
    (score,) = scorer.score([(scorer.subject.tasks[0], "nan")])
    scorer.close()
    assert (score.value, score.error) == (None, "the reward is nan")


@pytest.mark.parametrize("count", [2, 7])
def test_few_tasks_leave_open_what_they_cannot_tell(count):
    """A sound grader failed, and one that pays for any answer passed."""
    spec = environments.load("arithmetic")
    subject = subject_of(spec, spec.grader("composed"), tasks=count)
    for name in ("gold", "blind answers"):
        assert _check(name, subject.judge, subject.tasks).status == "unresolved"

    def pays_for_any(task, answer):
        return 0.85 * bool(answer) + 0.15 * (answer.strip() == task.gold)

    for name in ("reflexes", "blind answers"):
        assert _check(name, pays_for_any, _sums()[:count]).status != "pass"
