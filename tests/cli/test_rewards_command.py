"""`gradus rewards` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradus import environments
from gradus.cli.rewards import app
from gradus.core import GradusError
from gradus.rollouts import roll_out, write_episodes

RIGHT = "<reasoning> 1 + 1 </reasoning> <answer> 2 </answer>"


def run(*arguments: str, text: str | None = None):
    return CliRunner().invoke(app, list(arguments), input=text, env={"COLUMNS": "140"})


def test_typed_completions() -> None:
    result = run("try", "-c", RIGHT, "-c", "2", "--answer", "2")
    assert result.exit_code == 0
    assert "mean of 2" in result.stdout
    assert "3.00" in result.stdout


def test_json_is_one_line_a_completion() -> None:
    text = json.dumps({"prompt": "1 + 1?", "completion": RIGHT, "answer": "2"})
    result = run("try", "-", "--json", "-r", "correctness", text=text)
    assert json.loads(result.stdout) == {
        "completion": RIGHT,
        "read": "2",
        "components": {"correct": 1.0},
        "value": 1.0,
        "error": None,
    }


def test_stored_episodes(tmp_path: Path) -> None:
    spec = environments.load("arithmetic")
    played = roll_out(spec, spec.policy("noisy:0.5"), spec.tasks("held-out", 6)).episodes
    write_episodes(tmp_path / "e.jsonl", played, environment=spec.name)
    rows = [json.loads(line) for line in run("try", str(tmp_path / "e.jsonl"), "--json").stdout.splitlines()]
    assert [row["value"] for row in rows] == [episode.reward.value for episode in played if episode.reward]


def test_a_failing_function_is_shown_and_is_exit_code_one(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def tone(completions, **columns):\n    raise RuntimeError('no tone')\n")
    result = run("try", "-c", RIGHT, "-r", f"{tmp_path / 'mine.py'}:tone", "-r", "format")
    assert result.exit_code == 1
    assert "failed: tone: RuntimeError on 1 of 1 completions" in result.stderr
    assert "no tone" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [["try"], ["try", "x.jsonl", "-c", "y"], ["try", "nowhere.jsonl"], ["try", "-c", "y", "-r", "format=x"]],
)
def test_wrong_use_is_said(arguments: list[str]) -> None:
    assert isinstance(run(*arguments).exception, GradusError)


def test_the_list_names_every_built_in() -> None:
    result = run("list")
    for name in ("correctness", "incremental_format", "json_schema", "debug"):
        assert name in result.stdout
