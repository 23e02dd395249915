"""Logs of inspect_ai: ours are read by its library, its own are compared as runs are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gradus
from gradus.core import ConfigError
from gradus.interop.inspect_logs import is_log, read_log, write_logs
from gradus.rollouts import roll_out


def test_without_the_package_the_message_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "inspect_ai", None)
    (tmp_path / "a.eval").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"gradus-rl\[inspect\]"):
        read_log(tmp_path / "a.eval", policy="a")
    assert not is_log(tmp_path)


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    pytest.importorskip("inspect_ai")
    spec = gradus.load_environment("arithmetic")
    written: list[Path] = []
    for name in ("gold", "careless:0.5"):
        tasks = spec.tasks("held-out", 12)
        episodes = roll_out(spec, spec.policy(name), tasks, group_size=2, grader=spec.grader()).episodes
        written += write_logs(episodes, tmp_path / name[:4], model="none")
    return written


def test_a_log_of_ours_reads_back(logs: list[Path]) -> None:
    from inspect_ai.log import read_eval_log  # pyright: ignore[reportMissingImports]

    log: Any = read_eval_log(str(logs[0]))
    assert (log.eval.task, log.eval.dataset.name, log.results.total_samples) == ("arithmetic", "held-out", 24)
    assert log.results.scores[0].metrics["mean"].value == 3.0
    assert [message.role for message in log.samples[0].messages][-2:] == ["user", "assistant"]
    back = read_log(logs[0], policy="gold")
    assert {each.task.seed for each in back.episodes} == {
        each.seed for each in gradus.load_environment("arithmetic").tasks("held-out", 12)
    }
    assert back.episodes[0].turns[0].action == log.samples[0].output.completion


def test_logs_are_compared_over_their_samples(logs: list[Path], tmp_path: Path) -> None:
    result = gradus.compare(f"gold={logs[0]}", f"careless={logs[1]}")
    pair = result.to_json()["conditions"]["held-out"]["pairs"]["careless - gold"]["reward"]
    assert pair["episodes"] == 12
    assert pair["high"] < 0
    assert pair["p_holm"] is not None
    assert result.settings["model"] == {"gold": "gradus/gold", "careless": "gradus/careless:0.5"}
    assert "careless" in result.report(tmp_path / "compare.html").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the library's own parts
def test_an_evaluation_of_inspect_itself_is_compared(tmp_path: Path) -> None:
    inspect = pytest.importorskip("inspect_ai")
    from inspect_ai.dataset import Sample  # pyright: ignore[reportMissingImports]
    from inspect_ai.model import ModelOutput, ModelUsage, get_model  # pyright: ignore[reportMissingImports]
    from inspect_ai.scorer import match  # pyright: ignore[reportMissingImports]

    paths: list[str] = []
    for name, right in (("a", 8), ("b", 2)):
        samples = [Sample(id=f"q{index}", input=f"{index} + 1?", target=str(index + 1)) for index in range(10)]
        answers = [str(index + 1) if index < right else "none" for index in range(10)]
        outputs = [ModelOutput.from_content("mockllm/model", text) for text in answers]
        for output in outputs:
            output.usage = ModelUsage()  # else it counts tokens with a table from the network
        model = get_model("mockllm/model", custom_outputs=outputs)
        task = inspect.Task(dataset=samples, scorer=match(), name="sums")
        (log,) = inspect.eval(task, model=model, log_dir=str(tmp_path / name), display="none", max_connections=1)
        assert log.status == "success", log.error
        paths.append(f"{name}={log.location.removeprefix('file://')}")
    pair = gradus.compare(*paths).to_json()["conditions"]["samples"]["pairs"]["b - a"]["reward"]
    assert (pair["mean"], pair["wins"], pair["episodes"]) == (-0.6, 0, 10)
