"""Files that are whole or not there, schedules, and the screen."""

import io
import json
import math
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gradus.core import (
    ConfigError,
    Episode,
    Failure,
    Group,
    Reward,
    RewardTerm,
    StopReason,
    StorageError,
    Task,
    Turn,
    TurnTokens,
)
from gradus.core.files import write_folder, write_text
from gradus.training.engine.loss_step import TrainingError
from gradus.training.engine.optimizers import lr_at
from gradus.training.engine.update_figures import (
    LogpDiff,
    UpdateSums,
    check_logp_diff,
    logp_diff_figures,
    measure_logp_diff,
    part_of_mean,
    pass_figures,
)
from gradus.training.lesson_config import SftConfig
from gradus.training.run.checkpoints import Checkpoint, LocalState, load_checkpoint, save_checkpoint
from gradus.training.run.folder import RunFolder
from gradus.training.run.live_screen import Interrupt, Screen
from gradus.training.run.step_metrics import episode_metrics
from gradus.training.trainer_config import SCHEDULES, OptimizerConfig


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "model"
    write_folder(target, lambda path: write_text(path / "a", "old"))

    def half(path: Path) -> None:
        write_text(path / "a", "new")
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match="No space left"):
        write_folder(target, half)
    assert (target / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    write_folder(target, lambda path: write_text(path / "b", "new"))
    assert {path.name for path in target.iterdir()} == {"b", "SHA256SUMS"}


def test_a_folder_is_still_there_if_ctrl_c_comes_while_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old and new were both removed."""
    target = tmp_path / "model"
    write_folder(target, lambda path: write_text(path / "a", "old"))
    replace = os.replace

    def interrupted(source: Path, place: Path) -> None:
        if source.suffix == ".tmp":
            raise KeyboardInterrupt
        replace(source, place)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_folder(target, lambda path: None)
    assert (target / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_damaged_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    path = save_checkpoint(tmp_path, Checkpoint(step=2, offset=0), LocalState(model, optimizer))
    for name in ("weights.safetensors", "optimizer.pt", "state.json"):
        whole = (path / name).read_bytes()
        (path / name).write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
        with pytest.raises(
            StorageError, match=f"step-000002 is damaged: {name}.*; remove it to go on from the one before"
        ):
            load_checkpoint(path, LocalState(model, optimizer))
        (path / name).write_bytes(whole)
    assert load_checkpoint(path, LocalState(model, optimizer)).step == 2


def test_ctrl_c_in_the_last_step_is_not_lost() -> None:
    """A run went on with its evaluation as if nobody had pressed it."""
    with pytest.raises(KeyboardInterrupt), Interrupt():
        signal.raise_signal(signal.SIGINT)


def test_resuming_what_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped folder took all steps again without a word."""
    RunFolder(tmp_path / "new").open(SftConfig(), resume=False)
    RunFolder(tmp_path / "new").open(SftConfig(), resume=True)
    assert capsys.readouterr().err == ""
    RunFolder(tmp_path / "newt").open(SftConfig(), resume=True)
    assert "newt holds no run to resume; a new one begins there" in capsys.readouterr().err


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("file", ["config.json", "adapter_config.json"])
def test_a_folder_of_a_model_is_no_runs(tmp_path: Path, resume: bool, file: str) -> None:
    """The message was to go on with --resume, and then that the algorithm was null."""
    (tmp_path / file).write_text('{"model_type": "qwen2"}')
    with pytest.raises(ConfigError, match="holds a model and no run; choose another folder with --out"):
        RunFolder(tmp_path).open(SftConfig(), resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == [file]


def test_metrics_are_cut_back_to_a_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.append({"step": 1, "loss": math.nan, "parts": {"a": math.inf}})
    mark = folder.offset()
    folder.append({"step": 2})
    folder.truncate(mark)
    assert folder.records() == [{"step": 1, "loss": None, "parts": {"a": None}}]
    with pytest.raises(StorageError, match="shorter than the checkpoint remembers"):
        folder.truncate(mark + 1)
    assert json.loads(folder.metrics.read_text()) == folder.records()[0]


@given(
    schedule=st.sampled_from(sorted(SCHEDULES)),
    steps=st.integers(1, 300),
    warmup=st.floats(0, 0.9),
    min_lr_ratio=st.floats(0, 1),
)
def test_schedules_rise_then_never_rise_again(schedule: str, steps: int, warmup: float, min_lr_ratio: float) -> None:
    config = OptimizerConfig(lr=2.0, schedule=schedule, warmup=warmup, min_lr_ratio=min_lr_ratio)
    rates = [lr_at(config, step, steps) for step in range(1, steps + 1)]
    rising = round(warmup * steps)
    assert rates[:rising] == sorted(rates[:rising])
    assert all(later <= earlier + 1e-12 for earlier, later in zip(rates[rising:], rates[rising + 1 :], strict=False))
    assert 0 < max(rates) <= 2.0
    assert min(rates[rising:], default=2.0) >= 2.0 * min_lr_ratio - 1e-12


@pytest.mark.parametrize(
    ("said", "steps", "longest"), [("", [1, 9], 80), ("verbose", list(range(1, 10)), 999), ("quiet", [], 0)]
)
def test_plain_lines_fit_and_are_few(
    said: str, steps: list[int], longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step, the last, and one every few seconds; ``--verbose`` shows all, ``--quiet`` only notes."""
    monkeypatch.setenv("GRADUS_OUTPUT", said)
    out = io.StringIO()
    monkeypatch.setattr("gradus.training.run.live_screen.Terminal", lambda **_: Console(file=out, width=80))
    figures = {f"a figure with a long name {i}": "r" for i in range(9)}
    with Screen("run", steps=9, figures=figures) as screen:
        for step in range(1, 10):
            screen.step({"step": step, "r": 0.5})
        screen.note("an alert")
    *lines, note = out.getvalue().splitlines()
    assert note == "an alert"
    assert [int(line.split()[1].partition("/")[0]) for line in lines] == steps
    assert all("0.500" in line and len(line) <= longest for line in lines)
    assert said != "verbose" or all(line.count("0.500") == 9 for line in lines)


def test_the_time_left_leaves_the_first_step_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It allocates and checks more than others do: 20 s, where each other step takes 4."""
    monkeypatch.setenv("GRADUS_OUTPUT", "verbose")
    out = io.StringIO()
    monkeypatch.setattr("gradus.training.run.live_screen.Terminal", lambda **_: Console(file=out, width=80))
    clock = iter([20.0, 24.0, 28.0])
    monkeypatch.setattr("gradus.training.run.live_screen.time.perf_counter", lambda: next(clock))
    screen = Screen("run", steps=10, figures={})
    for step in (1, 2, 3):
        screen.step({"step": step})
    assert out.getvalue().splitlines() == ["step 1/10", "step 2/10  left 0:32", "step 3/10  left 0:28"]


def test_a_terminal_shows_a_bar_below_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    monkeypatch.setattr("gradus.training.run.live_screen.Terminal", lambda **_: console)
    with Screen("grpo lamps", steps=2, figures={"reward": "r", "never": "x"}) as screen:
        for step, reward in ((1, 0.0), (2, 1.0)):
            screen.step({"step": step, "r": reward})
            screen.phase("validating")
    assert all(each in out.getvalue() for each in ("grpo lamps", "2/2", "reward 1.0", "validating"))
    assert "never" not in out.getvalue()


def test_rewards_that_differ_by_float_noise_have_no_variance() -> None:
    noise = [0.1 + 0.2, 0.3, 0.1 + 0.2, 0.3]
    task = Task(environment="e", seed=0)
    members = tuple(
        Episode(task=task, policy="p", turns=(), stop=StopReason.TERMINATED, reward=Reward(grader="g", value=value))
        for value in noise
    )
    group = Group(task=task, episodes=members)
    assert len(set(group.values())) == 2
    assert episode_metrics([group])["zero_variance_groups"] == 1.0


def _said(text: str, tokens: int, *, valid: bool = True) -> Turn:
    ids = TurnTokens(context_ids=(1,), action_ids=(2,) * tokens, logprobs=(-1.0,) * tokens, restart=False)
    return Turn(index=0, observation="", action=text, valid=valid, tokens=ids)


def _done(
    turns: list[Turn], value: float, terms: list[dict[str, float]], components: dict[str, float | None], **more: object
) -> Episode:
    each = tuple(tuple(RewardTerm(component=name, value=part) for name, part in turn.items()) for turn in terms)
    reward = Reward(grader="g", value=value, terms=each, components=components)
    given = {"stop": StopReason.TERMINATED, **more}
    return Episode(task=Task(environment="e", seed=1), policy="p", turns=tuple(turns), reward=reward, **given)  # type: ignore[arg-type]


def test_a_steps_figures_are_those_of_its_episodes() -> None:
    right = _done(
        [_said("x", 2), _said("y", 3)], 1.0, [{"a": 0.6}, {"a": 0.2, "b": 0.2}], {"a": 1.0, "b": 0.0},
        metrics={"true_reward": 1.0, "m": 2.0},
    )  # fmt: skip
    cut = _done(
        [_said("x", 1), _said("", 1, valid=False)], 0.0, [{"a": 0.5}, {"b": -0.5}], {"a": 0.0, "b": None},
        stop=StopReason.TURN_LIMIT, metrics={"m": 4.0},
    )  # fmt: skip
    failed = Episode(
        task=right.task, policy="p", turns=(_said("z", 9, valid=False),), stop=StopReason.FAILED,
        failure=Failure(stage="act", type="E", message=""), metrics={"m": 100.0, "true_reward": 100.0},
    )  # fmt: skip
    other = Task(environment="e", seed=2)
    same = [_done([_said("x", n)], 0.5, [{"a": 0.5}], {"a": 0.5}, metrics={"m": 0.0}) for n in (4, 6)]
    same = [replace(each, task=other) for each in same]
    figures = episode_metrics(
        [Group(task=right.task, episodes=(right, cut, failed)), Group(task=other, episodes=tuple(same))]
    )
    expected = {
        "reward_mean": 0.5,  # of 1, 0, 0.5 and 0.5
        "reward_std": 0.25,  # of the groups' 0.5 and 0
        "reward_total_std": math.sqrt(0.125),
        "zero_variance_groups": 0.5,
        "true_reward_mean": 1.0,
        "components": {"a": 0.5, "b": 0.0},
        "component_variance": {"a": 0.3, "b": 0.7},  # of 1 and 0: a gave 0.8 and 0.5, b gave 0.2 and -0.5
        "metrics": {"m": 1.5},
        "groups": 2,
        "episodes": 5,
        "failed_episodes": 1 / 5,
        "broken_episodes": 0.0,
        "ungraded_episodes": 0.0,
        "truncated_episodes": 1 / 5,
        "turn_limit_episodes": 1 / 5,
        "invalid_actions": 2 / 7,
        "distinct_actions": 4 / 7,
        "answer_information": math.log(0.75 * 1.5 * 1.5) / 3,
        "turns_mean": 1.5,
        "action_tokens_mean": (5 + 2 + 4 + 6) / 4,
    }
    alone = episode_metrics(
        [Group(task=right.task, episodes=(right, failed)), Group(task=right.task, episodes=(right, cut))]
    )
    assert (alone["reward_std"], alone["zero_variance_groups"]) == (0.5, 0.5), "one reward has no spread"
    assert figures.keys() == expected.keys()
    for name, value in expected.items():
        assert figures[name] == pytest.approx(value), name


def test_the_figures_of_a_pass_are_means_over_its_updates() -> None:
    def noted(kl: float, clipped: float, ratio: float, mismatch: float, most: float) -> list[dict[str, torch.Tensor]]:
        named = {"approx_kl": kl, "clip_fraction": clipped, "ratio_max": ratio, "mismatch_kl": mismatch}
        named["mismatch_ratio_max"] = most
        half = {name: part_of_mean(name, torch.tensor(value), 0.5) for name, value in named.items()}
        return [half, half]  # two microbatches of half the tokens each

    first = UpdateSums(loss=1.0, kl=0.8, entropy=6.0, scored=3, metrics=noted(0.1, 0.5, 3.0, 0.7, 5.0))
    second = UpdateSums(loss=3.0, entropy=4.0, tokens=8, scored=4, metrics=noted(0.2, 0.25, 2.0, 0.9, 1.0))
    assert pass_figures([first, second]) == pytest.approx(
        {
            "loss": 2.0,
            "kl": (0.8 + 0.2 * 8 / 4) / 2,  # to a reference if there is one, else over the tokens that were scored
            "entropy": (2.0 + 1.0) / 2,
            "clip_fraction": 0.375,
            "ratio_max": 3.0,
            "mismatch_kl": (3 * 0.7 + 4 * 0.9) / 7,
            "mismatch_ratio_max": 5.0,
        }
    )


def test_differences_of_log_probs_stop_a_run_beyond_any_of_their_limits() -> None:
    measured = measure_logp_diff([np.arange(50) / 100, np.arange(50, 101) / 100])
    assert (measured.mean, measured.p99, measured.max) == pytest.approx((0.5, 0.99, 1.0))
    check_logp_diff(measured, measured)
    for name in ("mean", "p99", "max"):
        with pytest.raises(TrainingError, match="disagree"):
            check_logp_diff(measured, replace(measured, **{name: getattr(measured, name) - 1e-6}))
        with pytest.raises(TrainingError, match="disagree"):
            check_logp_diff(replace(measured, **{name: math.nan}), LogpDiff(mean=9.0, p99=9.0, max=9.0))
    limits = LogpDiff(mean=0.1, p99=1.0, max=math.inf)
    assert logp_diff_figures(None, limits) == {
        **dict.fromkeys(("logp_diff_mean", "logp_diff_p99", "logp_diff_max")),
        "logp_diff_limits": {"mean": 0.1, "p99": 1.0, "max": None},
    }
