"""The pairs of graders before and after: labels are complete, and files are taken from a commit as they were."""

import json
import subprocess
import sys
from pathlib import Path

from graderfix.__main__ import pairs_of, take_files
from graderfix.rows import rows

from gradus.core.files import read_toml

_LABELS = {"exploit", "crash", "refused", "strict", "sound", "partial"}


def test_each_pair_has_a_commit_labels_and_reasons():
    pairs = list(pairs_of(read_toml(Path(__file__).parents[2] / "benchmarks" / "graderfix" / "pairs.toml")))
    assert len({(grader["repository"], pair["commit"], grader["name"]) for grader, pair in pairs}) == len(pairs) >= 60
    assert len({grader["repository"] for grader, _ in pairs}) >= 7
    for grader, pair in pairs:
        labels = (pair["before"], pair["after"])
        assert set(labels) <= _LABELS
        assert [bool(why) for why in pair.get("why", ("", ""))] == [label != "sound" for label in labels], grader
        assert bool(pair.get("shows")) == bool({"exploit", "crash", "refused"} & set(labels)), grader
        assert "call" not in grader or len(rows(grader["rows"], 20, 0)) == 20


def test_a_module_is_called_with_our_rows_and_what_it_imports_beside_is_stood_in_for(tmp_path):
    (tmp_path / "clone").mkdir()
    (tmp_path / "clone" / "grader.py").write_text(
        "import torch\nfrom clone.registry import register\n\n"
        "@register('int')\ndef score(text, gold):\n    return int(text) == gold\n"
    )
    grader = {
        "name": "grader",
        "module": "clone.grader",
        "call": "score(text, int(gold))",
        "rows": "integers",
        "form": ["", ""],
    }
    program = (
        "import json, sys; sys.path[:0] = sys.argv[1:3]; from graderfix.side import _with_rows\n"
        "subject = _with_rows(json.loads(sys.argv[3]), 0, sys.argv[2]); task = subject.tasks[0]\n"
        "print(subject.judge(task, task.gold), subject.judge(task, '0'), len(subject.functions))"
    )
    command = [
        sys.executable,
        "-c",
        program,
        str(Path(__file__).parents[2] / "benchmarks"),
        str(tmp_path),
        json.dumps(grader),
    ]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.split() == ["1.0", "0.0", "1"]


def test_files_are_taken_as_they_were_at_a_commit(tmp_path):
    def git(*arguments):
        subprocess.run(["git", "-C", str(tmp_path / "r"), *arguments], check=True, capture_output=True)

    (tmp_path / "r" / "package").mkdir(parents=True)
    git("init", "-q")
    for text in ("before", "after"):
        (tmp_path / "r" / "package" / "grader.py").write_text(text)
        git("add", "-A")
        git("-c", "user.name=n", "-c", "user.email=e@x", "commit", "-qm", text)
    for commit, text in (("HEAD^", "before"), ("HEAD", "after")):
        take_files(tmp_path / "r", commit, "package", tmp_path / text)
        assert (tmp_path / text / "package" / "grader.py").read_text() == text
