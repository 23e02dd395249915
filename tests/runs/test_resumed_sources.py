"""A stage that is trained by itself goes on with the data and code that it was begun with."""

import json
from pathlib import Path

import pytest

from gradus import commands
from gradus.core import ConfigError

SMALL = [
    "model.nano.hidden_size=16", "model.nano.layers=1", "model.nano.heads=2", "model.nano.intermediate_size=32", "sft.max_steps=1",
    "sft.batch_size=2", "sft.threads=1", "grpo.max_steps=1", "grpo.groups=2", "grpo.group_size=2", "grpo.validation_every=0",
    "grpo.threads=1", "stage=",
]  # fmt: skip


def test_other_rows_or_episodes_are_refused_and_other_code_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training went on with them, and said nothing."""
    rows, reward = tmp_path / "rows.jsonl", tmp_path / "mine.py"

    def write(last: int, value: float) -> None:
        asked = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(last)]
        rows.write_text("".join(json.dumps(row) + "\n" for row in asked))
        reward.write_text(f"def score(completions, **_):\n    return [{value}] * len(completions)\n")

    write(60, 0.5)
    lessons = tmp_path / "lessons.jsonl"
    commands.teach(str(rows), episodes=8, out=lessons)
    student = commands.sft(str(rows), lessons=lessons, out=tmp_path / "sft", settings=SMALL)
    lessons.unlink()
    commands.teach(str(rows), episodes=6, out=lessons)
    with pytest.raises(ConfigError, match=r"made with other episodes of lessons.jsonl; choose another folder"):
        commands.sft(str(rows), lessons=lessons, out=tmp_path / "sft", settings=SMALL)

    options = {"rewards": [f"{reward}:score"], "settings": SMALL, "out": tmp_path / "grpo"}
    commands.grpo(str(rows), model=student, **options)
    write(60, 0.25)
    capsys.readouterr()
    commands.grpo(str(rows), model=student, **options)
    assert "grpo: code of mine.py has changed since; --redo does the stage again" in capsys.readouterr().err
    write(59, 0.25)
    with pytest.raises(ConfigError, match=r"made with other rows of .*; choose another folder"):
        commands.grpo(str(rows), model=student, **options)
