"""The whole loop on small environments: it learns, it resumes, and it says what is wrong."""

import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NotRequired, get_origin, get_type_hints

import pytest
import torch
from fakes import echo, lamps
from safetensors.torch import load_file
from short_runs import Stopped, ctrl_c_after, grpo_config, lines, same_weights, stop_after, train, without_clock
from transformers import GenerationConfig

from gradus.algorithms import Credit
from gradus.core import ConfigError, Episode, Group, Reward, RewardTerm
from gradus.core.metrics import StepRecord, ValidationRecord
from gradus.policies.local.loading import load_model
from gradus.policies.local.sampling import SamplingConfig
from gradus.rewards import reweigh
from gradus.rollouts import read_episodes, roll_out
from gradus.training.config import GrpoConfig
from gradus.training.engine.loss_step import TrainingError
from gradus.training.grpo import GrpoLoop, GrpoResult, train_grpo
from gradus.training.learner import Learner
from gradus.training.run.folder import RunFolder
from gradus.training.run.options import GrpoOptions


def keys(record: type) -> tuple[set[str], set[str]]:
    """What a record must have, and what it may have."""
    hints = get_type_hints(record, include_extras=True)
    return {name for name, hint in hints.items() if get_origin(hint) is not NotRequired}, set(hints)


def settings(**changes: Any) -> GrpoConfig:
    base = {"max_steps": 8, "validation_every": 3, "validation_tasks": 8, "checkpoint_every": 3}
    return grpo_config(**{**base, **changes})


def test_it_learns_to_echo(echo_model: Path, tmp_path: Path) -> None:
    changes = {"max_steps": 30, "groups": 8, "group_size": 8, "lr": 1e-2, "validation_every": 10}
    result = train(echo_model, tmp_path / "run", settings(**changes), spec=echo())
    records = lines(tmp_path / "run")
    first = sum(record["reward_mean"] for record in records[:3]) / 3
    last = sum(record["reward_mean"] for record in records[-3:]) / 3
    assert first < 0.5
    assert last > 0.8
    assert result.best_reward > 0.8
    assert max(record["logp_diff_max"] for record in records if record["logp_diff_max"] is not None) < 1e-5
    assert load_model(result.best, device="cpu").context == 512


def test_transformers_generates_by_the_sampling_of_the_run(lamps_model: Path, tmp_path: Path) -> None:
    """The folders kept what the base model recommends, with which nothing was evaluated."""
    base = Path(shutil.copytree(lamps_model, tmp_path / "base", ignore=shutil.ignore_patterns("SHA256SUMS")))
    stops = sorted(load_model(base, device="cpu").renderer.stop_ids)
    own = GenerationConfig(do_sample=True, temperature=0.2, top_p=0.5, repetition_penalty=1.3, eos_token_id=stops)
    own.save_pretrained(base)
    sampling = SamplingConfig(temperature=1.3, top_k=7, max_new_tokens=3, grammar=True)
    train(base, tmp_path / "run", settings(max_steps=1, sampling=sampling))
    for name in ("best", "final"):
        stored = GenerationConfig.from_pretrained(tmp_path / "run" / name)
        assert (stored.do_sample, stored.temperature, stored.top_k, stored.top_p) == (True, 1.3, 7, 1.0)
        assert (stored.max_new_tokens, stored.repetition_penalty, stored.eos_token_id) == (
            256,
            None,
            stops,
        )  # a conversation has room
        assert sorted(load_model(tmp_path / "run" / name, device="cpu").renderer.stop_ids) == stops


def test_every_line_keeps_the_contract(lamps_model: Path, tmp_path: Path) -> None:
    train(lamps_model, tmp_path / "run", settings(credit="span", store_every=4))
    records = lines(tmp_path / "run")
    assert [record["step"] for record in records] == list(range(1, 9))
    least, most = keys(StepRecord)
    for record in records:
        assert least <= set(record) <= most
        assert set(record["seconds"]) == {"policy", "environment", "reward", "train", "update", "laws", "total"}
        assert record["episodes"] == 16
        assert record["tokens"] > record["action_tokens"] >= record["trained_tokens"] > 0
    checks = lines(tmp_path / "run", "validation")
    assert set(checks[0]) == keys(ValidationRecord)[1]
    assert [(check["step"], check["decoding"]) for check in checks] == [
        (step, decoding) for step in (0, 3, 6, 8) for decoding in ("sampled", "greedy")
    ]
    stored = read_episodes(tmp_path / "run" / "episodes" / "step-000004.jsonl.gz")
    assert len(stored.episodes) == 8
    assert stored.episodes[0].turns[0].tokens is not None


@pytest.fixture(scope="module")
def unbroken(lamps_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, GrpoResult]:
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    return folder, train(lamps_model, folder, settings())


@pytest.mark.parametrize("after", [1, 3, 5])
def test_ctrl_c_leaves_a_run_that_goes_on_bit_for_bit(
    unbroken: tuple[Path, GrpoResult], lamps_model: Path, tmp_path: Path, after: int
) -> None:
    folder, wanted = unbroken

    with pytest.raises(KeyboardInterrupt):
        train(lamps_model, tmp_path / "run", settings(), on_step=ctrl_c_after(after))
    resumed = train(lamps_model, tmp_path / "run", settings(), resume=True)
    assert same_weights(folder, tmp_path / "run")
    assert same_weights(folder, tmp_path / "run", "best")
    assert (resumed.best_step, resumed.best_reward) == (wanted.best_step, wanted.best_reward)
    assert without_clock(RunFolder(tmp_path / "run").records()) == without_clock(RunFolder(folder).records())


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from fakes import lamps
from gradus.training.config import GrpoConfig
from gradus.training.grpo import train_grpo
from gradus.training.run.options import GrpoOptions
config = GrpoConfig.model_validate_json(sys.argv[4])
train_grpo(sys.argv[2], lamps(), config, sys.argv[3], resume=True, options=GrpoOptions(live=False))
"""


def start(model: Path, folder: Path, config: GrpoConfig) -> subprocess.Popen[bytes]:
    arguments = [str(Path(__file__).parents[1]), str(model), str(folder), config.model_dump_json(exclude_unset=True)]
    return subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments], stdout=subprocess.DEVNULL)


def kill_when(process: subprocess.Popen[bytes], folder: Path, count: int, wait: float) -> None:
    """kill -9 once ``count`` lines of metrics are there and ``wait`` seconds have passed."""
    metrics = folder / "metrics.jsonl"
    while process.poll() is None and (not metrics.exists() or metrics.read_bytes().count(b"\n") < count):
        time.sleep(0.005)
    time.sleep(wait)
    process.kill()
    process.wait()


def test_kill_9_changes_nothing(unbroken: tuple[Path, GrpoResult], lamps_model: Path, tmp_path: Path) -> None:
    """Killed once behind a checkpoint; the run in this process goes on to the same weights."""
    kill_when(start(lamps_model, tmp_path / "run", settings()), tmp_path / "run", 9, 0.0)
    train(lamps_model, tmp_path / "run", settings(), resume=True)
    assert same_weights(unbroken[0], tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(5))
def test_kill_9_at_any_moment_changes_nothing(
    unbroken: tuple[Path, GrpoResult], lamps_model: Path, tmp_path: Path, moment: int
) -> None:
    """Killed twice, at moments spread over playing, training, validating and writing."""
    for count, wait in ((1 + 2 * moment, 0.013 * moment), (9 + moment, 0.007 * moment)):
        kill_when(start(lamps_model, tmp_path / "run", settings()), tmp_path / "run", count, wait)
    train(lamps_model, tmp_path / "run", settings(), resume=True)
    assert same_weights(unbroken[0], tmp_path / "run")
    assert same_weights(unbroken[0], tmp_path / "run", "best")
    assert without_clock(RunFolder(tmp_path / "run").records()) == without_clock(RunFolder(unbroken[0]).records())


def test_a_run_is_not_begun_again_in_its_folder(unbroken: tuple[Path, GrpoResult], lamps_model: Path) -> None:
    with pytest.raises(ConfigError, match="holds a run already; go on with resume"):
        train(lamps_model, unbroken[0], settings())


def test_a_run_goes_on_with_other_resources(
    unbroken: tuple[Path, GrpoResult], lamps_model: Path, tmp_path: Path
) -> None:
    """The ways out that errors name (less memory a pass, a wider limit, a server elsewhere) were refused on resume."""
    with pytest.raises(Stopped):
        train(lamps_model, tmp_path / "run", settings(), on_step=stop_after(3))
    others = settings(token_budget=900, gradient_checkpointing=True, max_logp_diff=0.5, batch_size=8)
    train(lamps_model, tmp_path / "run", others, resume=True)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["token_budget"] == 900
    wanted, came = (load_file(folder / "final" / "model.safetensors") for folder in (unbroken[0], tmp_path / "run"))
    assert all(torch.allclose(wanted[name], came[name], atol=1e-4) for name in wanted)


def test_a_run_ends_after_five_steps_in_which_nothing_could_be_learned(lamps_model: Path, tmp_path: Path) -> None:
    """Thirty steps had reward 0.125 and no variance; the doctor said stop at step 6, and the run went on."""
    spec = lamps()
    silent = reweigh(spec.grader(), dict.fromkeys(spec.grader().weights, 0.0))
    config = settings(max_steps=9, validation_every=0)
    options = GrpoOptions(grader=silent, live=False)
    result = train_grpo(lamps_model, spec, config, tmp_path / "run", options=options)
    assert (result.steps, result.stopped) == (5, "no variance")
    (alert,) = [record for record in RunFolder(tmp_path / "run").records() if record["kind"] == "alert"]
    assert (alert["rule"], alert["action"], alert["step"]) == ("no variance", "stopped", 5)
    assert "every answer of the last 5 steps earned 0" in alert["evidence"]
    assert "the tasks are solved" in alert["remedy"]
    taught = settings(max_steps=6, validation_every=0, kl_coef=0.1)
    assert train_grpo(lamps_model, spec, taught, tmp_path / "other", options=options).steps == 6


def test_steps_that_do_not_fit_the_time_are_left_out_and_the_others_keep_their_numbers(
    unbroken: tuple[Path, GrpoResult], lamps_model: Path, tmp_path: Path
) -> None:
    """A time of eight minutes was at step 10 after sixteen."""
    config = settings(max_steps=500)
    options = GrpoOptions(seconds=0.01, live=False)
    result = train_grpo(lamps_model, lamps(), config, tmp_path / "run", options=options)
    assert (result.steps, result.stopped) == (2, None)
    records, whole = (RunFolder(folder).records() for folder in (tmp_path / "run", unbroken[0]))
    first = [[record for record in without_clock(lines) if record["kind"] == "step"][:2] for lines in (records, whole)]
    assert first[0] == first[1]
    assert {record["step"] for record in records if record["kind"] == "validation"} == {0, 2}
    enough = GrpoOptions(seconds=1e6, live=False)
    assert train_grpo(lamps_model, lamps(), settings(), tmp_path / "whole", options=enough).steps == 8
    assert same_weights(unbroken[0], tmp_path / "whole")


def test_dynamic_sampling_replaces_groups_without_signal(echo_model: Path, tmp_path: Path) -> None:
    base = settings()
    kept = {name: getattr(base, name) for name in base.model_fields_set if not name.startswith("validation")}
    config = GrpoConfig(**{**kept, "max_steps": 3, "group_size": 2, "validation_every": 0, "dynamic_sampling": 20})
    train(echo_model, tmp_path / "run", config, spec=echo())
    records = lines(tmp_path / "run")
    for record in records:  # what was replaced counts too
        assert record["zero_variance_groups"] * record["groups"] == pytest.approx(record["groups"] - config.groups)
        assert record["episodes"] == 2 * record["groups"]
        assert record["dropped_groups"] == record["groups"] - config.groups
    assert sum(record["groups"] for record in records) > 3 * config.groups


def test_equal_totals_of_other_turns_are_no_reason_to_drop_a_group(lamps_model: Path, tmp_path: Path) -> None:
    """Members that were right at other turns differ for credit by turn; looking at totals dropped up to half of the groups."""
    spec = lamps(turns=2)
    tasks = [spec.train_task(index) for index in range(2)]
    trained: dict[Credit, set[int]] = {"turn": {0}, "episode": set()}
    for credit, numbers in trained.items():
        config = grpo_config(credit=credit, dynamic_sampling=3)
        loop = GrpoLoop(Learner(lamps_model, spec, config), spec, RunFolder(tmp_path / credit))
        rolled_out = roll_out(spec, loop.learner.policy, tasks, group_size=2, seed=1).groups
        groups = [replace(group, episodes=_of_two_turns(group)) for group in rolled_out]
        turns = [[(0.0, 1.0), (1.0, 0.0)], [(1.0, 1.0), (1.0, 1.0)]]
        assert loop.trained_groups([_graded(*pair) for pair in zip(groups, turns, strict=True)]) == numbers


def _of_two_turns(group: Group) -> tuple[Episode, ...]:
    """Two members that did not end early: the first one that did not, twice."""
    (episode, *_) = [episode for episode in group.episodes if len(episode.turns) == 2]
    return episode, episode


def _graded(group: Group, turns: list[tuple[float, float]]) -> Group:
    """The group with these rewards by turn."""
    episodes: list[Episode] = []
    for episode, values in zip(group.episodes, turns, strict=True):
        terms = tuple((RewardTerm(component="right", value=value),) for value in values)
        reward = Reward(grader="g", value=sum(values), terms=terms, components={})
        episodes.append(replace(episode, reward=reward))
    return Group(task=group.task, episodes=tuple(episodes))


def test_a_finite_list_of_tasks_is_shuffled_each_epoch() -> None:
    from gradus.training.data.tasks import training_tasks, validation_tasks

    spec, config = lamps(), settings(tasks=20)

    def seeds(start: int) -> list[int]:
        return [task.seed for task in training_tasks(spec, config, start, 12, frozenset())[0]]

    first, second = seeds(0), seeds(12)
    held = {task.seed for task in validation_tasks(spec, config)}
    assert sorted(first) == sorted(second)
    assert first != second
    assert len(held) == 8
    assert not held & set(first)
    assert seeds(6) == [*first[6:], *second[:6]]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"distill_teacher": "gold"}, "no effect while distill_coef is 0"),
        ({"algorithm": "ppo"}, "unknown algorithm"),
        ({"algorithm": "gdpo", "credit": "turn"}, "one advantage per episode"),
        ({"tasks": 10}, "leaves nothing to train on"),
        ({"algorithm": "maxrl", "scale": "batch"}, "scale has no effect with maxrl"),
        ({"algorithm": "rloo", "clip_high": 0.3}, "clip_high has no effect with rloo"),
        ({"algorithm": "grpo", "discount": 0.9}, "discount is per turn"),
    ],
)
def test_what_has_no_effect_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        GrpoConfig(**given)


def test_all_failing_is_an_error_with_its_reason(lamps_model: Path, tmp_path: Path) -> None:
    def broken(**_: Any) -> Any:
        raise RuntimeError("the lamp is broken")

    spec = replace(lamps(), make=lambda: SimpleNamespace(reset=broken, close=lambda: None))  # type: ignore[arg-type]
    quiet = settings().model_copy(update={"validation_every": 0})
    with pytest.raises(TrainingError, match="the lamp is broken"):
        train(lamps_model, tmp_path / "run", quiet, spec=spec)


def test_a_start_that_failed_leaves_a_folder_that_can_be_used(lamps_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="distill_coef needs a teacher"):
        train(lamps_model, tmp_path / "run", settings(distill_coef=0.1))
    assert train(lamps_model, tmp_path / "run", settings(max_steps=1)).steps == 1
