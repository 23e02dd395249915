"""The pairs of graders before and after: labels are complete, and files are taken from a commit as they were."""

import subprocess
from pathlib import Path

from graderfix.__main__ import take_files

from gradus.core.files import read_toml

_LABELS = {"exploit", "crash", "refused", "strict", "sound", "partial"}


def test_each_pair_has_a_commit_labels_and_reasons():
    data = read_toml(Path(__file__).parents[2] / "benchmarks" / "graderfix" / "pairs.toml")
    pairs = data["pair"]
    assert len({(pair["name"], pair["commit"]) for pair in pairs}) == len(pairs) >= 26
    for pair in pairs:
        labels = (pair["before"], pair["after"])
        assert set(labels) <= _LABELS
        assert [bool(why) for why in pair["why"]] == [label != "sound" for label in labels], pair["name"]
        assert bool(pair.get("shows")) == bool({"exploit", "crash", "refused"} & set(labels)), pair["name"]


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
