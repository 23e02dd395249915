"""The update half of a GRPO step: ratios, microbatches, and what is refused."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import lamps
from short_runs import sampled

from gradus.algorithms import LossResult, algorithm_names, find_algorithm, registry
from gradus.core import ConfigError
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.local.sampling import SamplingConfig
from gradus.training.config import GrpoConfig
from gradus.training.data.microbatches import MicroBatch
from gradus.training.data.sequences import TrainingSample
from gradus.training.distributed.processes import TrainingProcess
from gradus.training.engine import update
from gradus.training.engine.loss_step import PassBudget, TrainingError
from gradus.training.engine.optimizers import make_optimizer
from gradus.training.engine.prepare import prepare_model
from gradus.training.engine.reference import load_reference
from gradus.training.engine.update import UpdateOptions, policy_update
from gradus.training.engine.update_figures import UpdateSums, pass_figures
from gradus.training.trainer_config import LoraConfig


def config(**settings) -> GrpoConfig:
    settings.setdefault("sampling", SamplingConfig(max_new_tokens=4, grammar=True))
    return GrpoConfig(groups=4, group_size=4, max_turns=3, **settings)


def gradient(loaded: LoadedModel, credited: list[TrainingSample], settings: GrpoConfig, **options: Any) -> torch.Tensor:
    """Plain descent with lr 1 moves the weights by the gradient."""
    before = [parameter.detach().clone() for parameter in loaded.model.parameters()]
    policy_update(
        loaded,
        torch.optim.SGD(loaded.model.parameters(), lr=1.0),
        credited,
        settings,
        1.0,
        options=UpdateOptions(**options),
    )
    moved = [old - new.detach() for old, new in zip(before, loaded.model.parameters(), strict=True)]
    with torch.no_grad():
        for parameter, old in zip(loaded.model.parameters(), before, strict=True):
            parameter.copy_(old)
    return torch.cat([part.flatten() for part in moved])


@pytest.mark.parametrize("algorithm", algorithm_names())
def test_the_gradient_does_not_depend_on_the_cut(loaded: LoadedModel, algorithm: str) -> None:
    settings = config(algorithm=algorithm, grad_clip=0)
    credited = sampled(loaded, settings)
    whole = gradient(loaded, credited, settings)
    assert whole.abs().max() > 0
    for budget in (1, 40, 100):
        cut = gradient(loaded, credited, settings.model_copy(update={"token_budget": budget}))
        assert (cut - whole).abs().max() < 1e-5 * whole.abs().max()


@pytest.mark.parametrize("algorithm", ["gradus", "grpo"])  # divided by tokens, by sequences
def test_skipping_what_has_no_signal_changes_nothing(loaded: LoadedModel, algorithm: str) -> None:
    settings = config(algorithm=algorithm, credit="episode", grad_clip=0)
    credited = sampled(loaded, settings)
    silent = [replace(one, advantages=torch.zeros(one.actions)) for one in credited[:5]]
    some_silent = [*silent, *credited[5:]]
    skipped = gradient(loaded, some_silent, settings)
    # A vanishing advantage is not skipped, and weighs nothing.
    tiny = [replace(one, advantages=one.advantages + 1e-30) for one in silent]
    assert torch.allclose(skipped, gradient(loaded, [*tiny, *credited[5:]], settings), atol=1e-7)


def test_ratio_is_one_before_the_first_update_and_not_after_it(loaded: LoadedModel) -> None:
    settings = config(lr=1e-2, scale="none")
    credited = sampled(loaded, settings)
    once = policy_update(loaded, torch.optim.SGD(loaded.model.parameters(), lr=0.0), credited, settings, 0.0)
    assert once.figures["ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert once.logp_diff_max < 1e-5
    twice = settings.model_copy(update={"epochs": 2})
    moved = policy_update(loaded, make_optimizer(loaded.model, twice), credited, twice, 1e-2)
    assert moved.figures["ratio_max"] > 1.01
    assert moved.figures["kl"] > 0
    assert moved.logp_diff_max == once.logp_diff_max  # measured before the weights moved


@pytest.mark.parametrize("by_trainer", [False, True])
@pytest.mark.parametrize("minibatches", [1, 4])
def test_a_difference_in_any_minibatch_stops_the_step_before_a_weight_moves(
    loaded: LoadedModel, by_trainer: bool, minibatches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update, "uses_trainer_logprobs", lambda *_: by_trainer)
    settings = config(minibatches=minibatches)
    credited = sampled(loaded, settings)
    wrong = [replace(one, logprobs=one.logprobs - 1.5) if one.key[0] == 2 else one for one in credited]
    before = [parameter.detach().clone() for parameter in loaded.model.parameters()]
    for shuffle in range(4):  # each puts another minibatch first
        with pytest.raises(TrainingError, match=r"up to 1\.5 nats"):
            policy_update(
                loaded,
                make_optimizer(loaded.model, settings),
                wrong,
                settings,
                1e-2,
                options=UpdateOptions(key=(shuffle,)),
            )
    assert all(map(torch.equal, before, loaded.model.parameters()))


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingConfig(max_new_tokens=5, temperature=0.5),
        SamplingConfig(max_new_tokens=5, temperature=1.5, grammar=True),
        SamplingConfig(max_new_tokens=5, top_k=7),
        SamplingConfig(max_new_tokens=5, top_p=0.7, temperature=1.5),
    ],
)
@pytest.mark.parametrize("restart", [False, True])
def test_sampler_and_trainer_agree(lamps_model: Path, sampling: SamplingConfig, restart: bool) -> None:
    loaded = load_model(lamps_model, device="cpu")
    settings = config(sampling=sampling)
    spec = lamps(turns=5, restart=restart)
    credited = sampled(loaded, settings, spec)
    everything = [replace(one, advantages=torch.ones(one.actions)) for one in credited]
    result = policy_update(loaded, torch.optim.SGD(loaded.model.parameters(), lr=0.0), everything, settings, 0.0)
    assert result.logp_diff_max < 1e-5
    assert result.trained_tokens == sum(one.actions for one in credited)


@pytest.mark.parametrize("restart", [False, True])
def test_what_is_shown_is_learned_beside_the_reward(lamps_model: Path, restart: bool) -> None:
    """The gradient of observations is that of their plain log-likelihood, whatever is sampled with, shared or masked."""
    loaded = load_model(lamps_model, device="cpu")
    settings = config(grad_clip=0, sampling=SamplingConfig(max_new_tokens=4, temperature=1.5, grammar=True))
    credited = sampled(loaded, settings, lamps(turns=3, restart=restart))
    without = gradient(loaded, credited, settings)
    both = gradient(loaded, credited, settings.model_copy(update={"observations": 0.5}))
    shown = [(one, one.read) for one in credited if one.read is not None and len(one.read)]
    assert shown
    loss = torch.zeros(())
    for one, read in shown:
        loss = loss - loaded.model(one.ids[None]).logits[0].log_softmax(-1)[read - 1, one.ids[read]].sum()
    alone = torch.autograd.grad(0.5 * loss / sum(one.actions for one in credited), list(loaded.model.parameters()))
    expected = without + torch.cat([part.flatten() for part in alone])
    assert (both - expected).abs().max() < 1e-5 * expected.abs().max()
    assert (both - without).abs().max() > 0.01 * expected.abs().max()


def test_minibatches_keep_groups_whole_and_use_every_token(loaded: LoadedModel) -> None:
    settings = config(minibatches=2, epochs=2)
    credited = sampled(loaded, settings)
    result = policy_update(
        loaded, make_optimizer(loaded.model, settings), credited, settings, 1e-3, options=UpdateOptions(key=(1,))
    )
    live = [one for one in credited if one.live]
    assert result.trained_tokens == sum(one.actions for one in live)


def test_entropy_and_divergence_are_means_over_all_tokens_of_the_step(loaded: LoadedModel, lamps_model: Path) -> None:
    """Against the plain logits; tokens without an advantage count too."""
    settings = config(grad_clip=0, sampling=SamplingConfig(max_new_tokens=4))
    credited = sampled(loaded, settings)
    credited[:5] = [replace(one, advantages=torch.zeros(one.actions)) for one in credited[:5]]
    reference = load_model(lamps_model, device="cpu").model
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(1.1)
    loss = torch.zeros(())
    for one in credited:
        own, other = (
            model(one.ids[None]).logits[0][one.positions - 1].log_softmax(-1) for model in (loaded.model, reference)
        )
        entropy = -(own.exp() * own).sum()
        distance = (own - other.detach()).gather(1, one.ids[one.positions][:, None]) ** 2 / 2
        loss = loss + (0.2 * distance.sum() - 0.3 * entropy) / sum(each.actions for each in credited)
    alone = torch.autograd.grad(loss, list(loaded.model.parameters()))
    expected = gradient(loaded, credited, settings) + torch.cat([part.flatten() for part in alone])
    both = settings.model_copy(update={"entropy_coef": 0.3, "kl_coef": 0.2})
    got = gradient(loaded, credited, both, reference=partial(nullcontext, reference))
    assert (got - expected).abs().max() < 1e-4 * expected.abs().max()


def test_the_divergence_is_weighted_by_how_far_the_policy_moved_from_the_sampler(
    loaded: LoadedModel, lamps_model: Path
) -> None:
    settings = config(grad_clip=0, epochs=2, kl_coef=5.0, sampling=SamplingConfig(max_new_tokens=4))
    silent = [replace(one, advantages=torch.zeros(one.actions)) for one in sampled(loaded, settings)]
    own, reference = (load_model(lamps_model, device="cpu").model for _ in range(2))
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(1.1)
    before = torch.cat([parameter.detach().flatten() for parameter in own.parameters()])
    tokens = sum(one.actions for one in silent)
    for _ in range(2):
        loss = torch.zeros(())
        for one in silent:
            at = one.ids[one.positions][:, None]
            p, r = (
                m(one.ids[None]).logits[0][one.positions - 1].log_softmax(-1).gather(1, at)[:, 0]
                for m in (own, reference)
            )
            ratio = (p.detach() - one.logprobs.float()).exp()
            loss = loss + 5.0 * (ratio * (p - r.detach()) ** 2 / 2).sum() / tokens
        torch.optim.SGD(own.parameters(), lr=1.0).zero_grad()
        loss.backward()
        torch.optim.SGD(own.parameters(), lr=1.0).step()
    expected = before - torch.cat([parameter.detach().flatten() for parameter in own.parameters()])
    got = gradient(loaded, silent, settings, reference=partial(nullcontext, reference))
    assert (got - expected).abs().max() < 1e-3 * expected.abs().max()


@pytest.mark.parametrize("algorithm", ["dr_grpo", "grpo", "gspo"])
def test_an_episode_weighs_the_same_however_often_it_restarts(loaded: LoadedModel, algorithm: str) -> None:
    """The gradient is that of the papers' formulas, with an episode as the sequence. Each restart counted as a sequence of its own."""
    settings = config(algorithm=algorithm, credit="episode", grad_clip=0)
    credited = sampled(loaded, settings, lamps(restart=True))
    episodes = {one.episode for one in credited}
    assert len(credited) > len(episodes)
    lengths = {episode: sum(one.actions for one in credited if one.episode == episode) for episode in episodes}
    loss = torch.zeros(())
    for one in credited:
        at = one.ids[one.positions][:, None]
        scores = loaded.model(one.ids[None]).logits[0][one.positions - 1]
        legal = torch.full_like(scores, float("-inf"))
        for place, ids in enumerate(one.legal or ()):
            legal[place, list(ids)] = 0.0
        said = (scores + legal).log_softmax(-1).gather(1, at)[:, 0]
        divisor = settings.longest_episode if algorithm == "dr_grpo" else lengths[one.episode]
        loss = loss - ((said - said.detach()).exp() * one.advantages).sum() / divisor / len(episodes)
    loss.backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in loaded.model.parameters()])
    loaded.model.zero_grad()
    got = gradient(loaded, credited, settings)
    assert (got - expected).abs().max() < 1e-4 * expected.abs().max()


def with_memory_for(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes of more tokens fail as they do on a GPU."""
    score = update.score_tokens

    def scarce(model: torch.nn.Module, batch: MicroBatch, *args: Any, **options: Any) -> Any:
        if batch.input_ids.numel() > tokens:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return score(model, batch, *args, **options)

    monkeypatch.setattr(update, "score_tokens", scarce)


def test_out_of_memory_halves_the_passes_and_changes_no_gradient(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = config(grad_clip=0, token_budget=4000, epochs=1, minibatches=2)
    monkeypatch.setattr(update, "uses_trainer_logprobs", lambda *_: True)
    credited = sampled(loaded, settings)
    whole = gradient(loaded, credited, settings)
    assert not capsys.readouterr().err
    with_memory_for(120, monkeypatch)
    assert (gradient(loaded, credited, settings) - whole).abs().max() < 1e-5 * whole.abs().max()
    assert "going on with token_budget = 125" in capsys.readouterr().err
    budget = PassBudget(settings)
    policy_update(
        loaded, make_optimizer(loaded.model, settings), credited, settings, 0.0, options=UpdateOptions(budget=budget)
    )
    assert budget.tokens == 125  # later steps begin with what fits


def test_out_of_memory_names_the_setting_to_change(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(token_budget=4000)
    credited = sampled(loaded, settings)
    optimizer = make_optimizer(loaded.model, settings)
    before = [parameter.detach().clone() for parameter in loaded.model.parameters()]
    with monkeypatch.context() as scarce:
        with_memory_for(120, scarce)
        scarce.setattr(
            "gradus.training.engine.loss_step.world", lambda: TrainingProcess(size=2)
        )  # the other would not know
        with pytest.raises(TrainingError, match=r"pass of 4000 tokens.*lower token_budget"):
            policy_update(loaded, optimizer, credited, settings, 1e-3)

    def full() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(optimizer, "step", full)
    with pytest.raises(TrainingError, match="no memory is left for the optimizer's moments"):
        policy_update(loaded, optimizer, credited, settings, 1e-3)
    assert all(torch.equal(old, new) for old, new in zip(before, loaded.model.parameters(), strict=True))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("changes", [{}, {"autocast": True}, {"gradient_checkpointing": True}])
def test_with_adapters_the_reference_is_the_model_as_the_run_began(
    lamps_model: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(kl_coef=0.1, lora=LoraConfig(rank=4), max_logp_diff=10.0, **changes)
    loaded = prepare_model(lamps_model, settings)
    loaded = replace(loaded, path="nowhere")  # a second model could not be loaded
    reference = load_reference(loaded, settings)
    optimizer = make_optimizer(loaded.model, settings)
    start = policy_update(
        loaded, optimizer, sampled(loaded, settings), settings, 0.03, options=UpdateOptions(reference=reference)
    )
    assert start.figures["kl"] == pytest.approx(0.0, abs=1e-6)
    again = sampled(loaded, settings)
    weights = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    results: list[float] = []
    second = partial(nullcontext, load_model(lamps_model, device="cpu").model)
    for each in (reference, second):
        loaded.model.load_state_dict(weights)
        results.append(
            policy_update(loaded, optimizer, again, settings, 0.0, options=UpdateOptions(reference=each)).figures["kl"]
        )
    assert results[0] > 1e-4
    assert results[0] == pytest.approx(results[1], rel=1e-3)


def test_the_entropy_bonus_moves_a_token_by_its_share(loaded: LoadedModel) -> None:
    settings = config(entropy_coef=0.3)
    silent = [replace(each, advantages=torch.zeros(each.actions)) for each in sampled(loaded, settings)]

    def moved(mark: Callable[[int], torch.Tensor]) -> torch.Tensor:
        return gradient(loaded, [replace(each, entropy=mark(each.actions)) for each in silent], settings)

    everywhere, first = torch.ones, (lambda count: (torch.arange(count) < 1).float())
    whole, part, rest = moved(everywhere), moved(first), moved(lambda count: 1.0 - first(count))
    assert float(whole.norm()) > 0
    assert torch.equal(whole, gradient(loaded, silent, settings))
    assert float(part.norm()) > 0
    torch.testing.assert_close(part + rest, whole, rtol=1e-4, atol=1e-6)
    assert not moved(torch.zeros).any()


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (lambda own, *_, **__: LossResult(loss=own.sum(), metrics={}), None),
        (lambda own, *_, **__: own.sum(), "must return a LossResult .*, got tensor"),
        (lambda own, *_, **__: LossResult(loss=own[0], metrics={}), "one number with a gradient"),
        (lambda own, *_, **__: LossResult(loss=own.sum().detach(), metrics={}), "one number with a gradient"),
    ],
)
def test_a_loss_of_ones_own_is_held_to_its_word(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, loss: Any, says: str | None
) -> None:
    own = replace(find_algorithm("grpo"), loss=loss)
    monkeypatch.setattr(registry, "_ALGORITHMS", {**registry._ALGORITHMS, "mine": own})
    settings = config(algorithm="mine")
    samples = sampled(loaded, settings)
    with nullcontext() if says is None else pytest.raises(ConfigError, match=says):
        gradient(loaded, samples, settings)
    optimizer = torch.optim.SGD(loaded.model.parameters(), lr=0.0)
    figures = None if says else policy_update(loaded, optimizer, samples, settings, 0.0).figures
    assert figures is None or (figures["clip_fraction"], figures["ratio_max"], figures["kl"]) == (None, None, None)


def test_a_loss_of_ones_own_gets_the_tokens_without_advantage_too(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have terms that no advantage scales; groups without variance were left out."""

    def loss(own: torch.Tensor, *_: Any, n_tokens: float, **__: Any) -> LossResult:
        return LossResult(loss=-own.sum() / n_tokens, metrics={})

    own = replace(find_algorithm("grpo"), loss=loss)
    monkeypatch.setattr(registry, "_ALGORITHMS", {**registry._ALGORITHMS, "mine": own})
    settings = config(algorithm="mine", grad_clip=0)
    live = [replace(one, advantages=torch.ones(one.actions)) for one in sampled(loaded, settings)]
    some_silent = [replace(one, advantages=torch.zeros(one.actions)) for one in live[:5]] + live[5:]
    got, expected = gradient(loaded, some_silent, settings), gradient(loaded, live, settings)
    torch.testing.assert_close(got, expected)


def test_what_a_loss_of_ones_own_measures_is_among_the_figures(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was dropped. Microbatches are added up, updates are averaged."""

    def loss(own: torch.Tensor, *_: Any, n_tokens: float, **__: Any) -> LossResult:
        metrics = {"tokens": own.numel() / n_tokens, "logp": own.sum() / n_tokens, "surprise_max": (-own).max()}
        return LossResult(loss=own.sum(), metrics=metrics)

    own = replace(find_algorithm("grpo"), loss=loss)
    monkeypatch.setattr(registry, "_ALGORITHMS", {**registry._ALGORITHMS, "mine": own})
    settings = config(algorithm="mine", minibatches=2, token_budget=64)
    samples = [replace(one, advantages=torch.ones(one.actions)) for one in sampled(loaded, settings)]
    optimizer = torch.optim.SGD(loaded.model.parameters(), lr=0.0)
    figures = policy_update(loaded, optimizer, samples, settings, 0.0).figures
    measured = figures["loss_metrics"]
    logprobs = torch.cat([one.logprobs for one in samples])
    assert measured["tokens"] == pytest.approx(1.0)
    assert measured["surprise_max"] == pytest.approx(float(-logprobs.min()), rel=1e-4)
    assert -measured["surprise_max"] < measured["logp"] < 0
    assert "loss_metrics" not in policy_update(loaded, optimizer, samples, config(), 0.0).figures


def test_a_loss_of_ones_own_may_measure_something_in_some_updates_only() -> None:
    figures = pass_figures([UpdateSums(metrics=[{"rare": torch.tensor(0.5)}]), UpdateSums()])
    assert figures["loss_metrics"] == {"rare": 0.5}
