"""`gradus.testing` as a stranger uses it in a test of a grader."""

import os
import re
import subprocess
import sys

import pytest

from gradus.testing import assert_sound

ROWS = [{"question": f"What is {n} plus {3 * n}?", "answer": str(4 * n)} for n in range(11, 27)]


def last_number(completions, answer, **columns):
    found = [re.findall(r"-?\d+", text)[-1:] for text in completions]
    return [float(each == [gold]) for each, gold in zip(found, answer, strict=True)]


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(ground_truth in solution_str)


def test_a_sound_grader_passes_and_is_not_exact():
    notes = assert_sound(last_number, ROWS).notes
    assert {note.kind for note in notes} == {"lenient", "strict"}
    with pytest.raises(AssertionError, match=r"lenient, the right answer denied: '.*not \d"):
        assert_sound(last_number, ROWS, exact=True)


def test_an_exploit_is_named_with_a_line_that_repeats_it():
    with pytest.raises(AssertionError, match="can be exploited") as raised:
        assert_sound(compute_score, ROWS)
    (line, *_) = re.findall(r"  (echo .*)", str(raised.value))
    line = line.replace("gradus rewards try", f"{sys.executable} -m gradus rewards try") + " --json"
    said = subprocess.run(line, shell=True, capture_output=True, text=True, check=True, env=dict(os.environ))
    assert '"value": 1.0' in said.stdout


def test_golds_that_are_whole_completions_are_changed_inside_their_block():
    """`<answer>40</answer>` was no number to the audit, so a grader that reads the beginning passed."""
    rows = [{**row, "answer": f"<answer>{row['answer']}</answer>", "total": row["answer"]} for row in ROWS]

    def starts_so(completions, total, **columns):
        blocks = [re.search(r"<answer>(.*?)</answer>", text) for text in completions]
        return [float(bool(each) and each[1].startswith(gold)) for each, gold in zip(blocks, total, strict=True)]

    with pytest.raises(AssertionError, match=r"exploit, ten times as much: '<answer>\d+0</answer>'"):
        assert_sound(starts_so, rows)
