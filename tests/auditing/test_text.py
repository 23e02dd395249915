"""Audits of one-turn graders: what is found in the grader's own process, in what form it is asked, and what is left open."""

import json
import os
import random
import re
import time
from dataclasses import replace

import pytest
from text_graders import as_json, audited, check_of, hostile_check, sound, subject, sums

from gradus import environments
from gradus.auditing import AuditSettings, audit_any, run_text_audit
from gradus.auditing.leaks import places_of_text, telling_place
from gradus.auditing.result import verdict_of
from gradus.auditing.run import audit_text
from gradus.auditing.text import checks
from gradus.auditing.text.asking import prepare
from gradus.auditing.text.blind import BLIND
from gradus.auditing.text.gold import Gold, Others
from gradus.auditing.text.operators import HOSTILE
from gradus.auditing.text.scoring import CANARY, AnswerScore, Scorer
from gradus.auditing.text.tasks import subject_of
from gradus.core import PolicyError
from gradus.environments.verifiable.from_rows import one_turn
from gradus.sandbox.command import sandbox_works


def test_a_sound_grader_passes_without_declarations():
    found = audited(sound)
    assert {check.status for check in found.values()} <= {"pass", "note"}
    assert verdict_of(list(found.values())) == "pass"


def _evaluated(task, answer):
    try:
        return float(eval(answer, {"__builtins__": {}}) == int(task.gold))
    except Exception:
        return 0.0


@pytest.mark.parametrize(
    ("judge", "told"),
    [
        (lambda task, answer: float(abs(float(answer) - int(task.gold)) < 2), "it fails on"),
        (lambda task, answer: float(str(eval(answer, {})) == task.gold), "executes the answer"),
        (lambda task, answer: time.sleep(9 if len(answer) > 4000 else 0) or sound(task, answer), "hangs"),
        (_evaluated, "hangs on '9**9**9**9'"),
        (lambda task, answer: float(as_json(answer) == as_json(task.gold)), "RecursionError"),
        (
            lambda task, answer: sound(task, answer) if len(answer) < 1000 else 1 / 0,
            f"e.g. on {'[' * 40!r}... (1,100 characters): ",
        ),
    ],
)
def test_a_grader_that_fails_hangs_or_runs_code_is_found_with_the_answer_that_shows_it(judge, told):
    if told == "executes the answer" and not sandbox_works():
        pytest.skip("no sandbox on this machine")
    hostile = hostile_check(judge)
    assert hostile.status == "fail"
    assert told in hostile.evidence


def test_no_text_is_longer_than_a_model_writes():
    """Math-Verify takes a second for 4,000 letters in a box: TRL's accuracy_reward failed an audit that asked for 100,000."""
    gold = Gold(task=sums(1)[0], others=Others(golds=["4", "5"]))
    answers = [make(gold, random.Random(0)) or "" for make in (*HOSTILE.values(), *BLIND.values())]
    assert max(map(len, answers)) < 8000


def test_what_only_denies_a_right_answer_is_lenient_and_fails_nothing():
    """Six of twelve sound graders by others failed because they accept a denial of an answer that one must know already."""

    def last_number(task, answer):
        return float(re.findall(r"-?\d+", answer)[-1:] == [task.gold])

    check = check_of("wrong answers", last_number)
    assert check.status == "pass", check.evidence
    notes = [note for note in check.notes if note.kind == "lenient"]
    assert "the right answer denied" in [note.what for note in notes]
    assert all(last_number(replace(sums(1)[0], gold=note.gold), note.completion) == note.reward for note in notes)


def test_tasks_of_which_nobody_knows_a_right_answer_are_left_open():
    found = audited(sound, [replace(task, gold=None) for task in sums()])
    assert found["gold"].status == "open"


def test_a_cache_by_question_is_found_by_asking_in_another_order():
    seen = {}
    assert audited(lambda task, answer: seen.setdefault(task.key, sound(task, answer)))["sanity"].status == "fail"


def test_the_gold_answer_in_the_prompt_is_a_leak_and_a_label_or_an_option_is_none():
    """At the end of the prompt, behind a number and a period, it was not found."""
    for words in ("Key:", "Reference:", "Bag {gold} is marked. Key:"):
        assert check_of("leaks", sound, sums(prompt=f"{words} {{gold}}. What is {{a}} + {{b}}?")).status == "fail"
    for prompt in ("Add {a} to {b}. {gold}", "Add {a} to {b}. {gold} (key {a})", "Copy what follows: {gold} {a} {b}"):
        assert check_of("leaks", sound, sums(prompt=prompt)).status == "open"
    rng = random.Random(2)
    options = [rng.sample(range(100, 999), 4) for _ in range(40)]
    listed = [f"Which is largest? {' '.join(map(str, each))}" for each in options]
    for texts, golds in (
        ([f"Answer true or false: is {i} odd?" for i in range(40)], ["true", "false"] * 20),
        ([f"Is {n} even, yes or no?" for n in range(40)], ["no" if n % 4 else "yes" for n in range(40)]),
        (listed, [str(max(each)) for each in options]),
    ):
        assert telling_place([places_of_text(text, "") for text in texts], [[gold] for gold in golds]) is None


def test_the_answer_that_pays_is_noted():
    (note,) = check_of("blind answers", lambda task, answer: "reward" in answer or sound(task, answer)).notes
    assert (note.kind, note.reward, "reward" in note.completion) == ("exploit", 1.0, True)


def _dies(task, answer):
    os._exit(3)


def _dies_of_two(prompts, completions, **columns):
    return os._exit(3) if len(completions) > 1 else [1.0]


def _hangs_of_two(prompts, completions, **columns):
    while len(completions) > 1:
        pass
    return [1.0]


def test_a_grader_that_ends_its_process_or_hangs_on_a_batch_is_an_error_and_leaves_nothing_open():
    rows = [{"question": f"Number {n}?", "answer": str(n)} for n in range(40)]
    specs = [one_turn(rows, [reward]) for reward in (_dies_of_two, _hangs_of_two)]
    asked = [subject(_dies, sums(1)), *(subject_of(spec, spec.grader(), tasks=12) for spec in specs)]
    Scorer(asked[0]).score([(asked[0].tasks[0], "1")])  # the first process takes a folder for good
    before = len(os.listdir("/proc/self/fd"))
    errors: list[str | None] = []
    for each in asked:
        scorer = Scorer(each, seconds=0.1)
        scores = scorer.batch([(task, "1") for task in each.tasks]) if each.judge_all else []
        errors += {score.error for score in scores or scorer.score([(each.tasks[0], "1"), (each.tasks[0], "2")])}
        scorer.close()
    # A reward function that ends its process on a batch is asked one answer after another, as one that raises.
    assert errors == ["the grader's process ended", None, "cut off"]
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_executed_answer_cannot_write_outside_the_sandbox(tmp_path):
    if not sandbox_works():
        pytest.skip("no sandbox on this machine")
    scorer = Scorer(subject(lambda task, answer: eval(answer) and 1.0, sums(2)), confined=True)
    target, task = tmp_path / "written", scorer.subject.tasks[0]
    rows = [(task, f"open({str(target)!r}, 'w')"), (task, f"open('{CANARY}', 'w')")]
    outside, canary = scorer.fresh(rows)
    assert "No such file or directory" in outside.error
    assert canary.executed
    assert not target.exists()


def test_two_labels_in_a_file_pass_and_the_same_audit_gives_the_same_bytes(tmp_path):
    rng = random.Random(0)
    path = tmp_path / "rows.jsonl"
    rows = [{"question": f"Is {n} even?", "answer": "no" if n % 2 else "yes"} for n in rng.sample(range(10_000), 400)]
    path.write_text("\n".join(map(json.dumps, rows)))
    spec = environments.load(f"jsonl:{path}")
    results = [run_text_audit(spec, spec.grader("correctness"), AuditSettings(episodes=12)) for _ in range(2)]
    assert results[0].verdict == "pass", [(c.subject, c.evidence) for c in results[0].checks if c.status != "pass"]
    first, second = (json.dumps(result.to_json(), allow_nan=False) for result in results)
    assert first == second


@pytest.mark.parametrize(
    ("grader", "verdict"), [("correctness", "pass"), ("composed", "pass"), ("format-only", "fail")]
)
def test_paying_for_form_alone_fails_on_as_many_tasks_as_were_asked_for(grader, verdict):
    """They were always 48, whatever --episodes said."""
    spec = environments.load("arithmetic")
    result = audit_any(spec, spec.grader(grader), AuditSettings(episodes=10))
    assert (result.verdict, result.episodes) == (verdict, 10)


@pytest.mark.parametrize(
    ("share", "status", "noted"), [(1 / 3, "pass", False), (0.45, "pass", True), (0.6, "fail", False)]
)
def test_a_form_is_a_flaw_if_it_earns_more_than_being_right_adds(share, status, noted):
    """A third is what `composed` pays; 0.43 failed a sound grader of five small rewards, whose right answer adds 0.57."""

    def judge(task, answer):
        right = sound(task, answer)
        readable = answer.strip().replace(",", "").lstrip("-").isdigit()
        return share * max(right, float(readable)) + (1 - share) * right

    check = check_of("blind answers", judge)
    assert check.status == status
    assert any(note.kind == "lenient" and note.reward == share for note in check.notes) == noted


@pytest.mark.parametrize(
    ("before", "after", "form"),
    [("", "", "bare"), ("#### ", "", "after ####"), ("<answer>", "</answer>", "as declared")],
)
def test_a_sound_grader_is_asked_in_the_form_that_it_rewards(before, after, form):
    def judge(task, answer):
        inner = answer.strip().removeprefix(before).removesuffix(after)
        return float(answer.strip() == f"{before}{inner}{after}" and inner.strip() == task.gold)

    found = audited(judge, [replace(task, before="<answer>", after="</answer>") for task in sums()])
    assert verdict_of(list(found.values())) == "pass", [(c.subject, c.evidence) for c in found.values()]
    assert found["sanity"].measured["form"] == form
    assert ("<answer>" in found["sanity"].evidence) == (form != "as declared")


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
    for before, after in (("", ""), ("<reasoning>\nso\n</reasoning>\n<answer>\n", "\n</answer>\n")):
        tasks = [replace(task, before=before, after=after) for task in sums()]
        assert check_of("blind answers", _by_layout(share), tasks).status == status, (before, after)


def test_a_grader_that_is_slow_on_other_answers_than_gold_is_asked_of_fewer_tasks():
    """Sound graders of formulas had no verdict: what gold takes said that there was time for all."""
    found = audited(lambda task, answer: sound(task, answer) or time.sleep(0.006) or 0.0, limit=7.0)
    assert verdict_of(list(found.values())) == "pass"
    assert re.search(r"asked on \d+ tasks in 7 s", found["blind answers"].evidence)


def test_a_grader_that_takes_long_for_long_answers_has_a_verdict():
    """Three quarters of the answers to formulas in boxes stayed unasked: a parser took seconds for a thousand words, on task after task."""
    found = audited(lambda task, answer: time.sleep(0.7 if len(answer) > 300 else 0) or sound(task, answer), limit=6.0)
    assert verdict_of(list(found.values())) == "pass"
    assert "few as long were asked" in found["hostile answers"].evidence


@pytest.mark.parametrize(
    ("seconds", "limit", "check", "told"),
    [
        (0.002, 0.002 * 55 * 30 / 3, "sanity", "12 of 30 tasks, because the grader is slow"),
        (0.03, 2.0, "blind answers", "were not asked"),
    ],
)
def test_a_slow_grader_is_asked_less_and_the_audit_says_so(seconds, limit, check, told):
    before = time.monotonic()
    found = audited(lambda task, answer: time.sleep(seconds) or sound(task, answer), limit=limit)
    assert time.monotonic() - before < 20
    assert told in found[check].evidence
    assert (found[check].status == "open") == (check == "blind answers")


def test_a_gold_answer_that_stands_in_a_tag_is_taken_from_between_the_tags(tmp_path):
    """Of `a` the last was that of `</answer>`, so that no other answer to the task could be read."""
    golds = ["a", "e", "an", "answer", "12"]
    rows = [{"question": f"{number}", "answer": golds[number % 5]} for number in range(60)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    spec = environments.load(f"jsonl:{tmp_path / 'rows.jsonl'}")
    tasks = subject_of(spec, spec.grader(), tasks=30).tasks
    assert {task.gold for task in tasks} == set(golds)
    assert {(task.before, task.after) for task in tasks} == {("<reasoning> known </reasoning> <answer> ", " </answer>")}


def test_the_time_of_the_environments_own_judge_is_not_the_graders():
    """Math-Verify judged each answer of the audit besides, and a sound grader of lists was said to hang."""
    asked = []

    def own(completions, answer, **columns):
        return [float(text.strip() == gold) for text, gold in zip(completions, answer, strict=True)]

    rows = [{"question": f"Sort [{n}, 1]", "answer": f"[1, {n}]"} for n in range(2, 42)]
    spec = one_turn(rows, [own], judge=lambda row, text: asked.append(text) or 1.0)
    by_rows, by_score = (subject_of(spec, spec.grader(name), tasks=12) for name in ("rewards", "score"))
    first = by_rows.tasks[0]
    assert (by_rows.judge(first, first.gold), by_rows.judge(first, "[]"), asked) == (1.0, 0.0, [])
    assert (by_score.judge(by_score.tasks[0], "[]"), asked) == (1.0, ["[]"])


def _unreachable(task, answer):
    raise PolicyError("Connection error.")


@pytest.mark.parametrize("remote", [False, True])
def test_a_grader_that_always_raises_is_one_finding_with_its_error(remote):
    """Gold was said to earn too little, the remedy was to return the least reward, and hostile answers passed."""
    found = {check.subject: check for check in audit_text(subject(_unreachable, remote=remote))[0]}
    assert {name: check.status for name, check in found.items()} == {"grading": "fail", "leaks": "pass"}
    assert "Connection error." in found["grading"].evidence
    assert " in _unreachable)" in found["grading"].evidence


def _first_row(prompts, completions, answer, **columns):
    """Compares every completion with the first row's answer."""
    return [float(text.strip() == answer[0]) for text in completions]


def _against_the_batch(prompts, completions, answer, **columns):
    right = [float(text.strip() == gold) for text, gold in zip(completions, answer, strict=True)]
    return [each / sum(right) if each else 0.0 for each in right]


def _rounded(prompts, completions, answer, **columns):
    """As a network is rounded that pads a batch."""
    rows = zip(completions, answer, strict=True)
    return [float(text.strip() == gold) + 1e-3 * len(completions) for text, gold in rows]


@pytest.mark.parametrize(("reward", "status"), [(_first_row, "fail"), (_against_the_batch, "fail"), (_rounded, "pass")])
@pytest.mark.parametrize("gold", [str, lambda n: "no" if n % 2 else "yes"])
def test_a_reward_that_hangs_on_other_rows_of_its_batch_is_found(reward, status, gold):
    """Answers were asked one by one, and so a reward passed that pays gold in one row of a batch alone."""
    rows = [{"question": f"The {n}. of them?", "answer": gold(n)} for n in random.Random(1).sample(range(900), 400)]
    spec = one_turn(rows, [reward], answer_format="{answer}")
    asked = subject_of(spec, spec.grader(), tasks=24)
    scorer = Scorer(asked)
    sanity = checks.sanity(prepare(asked, scorer, seed=0))
    scorer.close()
    assert sanity.status == status, sanity.evidence
    assert ("in one call with answers to other tasks" in sanity.evidence) == (status == "fail")


@pytest.mark.parametrize(("again", "hangs"), [(False, 0), (True, 1)])
def test_a_call_that_was_cut_off_counts_if_it_is_cut_off_again(again, hangs, monkeypatch):
    scorer = Scorer(subject(sound, sums(1)))
    calls = iter([[AnswerScore(hung=True)], [AnswerScore(hung=again)]])
    monkeypatch.setattr(scorer, "_call", lambda *asked: next(calls))
    (score,) = scorer.score([(scorer.subject.tasks[0], "x")])
    assert (score.hung, scorer.hangs, scorer.calls) == (again, hangs, 1)


def test_a_reward_that_is_not_finite_is_an_error():
    scorer = Scorer(subject(lambda task, answer: float(answer or 0), sums(1)))
    (score,) = scorer.score([(scorer.subject.tasks[0], "nan")])
    scorer.close()
    assert (score.value, score.error) == (None, "the reward is nan")


@pytest.mark.parametrize(("first", "status"), [(400, "fail"), (2000, "pass")])
def test_a_reward_that_pays_anything_late_in_a_training_fails(first, status):
    def reward(prompts, completions, answer, trainer_state=None, **columns):
        late = trainer_state.global_step > first
        return [float(late or said.strip() == gold) for said, gold in zip(completions, answer, strict=True)]

    rows = [{"question": f"How much is {i} and {i + 7}?", "answer": str(2 * i + 7)} for i in range(100)]
    spec = one_turn(rows, [reward], answer_format="{answer}")
    asked = subject_of(spec, spec.grader(), tasks=24)
    scorer = Scorer(asked)
    sanity = checks.sanity(prepare(asked, scorer, seed=0))
    scorer.close()
    assert sanity.status == status
    assert ("step of a training" in sanity.evidence) == (status == "fail")


def test_what_is_shown_is_asked_again_in_a_new_process():
    calls: list[str] = []

    def judge(task, answer):
        calls.append(answer)
        return float(answer == task.gold or len(calls) > 100)

    checks, _ = audit_text(subject(judge, sums(24)))
    assert any(check.notes for check in checks)
    (sanity,) = (check for check in checks if check.subject == "sanity")
    assert "earns 1.0 and, asked again, 0.0" in sanity.evidence
    assert sanity.status == "fail"


@pytest.mark.parametrize(
    ("column", "twice", "ordered"),
    [(True, False, True), ("false", False, False), (None, False, None), (None, True, False)],
)
def test_rows_say_whether_order_matters_by_a_column_or_by_two_golds_in_two_orders(column, twice, ordered):
    rows = [{"question": f"Name {n} and {n + 1}.", "answer": f"{n}, {n + 1}"} for n in range(40)]
    rows = [{**row, "ordered": column} for row in rows] if column is not None else rows
    if twice:
        rows += [{**row, "answer": ", ".join(row["answer"].split(", ")[::-1])} for row in rows]
    spec = one_turn(rows, [_first_row], answer_format="{answer}")
    assert {task.ordered for task in subject_of(spec, spec.grader(), tasks=36).tasks} == {ordered}


def test_an_accepted_order_that_no_row_settles_is_open_and_says_which_column_would():
    golds = [f"{n}, {n + 1}, {n + 2}" for n in range(30)]
    sums_of_sets = [replace(task, gold=gold) for task, gold in zip(sums(), golds, strict=True)]
    check = check_of(
        "wrong answers", lambda task, text: sorted(text.split(", ")) == task.gold.split(", "), sums_of_sets
    )
    (note,) = [note for note in check.notes if note.kind == "open"]
    assert (check.status, note.what, "`ordered`" in note.change) == ("pass", "neighbors swapped", True)


def test_no_step_of_a_training_is_blamed_for_what_a_grader_always_does():
    """Any number earned 1 at every step, and the first screen blamed the first one."""
    rows = [{"question": f"How much is {i} and {i + 7}?", "answer": str(2 * i + 7)} for i in range(40)]
    spec = one_turn(rows, [lambda completions, **columns: [float(text.strip().isdigit()) for text in completions]])
    asked = subject_of(spec, spec.grader(), tasks=12)
    scorer = Scorer(asked)
    sanity = checks.sanity(prepare(asked, scorer, seed=0))
    scorer.close()
    assert "step of a training" not in sanity.evidence
