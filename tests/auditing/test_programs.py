"""Graders that run programs: each planted hole is found by the program that uses it, and a sound grader passes."""

import json
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from random import Random

import pytest
from text_graders import audited, gold_of, ground_of, rows_of, subject, sums

from gradus.auditing import run
from gradus.auditing.text.asking import are_programs
from gradus.auditing.text.blind import BLIND, REFLEXES
from gradus.auditing.text.checks import hostile
from gradus.auditing.text.mutations import WRONG
from gradus.auditing.text.operators import EQUIVALENT
from gradus.auditing.text.programs import PROGRAMS, programs
from gradus.auditing.text.scoring import CANARY, Scorer
from gradus.auditing.text.tasks import TextTask
from gradus.core import child_rng
from gradus.core.foreign import GraderSeconds
from gradus.rewards.code import find_code
from gradus.sandbox.command import run_python, sandbox_works
from gradus.sandbox.confinement import is_confined, landlock_version

TASKS = rows_of([(f"Write solve(x): x plus {n}.", f"def solve(x):\n    return x + {n}\n") for n in range(8)])


def expected(task: TextTask) -> int:
    """What solve(7) should be."""
    return 7 + int(task.key)


def _apart(program, check, files):
    """Run a check in a process and a folder of its own, as a good grader does; what it prints and leaves is returned."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in {"answer.py": program, "test_it.py": check, **files}.items():
            Path(folder, name).write_text(text)
        run = subprocess.run(
            [sys.executable, "-S", "test_it.py"], cwd=folder, capture_output=True, text=True, timeout=2
        )
        reward = Path(folder, "reward.txt")
        return run.returncode, run.stdout, reward.read_text() if reward.exists() else None


def sound(task, answer):
    """The answer runs alone and prints its result; the comparison is made here."""
    ask = "import json, sys\nimport answer\nprint('RESULT', json.dumps(answer.solve(7)))"
    _, printed, _ = _apart(answer, ask, {})
    said = [line[7:] for line in printed.splitlines() if line.startswith("RESULT ")]
    try:
        return float(len(said) == 1 and type(json.loads(said[0])) is int and json.loads(said[0]) == expected(task))
    except ValueError:
        return 0.0


def exit_code(task, answer):
    """Pays if the tests end with 0: they may end before they begin."""
    check = f"import answer\nassert answer.solve(7) == {expected(task)}"
    return float(_apart(answer, check, {})[0] == 0)


def reward_file(task, answer):
    """Reads the reward from a file that the answer can write."""
    right = expected(task)
    check = f"import answer\nright = answer.solve(7) == {right} and type(answer.solve(7)) is int\nif right: open('reward.txt', 'w').write('1')"
    return float(_apart(answer, check, {})[2] or 0)


def compared_there(task, answer):
    """Compares in the process of the answer, with the answer's own equality."""
    ask = f"import answer\nprint('RESULT', answer.solve(7) == {expected(task)})"
    return float(_apart(answer, ask, {})[1].strip().endswith("RESULT True"))


def readable(task, answer):
    """The expected output lies beside the answer."""
    ask = "import answer\nprint('RESULT', answer.solve(7))"
    printed = _apart(answer, ask, {"expected.txt": str(expected(task))})[1]
    return float(printed.splitlines()[-1:] == [f"RESULT {expected(task)}"])


def own_process(task, answer):
    """Runs the answer here, beside the record of the result."""
    result = {"passed": 0.0}
    space = {}
    try:
        exec(answer, space)
        if space["solve"](7) == expected(task):
            result["passed"] = 1.0
    except BaseException:
        return 0.0
    return result["passed"]


def case_by_case(task, answer):
    """Calls the answer here, one case after another; skipped ones count as passed, and so does a function that says it is trusted."""
    space = {}
    try:
        exec(answer, space)
        if getattr(space["solve"], "trusted_by_author", False):
            return 1.0
        for given, wanted in [(7, expected(task)), (9, expected(task) + 2)]:
            try:
                if space["solve"](given) != wanted:
                    return 0.0
            except unittest.SkipTest:
                continue
    except BaseException:
        return 0.0
    return 1.0


def _check(judge, names, tasks=TASKS):
    """The check alone, with what the audit knows by then."""
    if not sandbox_works():
        pytest.skip("needs Linux user namespaces")
    asked = subject(judge, tasks, functions=[judge])
    ground = ground_of(asked, Scorer(asked, confined=True), executed=["a statement"])
    scorer = ground.scorer
    try:
        assert [score.value for score in scorer.score([(TASKS[0], TASKS[0].gold)])] == [1.0]
        results = [programs(ground, {name: PROGRAMS[name] for name in names}), hostile(ground, programs=True)]
    finally:
        scorer.close()
    return {each.subject: each for each in results}


@pytest.mark.parametrize(
    ("judge", "program"),
    [
        (exit_code, "exits early with success"),
        (reward_file, "writes the reward file"),
        (compared_there, "patches the comparison"),
        (readable, "reads the expected output"),
        (own_process, "sets attributes of the grader"),
        (case_by_case, "looks its own case up when it is called"),
        (case_by_case, "sets what the source names"),
        (case_by_case, "raises unittest.SkipTest when it is called"),
    ],
)
def test_a_hole_is_found_by_the_program_that_uses_it(judge, program):
    check = _check(judge, [program])["files and processes"]
    assert check.status == "fail", check.evidence
    assert program in check.evidence


def test_a_process_that_is_patched_for_the_next_answer_is_found():
    space = {"loads": json.loads}

    def shared(task, answer):
        try:
            exec(answer, space)
            return float(json.loads(json.dumps(space["solve"](7) == expected(task))))
        except BaseException:
            return 0.0

    assert "ran before it" in _check(shared, ["does nothing"])["files and processes"].evidence


def test_a_sound_grader_of_programs_passes_though_it_runs_them():
    checks = _check(sound, PROGRAMS, TASKS[:3])
    assert checks["files and processes"].status == "pass", checks["files and processes"].evidence
    assert checks["hostile answers"].status == "pass", checks["hostile answers"].evidence


@pytest.mark.parametrize("gold", ["print(3)", "```python\nimport os\n```", "def f(): pass", "3 + x", "f(x)", "Paris"])
def test_programs_are_told_from_other_answers(gold):
    assert are_programs(rows_of([("", gold)])) == (gold not in ("3 + x", "f(x)", "Paris"))


def in_our_sandbox(task, answer):
    """Pays if the program and a test end well, in a sandbox of its own: it may end before the test."""
    return float(run_python(f"{answer}\nassert solve(7) == {expected(task)}", seconds=5).code == 0)


@pytest.mark.skipif(not sandbox_works() or landlock_version() < 1, reason="needs Linux user namespaces and Landlock")
def test_a_grader_that_asks_the_sandbox_itself_is_asked_in_the_sandbox():
    """Its programs could not be run there, and the check was skipped."""
    check = _check(in_our_sandbox, ["exits early with success"], TASKS[:4])["files and processes"]
    assert check.status == "fail", check.evidence
    scorer = Scorer(subject(in_our_sandbox, TASKS), confined=True)
    (score,) = scorer.fresh([(TASKS[0], f"open({CANARY!r}, 'w')")])
    scorer.close()
    assert (score.value, score.executed) == (0.0, False), score.error


def fails_inside(task, answer):
    """A grader that needs what the sandbox does not give."""
    if is_confined():
        raise OSError("no device for it")
    return float(answer.strip() == (task.gold or "").strip())


@pytest.mark.skipif(not sandbox_works(), reason="needs Linux user namespaces")
def test_a_grader_that_needs_what_the_sandbox_lacks_is_open_and_is_not_asked_outside():
    """Gold was asked outside, where it may write files and open sockets."""
    check = audited(fails_inside, TASKS, limit=60.0)["grading"]
    assert check.status == "open", check.evidence
    assert "OSError: no device for it" in check.evidence
    assert "--unsafe" in check.evidence
    assert audited(fails_inside, TASKS, limit=60.0, unsafe=True)["grading"].status == "pass"


@pytest.mark.skipif(not sandbox_works(), reason="needs Linux user namespaces")
def test_a_grader_that_raises_on_what_is_no_answer_is_known_not_to_run_it():
    checks = audited(lambda task, answer: float(int(answer or 0) == int(task.gold)), sums())
    assert checks["grading"].status == "fail"
    assert "it fails on" in checks["grading"].evidence


@pytest.mark.skipif(not sandbox_works(), reason="needs Linux user namespaces")
def test_programs_and_code_that_there_was_no_time_for_leave_their_checks_open():
    def slow(task, answer):
        time.sleep(0.2)
        return float(answer.strip() == (task.gold or "").strip())

    checks = audited(slow, TASKS, limit=4.0)
    assert checks["hostile answers"].status == "open"
    assert checks["files and processes"].status == "open", checks["files and processes"].evidence
    assert "were not asked" in checks["files and processes"].evidence


@pytest.mark.parametrize("form", ["```python\n{}\n```", "Here it is:\n```py\n{}\n```\nIt adds.", "{}"])
def test_no_wrong_answer_of_a_program_is_the_right_program(form):
    """A right program that words call wrong was one, so that every grader of programs failed."""
    golds = [form.format(f"def f(a):\n    return a + {n}") for n in range(20)]
    gold, made = gold_of(golds[0], golds[1:], "Write f."), 0
    for name, wrong in WRONG.items():
        answers = wrong.answers(gold, child_rng(0, name))
        if answers and wrong.is_settled(gold.task):
            made += 1
            assert any(find_code(answer).strip() != find_code(golds[0]).strip() for answer in answers), name
    assert made > 2
    assert not WRONG["the right answer denied"].answers(gold_of("print(1)", golds), Random(0))


def test_what_is_nonsense_for_a_program_is_not_asked():
    """`code_tests` failed its own audit on eight rows: one program that defines all functions is right for each of them."""
    golds = [f"def add_{n}(x):\n    return x + {n}\n" for n in range(2, 10)]
    gold = gold_of(golds[0], golds, "Write add_2.")
    asked = {**BLIND, **REFLEXES, **{name: make for name, (make, _) in EQUIVALENT.items()}}
    made = {name for name, make in asked.items() if make(gold, Random(0))}
    assert not [name for name in made if name.startswith("golds of other tasks joined")]
    assert not [name for name in made if name.startswith("the gold's shape with the question's number")]
    forms = {"a newline at the end", "a space at the end", "on a line of its own", "in a code fence"}
    assert made & set(EQUIVALENT) == forms


def test_a_program_may_run_for_longer_than_a_text_is_read(monkeypatch: pytest.MonkeyPatch):
    """A grader of programs ends them by its own limit, of ten seconds for `code_tests`."""
    given: list[float] = []
    monkeypatch.setattr(run, "Scorer", lambda subject, **told: given.append(told["seconds"]) or Scorer(subject, **told))
    for gold in ("4", "print(4)"):
        audited(lambda task, answer: 0.0, rows_of([("?", gold)] * 2))
    assert given == [6.0, 30.0]


@pytest.mark.skipif(not sandbox_works(), reason="needs Linux user namespaces")
def test_what_was_not_asked_is_told_by_its_cause(monkeypatch):
    def hangs(task, answer):
        right = answer.strip() == (task.gold or "").strip()
        time.sleep(60 if answer and not right else 0)
        return float(right)

    told: list[tuple[str, int, int]] = []
    monkeypatch.setattr(run, "GRADER_SECONDS", GraderSeconds(program=0.2))
    checks = audited(hangs, TASKS, progress=lambda *said: told.append(said))
    evidence = [check.evidence for check in checks.values() if "were not asked" in check.evidence]
    assert evidence
    assert all("were not asked: 3 calls hung;" in each for each in evidence), evidence
    assert told[-1][0] == "audit g"
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
