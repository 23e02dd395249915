"""Rhythm and our credit under TRL's trainer."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # rollout_func is experimental there, and says so at every start

trl = pytest.importorskip("trl", reason="needs the extra trl")

from gradus import environments  # noqa: E402
from gradus.core import ConfigError, EnvironmentSpec  # noqa: E402
from gradus.interop.trl import Rollout, make_trainer, task_dataset  # noqa: E402
from gradus.policies.local.loading import load_model  # noqa: E402
from gradus.policies.local.policy import LocalPolicy  # noqa: E402
from gradus.policies.local.renderers import ChatRenderer  # noqa: E402
from gradus.policies.local.sampling import SamplingConfig  # noqa: E402
from gradus.policies.nano.model import (  # noqa: E402
    NanoConfig,
    make_nano,
)
from gradus.rollouts import roll_out  # noqa: E402
from gradus.training.run.options import RunOptions  # noqa: E402
from gradus.training.sft import (  # noqa: E402
    SftConfig,
    train_sft,
)

# TRL 1.16 still asks transformers by an old name.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
GROUP = 4


def short_week(turns: int) -> EnvironmentSpec:
    return replace(environments.load("rhythm"), max_turns=turns)


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny student that has learned how an answer looks, so that members of a group differ in reward."""
    spec = short_week(4)
    assert spec.language.vocabulary is not None
    folder = tmp_path_factory.mktemp("nano")
    make_nano(
        folder / "model",
        spec.language.vocabulary(),
        NanoConfig(hidden_size=32, layers=2, heads=2, intermediate_size=64),
        seed=1,
    )
    lessons = roll_out(spec, spec.policy("random"), [spec.train_task(5_000 + index) for index in range(64)]).episodes
    taught = SftConfig(epochs=10, batch_size=16, lr=1e-2, validation_share=0, checkpoint_every=1_000)
    return str(train_sft(folder / "model", lessons, taught, folder / "sft", options=RunOptions(live=False)).final)


def settings(folder: Path, **changes: Any) -> Any:
    defaults: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2 * GROUP,
        "num_generations": GROUP,
        "max_steps": 2,
        "max_completion_length": 512,
        "learning_rate": 1e-3,
        "activation_checkpointing": False,
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
    }
    return trl.GRPOConfig(**{**defaults, **changes})


def test_trl_trains_on_the_tokens_that_were_sampled(nano: str, tmp_path: Path) -> None:
    spec = short_week(3)
    tasks = [spec.train_task(index) for index in range(4)]
    trainer = make_trainer(nano, spec, settings(tmp_path), tasks=tasks, max_new_tokens=6)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    seen: list[dict[str, Any]] = []
    score = trainer._generate_and_score_completions

    def watch(inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = score(inputs)
        if not seen:
            logps, _, _ = trainer._get_per_token_logps_and_entropies(
                trainer.model,
                torch.cat([output["prompt_ids"], output["completion_ids"]], 1),
                torch.cat([output["prompt_mask"], output["completion_mask"]], 1),
                output["completion_ids"].shape[1],
            )
            seen.append({**output, "logps": logps.detach(), "inputs": inputs})
        return output

    trainer._generate_and_score_completions = watch  # type: ignore[method-assign]
    trainer.train()
    (first,) = seen
    mask = (first["completion_mask"] * first["tool_mask"]).bool()
    assert mask.any()
    assert not mask.all()  # there are environment tokens, and they are masked
    # What TRL computes for the sampled tokens is what our sampler drew them with.
    assert float((first["logps"] - first["sampling_per_token_logps"])[mask].abs().max()) < 1e-4
    assert first["advantages"].shape == first["completion_ids"].shape
    assert bool((first["advantages"][~mask] == 0).all())
    for row in range(2 * GROUP):  # one advantage a turn, and not one an episode
        values = first["advantages"][row][mask[row]]
        assert 1 <= len(values.unique()) <= 3
    changed = [name for name, value in trainer.model.state_dict().items() if not torch.equal(value, before[name])]
    assert changed
    logged = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert len(logged) == 2
    assert all(np.isfinite(entry["reward"]) for entry in logged)


def test_members_of_a_group_share_their_task_and_differ_by_what_they_did(nano: str, tmp_path: Path) -> None:
    spec = short_week(2)
    tasks = [spec.train_task(index) for index in range(2)]
    trainer = make_trainer(nano, spec, settings(tmp_path), tasks=tasks, max_new_tokens=6)
    rollout = Rollout(spec, max_new_tokens=6)
    prompts = [row["prompt"] for row in task_dataset(tasks) for _ in range(GROUP)]
    trainer.model.train()
    rollouts = rollout(prompts, trainer)
    assert trainer.model.training
    first, second = rollouts["prompt_ids"][:GROUP], rollouts["prompt_ids"][GROUP:]
    assert all(ids == first[0] for ids in first)
    assert all(ids == second[0] for ids in second)
    assert len({tuple(ids) for ids in rollouts["completion_ids"]}) > 1
    for columns in zip(
        *(rollouts[name] for name in ("completion_ids", "logprobs", "env_mask", "token_advantages")), strict=True
    ):
        assert len({len(column) for column in columns}) == 1
    with pytest.raises(ConfigError, match="copies"):
        rollout(prompts[1:], trainer)
    again = Rollout(spec, max_new_tokens=6)(prompts, trainer)
    assert again["completion_ids"] == rollouts["completion_ids"]  # the same seed keys, the same episodes


def test_each_row_is_its_own_episode_if_one_between_could_not_be_graded(nano: str) -> None:
    spec = short_week(2)
    policy = LocalPolicy(load_model(nano), SamplingConfig(max_new_tokens=6))
    tasks = [spec.train_task(index) for index in range(2)]
    groups = roll_out(spec, policy, tasks, group_size=GROUP, seed=0, key=("trl",), grader=spec.grader()).groups
    first = groups[0].episodes
    lost = replace(first[1], reward=replace(first[1].reward, value=None, terms=(), error="no grade"))
    groups = [replace(groups[0], episodes=(first[0], lost, *first[2:])), groups[1]]
    renderer = policy.loaded.renderer
    assert isinstance(renderer, ChatRenderer)
    rows = Rollout(spec)._columns(groups, renderer)
    episodes = [episode for group in groups for episode in group.episodes]
    assert rows["reward"] == [None if each is lost else each.reward.value for each in episodes]
    for place, episode in enumerate(episodes):
        sampled = [] if episode is lost else [token for turn in episode.turns for token in turn.tokens.action_ids]
        said = [] if episode is lost else [value for turn in episode.turns for value in turn.tokens.logprobs]
        masked = np.array(rows["env_mask"][place], dtype=bool)
        assert np.array(rows["completion_ids"][place])[masked].tolist() == sampled
        assert np.array(rows["logprobs"][place])[masked].tolist() == said
        assert not np.array(rows["token_advantages"][place])[~masked].any()
        if sampled:
            assert rows["prompt_ids"][place] == list(episode.turns[0].tokens.context_ids)


@pytest.mark.parametrize(
    ("name", "value"),
    [("top_p", 0.9), ("top_k", 20), ("min_p", 0.1), ("repetition_penalty", 1.2), ("generation_kwargs", {"min_p": 0.1})],
)
def test_settings_that_cannot_hold_are_refused(nano: str, tmp_path: Path, name: str, value: Any) -> None:
    spec = short_week(2)
    with pytest.raises(ConfigError, match=f"vocabulary; unset {name}$"):
        make_trainer(nano, spec, settings(tmp_path, **{name: value}), tasks=[spec.train_task(0)])


@pytest.mark.slow
def test_rhythm_learns_under_trl(tmp_path: Path) -> None:
    """A student of random answers gets better at the first day with eight people in 30 steps."""
    spec = short_week(4)
    assert spec.language.vocabulary is not None
    shape = NanoConfig(hidden_size=64, layers=2, heads=2, intermediate_size=192)
    make_nano(tmp_path / "nano", spec.language.vocabulary(), shape, seed=2)
    lessons = roll_out(spec, spec.policy("random"), [spec.train_task(10_000 + index) for index in range(192)]).episodes
    warm_start = SftConfig(epochs=6, batch_size=16, lr=5e-3, validation_share=0)
    taught = train_sft(tmp_path / "nano", lessons, warm_start, tmp_path / "sft", options=RunOptions(live=False))
    config = settings(
        tmp_path / "trl",
        max_steps=30,
        per_device_train_batch_size=64,
        num_generations=8,
        learning_rate=3e-3,
        lr_scheduler_type="constant",
    )
    tasks = [
        spec.train_task(index) for index in range(8)
    ]  # all of them in every step: people differ more than policies
    trainer = make_trainer(str(taught.final), spec, config, tasks=tasks, max_new_tokens=8)
    trainer.train()
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    print("\nrewards under TRL:", [round(reward, 3) for reward in rewards])
    assert len(rewards) == 30
    first, last = rewards[:8], rewards[-8:]
    assert np.mean(last) > np.mean(first) + 3 * np.sqrt((np.var(first, ddof=1) + np.var(last, ddof=1)) / 8)
