"""Results by task of other evaluators, compared: in the forms of lm-eval 0.4 and inspect 0.3, and as plain lines."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradus.commands import compare
from gradus.commands.app import main
from gradus.core import ConfigError
from gradus.runs.task_results import task_scores

TASKS = 60


def lines(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def plain(path: Path, share: int) -> Path:
    return lines(path, [{"task": f"t{n}", "seed": 0, "reward": float(n % 10 < share)} for n in range(TASKS)])


def test_files_are_paired_over_their_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = plain(tmp_path / "a.jsonl", 3), plain(tmp_path / "b.jsonl", 8)
    pair = compare(f"a={a}", f"b={b}").document["conditions"]["tasks"]["pairs"]["b - a"]["reward"]
    assert (pair["mean"], pair["wins"], pair["decision"]) == (pytest.approx(0.5), 30, "better")
    monkeypatch.setattr("sys.argv", ["gradus", "compare", f"a={a}", f"b={b}"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    assert "significant" in capsys.readouterr().out


def test_other_tasks_are_refused(tmp_path: Path) -> None:
    a, b = plain(tmp_path / "a.jsonl", 3), lines(tmp_path / "b.jsonl", [{"task": "other", "reward": 1.0}])
    with pytest.raises(ConfigError, match="not all were evaluated on the same tasks of tasks \\(a has 60, b has 1\\)"):
        compare(f"a={a}", f"b={b}")


def test_lm_eval_has_a_line_for_each_filter_and_the_first_counts(tmp_path: Path) -> None:
    sample = {"doc_id": 7, "doc": {}, "metrics": ["exact_match"], "doc_hash": "x"}
    records = [{**sample, "filter": "strict", "exact_match": 1.0}, {**sample, "filter": "flexible", "exact_match": 0.0}]
    assert task_scores(lines(tmp_path / "samples_gsm8k.jsonl", records)) == {("7", 0): 1.0}


def test_inspect_has_letters_and_epochs(tmp_path: Path) -> None:
    def sample(epoch: int, value: Any) -> dict[str, Any]:
        return {"id": "q", "epoch": epoch, "scores": {"match": {"value": value, "answer": "0"}}}

    log = {"version": 2, "status": "success", "eval": {}, "samples": [sample(1, "C"), sample(2, "I"), sample(3, 0.25)]}
    path = tmp_path / "log.json"
    path.write_text(json.dumps(log))
    assert task_scores(path) == {("q", 1): 1.0, ("q", 2): 0.0, ("q", 3): 0.25}


@pytest.mark.parametrize("text", ['{"loss": 1}', '{"task": "t", "reward": null}', '{"doc_id": 1, "metrics": []}'])
def test_a_file_without_rewards_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text + "\n")
    with pytest.raises(ConfigError, match="no results by task"):
        task_scores(path)
