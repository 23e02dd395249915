"""Training in bfloat16, under autocast and in float32: runs go on, and sampler and trainer are compared by what dtypes allow."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import echo, lamps
from safetensors.torch import load_file
from short_runs import grpo_config, lines, sampled, train

from gradus.evidence.health import diagnose
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig
from gradus.rollouts import roll_out
from gradus.training.config import GrpoConfig
from gradus.training.data.microbatches import microbatches
from gradus.training.engine import update
from gradus.training.engine.forward import score_tokens, vocabulary_size
from gradus.training.engine.loss_step import TrainingError
from gradus.training.engine.master_weights import MasterWeights, master_of
from gradus.training.engine.optimizers import make_optimizer
from gradus.training.engine.prepare import precision
from gradus.training.engine.update import policy_update
from gradus.training.engine.update_figures import logp_diff_limits, uses_trainer_logprobs

SAMPLING, GRAMMAR = SamplingConfig(max_new_tokens=3, grammar=True), lamps().language.grammar
PRECISIONS: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "autocast": {"dtype": "float32", "autocast": True},
}


def run_records(model: Path, folder: Path, **changes: Any) -> list[dict[str, Any]]:
    """The step records of a run on echo."""
    large: dict[str, Any] = {"groups": 8, "group_size": 8, "max_steps": 30, "lr": 6e-3}
    train(model, folder, grpo_config(**{**large, **changes}), echo())
    return lines(folder)


def lamps_config(**changes: Any) -> GrpoConfig:
    answers = SamplingConfig(max_new_tokens=4, grammar=True)
    return grpo_config(**{"lr": 3e-4, "max_turns": 3, "sampling": answers, **changes})


@pytest.mark.parametrize("precision", ["bfloat16", "autocast"])  # float32: test_grpo.py
def test_echo_is_learned_in_every_precision(echo_model: Path, tmp_path: Path, precision: str) -> None:
    records = run_records(echo_model, tmp_path / "run", **PRECISIONS[precision])
    last = sum(record["reward_mean"] for record in records[-3:]) / 3
    assert last > 0.6  # it begins at 0.15
    largest = max(record["logp_diff_max"] for record in records if record["logp_diff_max"] is not None)
    assert largest > 1e-4  # above 1e-3 in the first step
    assert not [finding for finding in diagnose(records) if finding.rule == "logp diff"]


def test_a_model_under_autocast_samples_under_it_in_validation_too(
    lamps_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rollouts were sampled in bfloat16 and validations in float32."""
    drawn: dict[bool, list[float]] = {}
    for autocast in (False, True):
        policy = LocalPolicy(load_model(lamps_model, autocast=autocast, device="cpu"), SAMPLING, grammar=GRAMMAR)
        episodes = roll_out(lamps(), policy, [lamps().train_task(0)], group_size=4).episodes
        drawn[autocast] = [p for one in episodes for turn in one.turns if turn.tokens for p in turn.tokens.logprobs]
    assert drawn[False] != drawn[True]
    seen: list[bool] = []

    class Noted(LocalPolicy):
        def __init__(self, loaded: LoadedModel, *given: Any, **options: Any) -> None:
            seen.append(loaded.autocast)
            super().__init__(loaded, *given, **options)

    monkeypatch.setattr("gradus.training.run.validation.LocalPolicy", Noted)
    config = lamps_config(autocast=True, max_steps=1, validation_every=1, validation_tasks=2)
    train(lamps_model, tmp_path / "run", config)
    assert seen == [True] * 5  # rollouts; validation before and after, sampled and greedy


def test_trainer_and_sampler_logprobs_are_one_in_float32(
    echo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few: dict[str, Any] = {"max_steps": 3, "epochs": 2, "minibatches": 2}
    by_sampler = run_records(echo_model, tmp_path / "sampler", **few)
    monkeypatch.setattr(update, "uses_trainer_logprobs", lambda *_: True)
    by_trainer = run_records(echo_model, tmp_path / "trainer", **few)
    for one, other in zip(by_sampler, by_trainer, strict=True):
        assert one["reward_mean"] == other["reward_mean"]
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-6)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)


@pytest.mark.parametrize("updates", [{}, {"epochs": 2}, {"minibatches": 2}])
def test_the_first_ratio_is_exactly_one_in_bfloat16(
    lamps_model: Path, updates: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_model(lamps_model, device="cpu", dtype="bfloat16")
    config = lamps_config(dtype="bfloat16", **updates)
    samples = sampled(loaded, config)
    still = torch.optim.SGD(loaded.model.parameters(), lr=0.0)
    result = policy_update(loaded, still, samples, config, 0.0)
    assert result.figures["ratio_max"] == 1.0
    assert 0 < result.logp_diff.mean <= result.logp_diff.p99 <= result.logp_diff.max < 0.2
    monkeypatch.setattr(update, "uses_trainer_logprobs", lambda *_: False)
    assert policy_update(loaded, still, samples, config, 0.0).figures["ratio_max"] > 1.0


@pytest.mark.parametrize("updates", [{}, {"epochs": 2}, {"minibatches": 2, "epochs": 2}])
def test_a_correction_is_a_factor_of_its_own(lamps_model: Path, updates: dict[str, int]) -> None:
    """Sampler log-probs that are too high by log 2 halve each token's weight in every update, and move no ratio."""
    loaded = load_model(lamps_model, device="cpu")
    config = lamps_config(correction="truncate", grad_clip=0, max_logp_diff=10.0, **updates)
    samples = sampled(loaded, config)
    halved = [replace(one, logprobs=one.logprobs + math.log(2.0)) for one in samples]
    still = torch.optim.SGD(loaded.model.parameters(), lr=0.0)
    exact, low = (policy_update(loaded, still, part, config, 0.0) for part in (samples, halved))
    assert exact.grad_norm is not None
    assert low.grad_norm == pytest.approx(exact.grad_norm / 2, rel=1e-4)
    assert low.figures["ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert low.figures["mismatch_ratio_max"] == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("precision", ["bfloat16", "autocast"])
def test_more_than_rounding_stops_in_low_precision_too(lamps_model: Path, precision: str) -> None:
    config = lamps_config(**PRECISIONS[precision])
    loaded = load_model(lamps_model, device="cpu", dtype=config.dtype)
    samples = sampled(loaded, config)
    shifted = [replace(one, logprobs=one.logprobs - 0.4) for one in samples]
    before = [parameter.detach().clone() for parameter in loaded.model.parameters()]
    with pytest.raises(TrainingError, match=r"mean 0\.4.*expected at most mean 0\.1"):
        policy_update(loaded, make_optimizer(loaded.model, config), shifted, config, 1e-2)
    assert all(torch.equal(old, new) for old, new in zip(before, loaded.model.parameters(), strict=True))


def test_limits_and_denominators_follow_the_precision(lamps_model: Path) -> None:
    wide, narrow = (load_model(lamps_model, device="cpu", dtype=dtype) for dtype in ("float32", "bfloat16"))
    assert not uses_trainer_logprobs(wide, lamps_config())
    assert uses_trainer_logprobs(wide, lamps_config(autocast=True))
    assert uses_trainer_logprobs(narrow, lamps_config())
    assert logp_diff_limits(wide, lamps_config()).max == 1e-3
    assert logp_diff_limits(wide, lamps_config(max_logp_diff=0.5)).max == 0.5
    server = lamps_config(sampler="http", sampler_url="http://localhost:1/v1", correction="truncate", epochs=2)
    assert uses_trainer_logprobs(wide, server)
    assert logp_diff_limits(wide, server).mean == 0.5


def test_bfloat16_weights_move_at_small_rates(lamps_model: Path, tmp_path: Path) -> None:
    """A step of 1e-6 is less than the last bit of most weights in bfloat16; their masters move all the same."""
    loaded = load_model(lamps_model, device="cpu", dtype="bfloat16")
    config = lamps_config(dtype="bfloat16", lr=1e-6)
    optimizer = make_optimizer(loaded.model, config)
    start = {name: value.clone() for name, value in optimizer.state_dict()["masters"].items()}
    samples = sampled(loaded, config)
    for _ in range(5):
        policy_update(loaded, optimizer, samples, config, 1e-6)
    masters = optimizer.state_dict()["masters"]
    inside = [
        name for name in masters if "embed" not in name and "lm_head" not in name
    ]  # of those not every row is used
    moved = sum(int((masters[name] != start[name]).sum()) for name in inside) / sum(
        masters[name].numel() for name in inside
    )
    assert moved > 0.99
    weights = dict(loaded.model.named_parameters())
    assert all(weights[name].dtype == torch.bfloat16 for name in masters)
    assert all(torch.equal(weights[name], masters[name].bfloat16()) for name in masters)
    loaded.model.save_pretrained(tmp_path / "saved")
    assert {value.dtype for value in load_file(tmp_path / "saved" / "model.safetensors").values()} == {torch.bfloat16}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_masters_go_on_bit_for_bit(lamps_model: Path, optimizer: str) -> None:
    config = lamps_config(dtype="bfloat16", lr=1e-3, optimizer=optimizer, max_logp_diff=10.0)
    loaded = load_model(lamps_model, device="cpu", dtype="bfloat16")
    steps = make_optimizer(loaded.model, config)
    samples = sampled(loaded, config)
    policy_update(loaded, steps, samples, config, 1e-3)
    twin = load_model(lamps_model, device="cpu", dtype="bfloat16")
    restored = make_optimizer(twin.model, config)
    restored.load_state_dict(copy.deepcopy(steps.state_dict()))
    after = [policy_update(each, one, samples, config, 1e-3) for each, one in ((loaded, steps), (twin, restored))]
    assert after[0].grad_norm == after[1].grad_norm
    left, right = steps.state_dict()["masters"], restored.state_dict()["masters"]
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_gradients_of_several_passes_are_added_up_in_float32() -> None:
    weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    optimizer = MasterWeights({"weight": weight}, lambda named: torch.optim.SGD(named.values(), lr=1.0))
    for factor in (1.0, 2.0**-9):  # whose sum in bfloat16 is 1
        (weight * factor).sum().backward()
    optimizer.step()
    assert master_of(weight).tolist() == [-1.0 - 2.0**-9] * 2
    assert weight.tolist() == [-1.0, -1.0]
    optimizer.zero_grad()
    (weight * 0.5).sum().backward()
    optimizer.step()
    assert master_of(weight).tolist() == [-1.5 - 2.0**-9] * 2, "a step's gradients are its own"


@pytest.mark.parametrize("there", [True, False])
def test_auto_computes_in_bfloat16_only_if_the_cpu_has_instructions_for_it(
    lamps_model: Path, bfloat16_instructions: Callable[[bool], None], there: bool
) -> None:
    bfloat16_instructions(there)
    config = lamps_config(autocast="auto")
    loaded = load_model(lamps_model, device="cpu", dtype="float32")
    samples = sampled(loaded, lamps_config())
    seen: list[torch.dtype] = []
    loaded.model.get_submodule("model.layers.0.mlp.up_proj").register_forward_hook(
        lambda layer, given, out: seen.append(out.dtype)
    )
    with precision(loaded, config):
        score_tokens(
            loaded.model,
            microbatches(samples, budget=4096, vocabulary=vocabulary_size(loaded.model))[0],
            config.sampling,
        )
    assert set(seen) == {torch.bfloat16 if there else torch.float32}
    assert uses_trainer_logprobs(loaded, config) == there
    assert logp_diff_limits(loaded, config) == logp_diff_limits(loaded, lamps_config(autocast=there))
