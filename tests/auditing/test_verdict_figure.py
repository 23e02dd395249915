"""The figure of a verdict, limits on it, accepted findings, and the formats of other programs."""

import json
import re
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import pytest
from command_line import gradus as command
from rich.text import Text
from text_graders import audited, sound, sums

import gradus
from gradus.auditing.accepted import AcceptedFinding, digest, limits_in, with_accepted, with_limits
from gradus.auditing.exports import junit, sarif, workflow_lines
from gradus.auditing.records import ACCEPTED_FILE
from gradus.auditing.result import screen, time_for_the_rest, verdict_of
from gradus.auditing.text.tasks import TextTask
from gradus.core import ConfigError

ROOT = Path(__file__).parents[2]
WAYS = [
    TextTask(
        key=str(n),
        prompt=f"Where is door {n}?",
        gold=f"Go {n} steps to the {Random(n).choice(('left', 'right'))} of it.",
    )
    for n in range(40)
]


def _by_number(task, answer):
    """Half for the number, a tenth for the side: another side costs little."""
    return 0.9 * (answer.split()[1:2] == task.gold.split()[1:2]) + 0.1 * (answer == task.gold)


def test_a_near_miss_has_a_share_though_no_verdict_hangs_on_it():
    """Left and right exchanged earned 0.87 of gold, and nothing said so."""
    figure = audited(_by_number, WAYS)["figure"]
    assert figure.measured["near"]["share"] == pytest.approx(0.9)
    assert figure.measured["free"]["share"] < 0.1
    assert "near 0.90" in figure.evidence


def test_a_sound_grader_earns_nothing_for_free_and_little_for_near():
    figure = audited(sound)["figure"]
    assert figure.measured["free"]["share"] == 0.0
    assert figure.measured["near"]["share"] <= 0.05


def test_one_of_two_labels_is_not_counted_where_it_is_right():
    tasks = [TextTask(key=str(n), prompt=f"Is {n} odd?", gold="yes" if n % 2 else "no") for n in range(40)]
    figure = audited(lambda task, answer: float(answer == task.gold), tasks)["figure"]
    assert figure.measured["free"]["share"] == 0.0


def _rows(folder: Path) -> Path:
    path = folder / "rows.jsonl"
    rows = [{"prompt": task.prompt, "answer": task.gold} for task in sums(40)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def any_text(prompts, completions, answer, **columns):
    """Pays for whatever says reward."""
    return [float(a == c or "reward" in c) for a, c in zip(answer, completions, strict=True)]


def exact(prompts, completions, answer, **columns):
    return [1.0 if a == c else 0.4 * bool(c) for a, c in zip(answer, completions, strict=True)]


def test_a_limit_can_add_a_failure_and_take_none_away(tmp_path):
    rows = _rows(tmp_path)
    result = gradus.audit(exact, rows).result
    assert result.verdict == "pass"
    failed = with_limits(result, limits_in("free>0.3"))
    assert failed.verdict == "fail"
    assert "is above 0.3" in next(check for check in failed.checks if check.status == "fail").evidence
    assert gradus.audit(exact, rows, fail_on="free > 0.3").verdict == "fail"
    exploited = gradus.audit(any_text, rows).result
    assert with_limits(exploited, {"free": 1e9}).verdict == "fail"
    with pytest.raises(ConfigError, match="expected limits like"):
        limits_in("best>1")


def test_what_is_shown_is_the_shortest_that_earns_and_can_be_accepted(tmp_path):
    rows = _rows(tmp_path)
    result = gradus.audit(any_text, rows).result
    exploits = {note.completion for check in result.checks for note in check.notes if note.kind == "exploit"}
    assert "reward." in exploits or "reward" in exploits
    accepted = [
        AcceptedFinding(check=check.subject, example=digest(note.completion), reason="known", until=date(2030, 1, 1))
        for check in result.checks
        for note in check.notes
    ]
    assert with_accepted(result, accepted, date(2029, 1, 1)).verdict != "fail"
    assert with_accepted(result, accepted, date(2031, 1, 1)).verdict == "fail"
    assert with_accepted(result, accepted[:1], date(2029, 1, 1)).verdict == "fail"


def test_other_programs_read_the_findings(tmp_path):
    audit = gradus.audit(any_text, _rows(tmp_path), out=tmp_path / "out")
    cases = ElementTree.fromstring(junit(audit.result)).findall("testcase")
    failed = {case.get("name") for case in cases if case.find("failure") is not None}
    assert failed == {check.subject for check in audit.result.checks if check.status == "fail"}
    rows = json.loads(sarif(audit.result))["runs"][0]["results"]
    assert failed <= {row["ruleId"] for row in rows}
    assert rows[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"].endswith("test_verdict_figure.py")
    assert workflow_lines(audit.result)[0].startswith("::error file=")
    assert {"audit.junit.xml", "audit.sarif"} <= {path.name for path in (tmp_path / "out").iterdir()}


def test_what_there_was_no_time_for_is_counted():
    checks = audited(lambda task, answer: time.sleep(0.05) or sound(task, answer), limit=2.0)
    assert verdict_of(list(checks.values())) == "unresolved"
    assert " answers asked; --seconds " in time_for_the_rest(checks["figure"])


def test_a_number_of_more_digits_than_int_reads_ends_no_audit():
    tasks = [TextTask(key=str(n), prompt=f"Write {n}.", gold=str(n) * 5000) for n in range(1, 9)]
    assert audited(lambda task, answer: float(answer == task.gold), tasks)["sanity"].status == "pass"


def test_what_earns_on_every_task_does_not_shrink_to_what_earns_on_one():
    rows = [{"question": f"{n} {word}", "answer": word} for n in range(12) for word in ("red", "green", "blue")]

    def loose(completions, answer, **columns):
        return [float(gold in text) for text, gold in zip(completions, answer, strict=True)]

    exploit = gradus.audit(loose, rows).to_json()["exploit"]["completion"]
    assert all(word in exploit for word in ("red", "green", "blue"))


_GRADERS = """
def loose(completions, answer, **columns):
    return [float(gold in text or "reward" in text) for gold, text in zip(answer, completions)]

def exact(completions, answer, **columns):
    return [float(gold == text) for gold, text in zip(answer, completions)]
"""


def test_the_hook_prints_what_failed_with_its_fix_and_is_silent_otherwise(tmp_path, monkeypatch):
    """The completion to ask again is the one on the screen, and what to change is that of the answer that paid."""
    _rows(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graders.py").write_text(_GRADERS)
    (entry,) = re.findall(r"entry: gradus (.*)", (ROOT / ".pre-commit-hooks.yaml").read_text())
    ended = command(*entry.split(), "graders:exact", "rows.jsonl")
    assert (ended.code, ended.output.strip()) == (0, "")
    ended = command(*entry.split(), "graders.py:loose", "rows.jsonl", expect=1)
    output = " ".join(ended.output.split())
    assert "fix: read one answer" in output or "fix: compare the value itself" in output
    assert '"completion": "reward"' in output
    assert "after " in output, "the first exploit is printed when it is found"


def test_an_answer_that_holds_the_right_one_is_no_near_miss():
    """A grader that pays part for the right line among others was said to pay as much for wrong answers."""
    lines = lambda task, answer: (task.gold in answer.split()) / max(1, len(answer.split()))  # noqa: E731
    assert audited(lines)["figure"].measured["near"]["share"] < 0.1


def _by_length(task, answer):
    """The share of the answer that is the right one, which stands in it: the usual partial credit of reasoning-gym."""
    return len(task.gold) / len(answer) if task.gold in answer else 0.0


def _by_distance(task, answer):
    """A tenth of a percent off costs a tenth of a percent."""
    try:
        return max(0.0, 1 - abs(int(answer) - int(task.gold)) / abs(int(task.gold)))
    except ValueError:
        return 0.0


def _by_elements(task, answer):
    """The share of the numbers that stand at their places."""
    pairs = list(zip(task.gold.split(), answer.split(), strict=False))
    return sum(a == b for a, b in pairs) / max(len(task.gold.split()), len(answer.split()))


LISTS = [
    TextTask(key=str(n), prompt=f"Sort row {n}", gold=" ".join(map(str, Random(n).sample(range(90), 6))), ordered=True)
    for n in range(40)
]


@pytest.mark.parametrize(("grader", "tasks"), [(_by_length, None), (_by_distance, None), (_by_elements, LISTS)])
def test_a_part_of_the_reward_for_a_part_of_the_answer_is_no_near_miss(grader, tasks):
    """Of 41 sound graders of reasoning-gym those that pay so were said to pay up to 0.78 for wrong answers."""
    figure = audited(grader, *([tasks] if tasks else []))["figure"]
    assert figure.measured["near"]["share"] < 0.1


def test_what_is_right_by_accident_is_asked_twice():
    """Of two numbers one was exchanged, which is right half of the time; it was said to earn 0.5."""
    rng = Random(3)
    pairs = [(a, a + 2 * rng.randrange(1, 40)) for a in (rng.randrange(10, 90) for _ in range(40))]
    tasks = [
        TextTask(key=str(n), prompt=f"Pair {n} of even sum?", gold=f"{a} and {b}") for n, (a, b) in enumerate(pairs)
    ]
    even = lambda task, answer: float(sum(map(int, re.findall(r"\d+", answer))) % 2 == 0 and "and" in answer)  # noqa: E731
    checks = audited(even, tasks)
    accepted = checks["wrong answers"].measured["another first number in it"]["accepted"]
    assert 0.05 < accepted < 0.4


def test_no_packing_that_does_not_pay_stands_around_what_is_shown():
    """A grader of the last number was shown with tags and reasoning around the answer."""
    tasks = [replace(task, before="<think>so</think> <answer>", after="</answer>") for task in sums(40)]
    checks = audited(lambda task, answer: float(task.gold in answer), tasks)
    exploit = next(note for note in checks["wrong answers"].notes if note.kind == "exploit")
    assert not re.search("answer>|think", exploit.completion)
    assert "answer>" not in checks["figure"].measured["near"]["completion"]


def test_the_exploit_that_is_shown_earns_on_the_task_that_it_is_shown_for():
    """All colors of a file name each of them. Shortened, they still earned on most tasks, and nothing on their own."""
    rows = Path(__file__).parents[2] / "examples/published/rows/choose_color.jsonl"

    def names_it(completions, answer, **columns):
        return [float(gold.lower() in text.lower()) for text, gold in zip(completions, answer, strict=True)]

    result = gradus.audit(names_it, rows).result
    exploits = [note for check in result.checks for note in check.notes if note.kind == "exploit"]
    assert exploits
    assert all(note.reward == 1.0 for note in exploits), [note.reward for note in exploits]


def test_the_screen_says_on_what_a_grader_raises_that_can_also_be_exploited(tmp_path):
    """The evidence of "grading" stood nowhere unless it was the one failure."""

    def contains(prompts, completions, answer, **columns):
        return [float(a in c) / ("\x00" not in c) for a, c in zip(answer, completions, strict=True)]

    audit = gradus.audit(contains, _rows(tmp_path))
    lines = [part.plain for part in screen(audit.result) if isinstance(part, Text)]
    assert any(line.startswith("FAIL wrong answers: ") for line in lines), lines
    assert any("grading: it fails on" in line and "ZeroDivisionError" in line for line in lines), lines


def test_a_task_that_copies_its_answer_can_be_accepted(tmp_path):
    """Extraction behind one word, as a total from an invoice, stayed unresolved whatever the author did."""
    rows = [
        {"prompt": f"Copy the total. Invoice {n}. Total: {n * 37}.25 Thanks.", "answer": f"{n * 37}.25"}
        for n in range(24)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    audit = gradus.audit(exact_words, path)
    leak = next(check for check in audit.result.checks if check.subject == "leaks")
    assert (audit.verdict, leak.status) == ("unresolved", "open")
    assert ACCEPTED_FILE in leak.evidence
    (tmp_path / ACCEPTED_FILE).write_text('[[accepted]]\ncheck = "leaks"\nreason = "to copy it is the task"\n')
    assert gradus.audit(exact_words, path).verdict == "pass"


def exact_words(prompts, completions, answer, **columns):
    return [float(a == c.strip()) for a, c in zip(answer, completions, strict=True)]
