"""Logs of inspect_ai: compared as runs are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gradus
from gradus.core import ConfigError
from gradus.interop.inspect_logs import is_log, read_log


def test_without_the_package_the_message_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "inspect_ai", None)
    (tmp_path / "a.eval").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"gradus-rl\[inspect\]"):
        read_log(tmp_path / "a.eval", policy="a")
    assert not is_log(tmp_path)


def _sample(name: int, scores: dict[str, Any]) -> Any:
    messages = [SimpleNamespace(role="user", text="q"), SimpleNamespace(role="assistant", text="a")]
    values = {scorer: SimpleNamespace(value=value) for scorer, value in scores.items()}
    asked = {"input": f"q{name}", "target": "a", "choices": None}
    return SimpleNamespace(id=name, epoch=1, scores=values, error=None, limit=None, messages=messages, **asked)


def _stub(
    monkeypatch: pytest.MonkeyPatch,
    samples: list[Any] | dict[str, list[Any]],
    *,
    listed: tuple[str, ...] = (),
    whole: bool = True,
) -> None:
    """The library, with a log of these samples in every file, or of the samples of its name."""
    scores = [SimpleNamespace(name=name, scorer=name) for name in listed]
    config = SimpleNamespace(model_dump=lambda exclude_none: {})
    told = {"task": "t", "model": "m", "task_args": {}, "scorers": scores}
    spec = SimpleNamespace(**told, model_generate_config=config)
    results = SimpleNamespace(scores=scores) if whole else None

    def read_eval_log(path: str, resolve_attachments: bool) -> Any:
        held = samples[Path(path).stem] if isinstance(samples, dict) else samples
        return SimpleNamespace(samples=held, eval=spec, results=results)

    library = SimpleNamespace(read_eval_log=read_eval_log)
    monkeypatch.setattr("gradus.interop.inspect_logs._library", lambda: library)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "nan", "-inf", "4/5", [1, 0]])
def test_a_score_that_is_not_a_finite_number_is_missing(monkeypatch: pytest.MonkeyPatch, value: Any) -> None:
    _stub(monkeypatch, [_sample(index, {"s": value if index == 3 else "0.5"}) for index in range(5)])
    rewards = [each.reward for each in read_log(Path("a.eval"), policy="a").episodes]
    assert [reward and reward.value for reward in rewards] == [0.5, 0.5, 0.5, None, 0.5]


def test_the_reward_is_the_first_scorer_of_the_log_and_not_of_its_first_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [_sample(0, {"true_reward": 0.5}), *(_sample(index, {"g": 1.0, "true_reward": 0.5}) for index in (1, 2))]
    _stub(monkeypatch, samples, listed=("g", "true_reward"))
    log = read_log(Path("a.eval"), policy="a")
    assert (log.scorer, [each.reward and each.reward.value for each in log.episodes]) == ("g", [None, 1.0, 1.0])
    assert log.episodes[0].metrics == {"true_reward": 0.5}
    _stub(monkeypatch, samples, listed=("g", "true_reward"), whole=False)
    assert read_log(Path("a.eval"), policy="a").scorer == "g"


def _asking(texts: Sequence[str], score: str) -> list[Any]:
    """Samples with the ids that the library gives by itself: 1, 2, 3 and so on."""
    samples = [_sample(index, {"s": score}) for index in range(1, len(texts) + 1)]
    for sample, text in zip(samples, texts, strict=True):
        sample.input = text
    return samples


def _compared(tmp_path: Path) -> dict[str, Any]:
    for name in ("a", "b"):
        (tmp_path / f"{name}.eval").touch()
    return gradus.compare(*(f"{name}={tmp_path / name}.eval" for name in ("a", "b"))).to_json()


def test_samples_of_logs_are_paired_by_what_they_ask_if_an_id_stands_for_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A data set that was shuffled, or another one, has the same ids 1, 2, 3: their pairs "proved" a lead."""
    first = [f"q{index}" for index in range(10)]
    _stub(monkeypatch, {"a": _asking(first, "C"), "b": _asking([*first[:6][::-1], *"wxyz"], "I")})
    document = _compared(tmp_path)
    assert document["conditions"]["samples"]["pairs"]["b - a"]["reward"]["episodes"] == 6
    assert document["tasks"] == {"samples": {"shared": 6, "runs": {"a": 10, "b": 10}}}
    assert "6 tasks are paired by what they ask" in capsys.readouterr().err
    _stub(monkeypatch, {"a": _asking(first, "C"), "b": _asking([f"other {text}" for text in first], "I")})
    with pytest.raises(ConfigError, match="no task of one"):
        _compared(tmp_path)


def test_choices_may_be_shuffled_and_right_answers_may_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, three = (_sample(1, {"s": "C"}) for _ in range(3))
    one.choices, one.target, two.choices, two.target = ["x", "y"], "A", ["y", "x"], "B"
    three.choices = ["x", "z"]
    again, other = _sample(1, {"s": "C"}), _sample(1, {"s": "C"})
    again.input, other.target = [SimpleNamespace(role="user", text="q1")], "b"
    _stub(monkeypatch, [one, two, three, _sample(1, {"s": "C"}), again, other])
    ids = [each.task.id for each in read_log(Path("a.eval"), policy="a").episodes]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 5


def test_a_sample_is_an_episode_with_its_epoch_its_end_and_its_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [("C", 1.0), ("I", 0.0), ("P", 0.5), ("N", 0.0), ("yes", 1.0), ("no", 0.0), (True, 1.0), ("3.5", 3.5)]
    samples = [_sample(index, {"s": word, "t": 0.25}) for index, (word, _) in enumerate(words)]
    samples[1].epoch, samples[2].limit = 3, SimpleNamespace(type="token")
    samples[3].error = SimpleNamespace(message="broke")
    samples[4].id = "a text"
    samples[4].messages = [
        SimpleNamespace(role=role, text=text)
        for role, text in (("system", "s"), ("user", "u"), ("assistant", "a"), ("tool", "t"), ("assistant", "b"))
    ]
    _stub(monkeypatch, samples, listed=("s", "t"))
    episodes = read_log(Path("a.eval"), policy="a").episodes
    assert [each.reward and each.reward.value for each in episodes] == [
        None if index == 3 else value for index, (_, value) in enumerate(words)
    ]
    assert [each.stop for each in episodes[1:5]] == ["terminated", "token_limit", "failed", "terminated"]
    assert [each.member for each in episodes[:3]] == [0, 2, 0]
    assert [dict(each.metrics) for each in episodes[:1]] == [{"t": 0.25}]
    assert [each.task.seed for each in episodes[:4]] == [0, 1, 2, 3]
    assert episodes[4].task.seed == read_log(Path("b.eval"), policy="b").episodes[4].task.seed > 10
    turns = [(turn.index, turn.observation, turn.action) for turn in episodes[4].turns]
    assert turns == [(0, "s\n\nu", "a"), (1, "t", "b")]


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
