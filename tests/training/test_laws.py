"""Each law is broken by a fault that leaves its mark on nothing else, and by no healthy run of a small sample; `make prove` has 300."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import healthy_runs
import numpy as np
import pytest
import torch
from fakes import lamps
from healthy_runs import healthy_settings, largest_shares, teach
from short_runs import Stopped, grpo_config, lines, stop_after, train

import gradus
from gradus.algorithms import LOSSES, Algorithm, LossResult
from gradus.core import ConfigError, Episode, Observation, Reward, StopReason
from gradus.interop.suites import games
from gradus.interop.suites.games import ClassEnvironment
from gradus.policies.local import conversation, policy, sampling
from gradus.policies.local.conversation import Conversation
from gradus.policies.local.kv_cache import RaggedCache
from gradus.policies.scripted import FunctionPolicy
from gradus.rollouts.under_way import UnderWay
from gradus.training import distill, grpo, learner, lesson_model, lessons, sft
from gradus.training.config import GrpoConfig
from gradus.training.data import tasks
from gradus.training.data.answer_targets import AnswerTargets
from gradus.training.data.sequences import TrainingSample
from gradus.training.engine import loss_step, objective, optimizers, prepare, update
from gradus.training.engine.optimizers import make_optimizer
from gradus.training.law_names import LAWS
from gradus.training.laws.grading import weighed_again
from gradus.training.laws.movement import Movement
from gradus.training.laws.rolled import played_again
from gradus.training.laws.runner import LawBroken, norm_of
from gradus.training.lesson_model import LocalLessonModel
from gradus.training.run import checkpoints, splits, validation
from gradus.training.run.splits import GrpoSplits

Call = Callable[..., Any]


def then(change: Call) -> Callable[[Call], Call]:
    """Changes what a function returns."""
    return lambda real: lambda *args, **options: change(real(*args, **options))


def advantages(change: Callable[[TrainingSample], Any]) -> Callable[[Call], Call]:
    return then(lambda samples: [replace(sample, advantages=change(sample)) for sample in samples])


def without_ends(samples: Sequence[TrainingSample]) -> list[TrainingSample]:
    """A mask that leaves out the last token of each answer."""
    return [sample.only(sample.offsets < sample.offsets.max()) for sample in samples]


def of_the_next(result: Any) -> Any:
    """Each episode gets the reward of the next one."""
    episodes = [episode for group in result.groups for episode in group.episodes]
    rewards = [episode.reward for episode in (*episodes[1:], episodes[0])]
    mixed = iter([replace(episode, reward=reward) for episode, reward in zip(episodes, rewards, strict=True)])
    groups = [replace(group, episodes=tuple(next(mixed) for _ in group.episodes)) for group in result.groups]
    return replace(result, groups=groups)


def hotter(config: Any) -> Any:
    """transformers draws at another temperature than the model was trained at."""
    config.temperature = 0.5
    return config


def times_two(result: Any) -> Any:
    """Rewards are added up without the weights of their terms."""
    groups: list[Any] = []
    for group in result.groups:
        rewards = [replace(each.reward, value=2 * each.reward.value) for each in group.episodes]
        episodes = [replace(each, reward=reward) for each, reward in zip(group.episodes, rewards, strict=True)]
        groups.append(replace(group, episodes=tuple(episodes)))
    return replace(result, groups=groups)


def one_noise(real: Call) -> Call:
    """All members of a group draw with the numbers of its first."""
    return lambda key, *rest: real((*key[:-1], 0), *rest)


def saves_others(real: Call) -> Call:
    def save(path: Path, loaded: Any) -> None:
        parameter = next(iter(loaded.model.parameters()))
        with torch.no_grad():
            parameter.mul_(1.5)
            real(path, loaded)
            parameter.div_(1.5)

    return save


def saves_rounded(real: Call) -> Call:
    """The folder has 8 bits of each weight, the model in memory all of them."""

    def save(path: Path, loaded: Any) -> None:
        exact = {name: value.clone() for name, value in loaded.model.state_dict().items()}
        loaded.model.load_state_dict({name: value.bfloat16() for name, value in exact.items()})
        real(path, loaded)
        loaded.model.load_state_dict(exact)

    return save


def stores_moments(change: Call) -> Callable[[Call], Call]:
    """A checkpoint has other moments than the optimizer."""

    def fault(real: Call) -> Call:
        def collect(state: Any) -> Call:
            kept = state.optimizer.state_dict()
            moments = {number: {**each, "exp_avg": change(each["exp_avg"])} for number, each in kept["state"].items()}
            fake = SimpleNamespace(state_dict=lambda: {**kept, "state": moments})
            return real(SimpleNamespace(model=state.model, optimizer=fake))

        return collect

    return fault


def forgets_the_step(real: Call, *args: Any, key: Any, **options: Any) -> Any:
    """Every step draws with the same random numbers."""
    return real(*args, key=("step", 1, *key[2:]), **options)


def last_pass_alone(real: Call) -> Call:
    """All microbatches are computed, and the gradient is that of the last."""

    def passes(loaded: Any, optimizer: Any, batches: Any, loss: Any) -> None:
        optimizer.zero_grad()
        losses = [loss(batch) for batch in batches]
        losses[-1].backward()

    return passes


def without_zero(real: Call) -> Call:
    """The gradient of the step before is still there."""
    before: list[Any] = []

    def passes(loaded: Any, optimizer: Any, batches: Any, loss: Any) -> None:
        real(loaded, optimizer, batches, loss)
        for place, parameter in enumerate(loaded.model.parameters()):
            if len(before) > place:
                parameter.grad += before[place]
            else:
                before.append(parameter.grad.clone())

    return passes


def anew(real: Call) -> Call:
    """The denominator of the ratio follows the policy."""
    return lambda self, indexes, sampled, logprobs: logprobs.detach()


def forgetful(real: Call) -> Call:
    """Each step has an optimizer of its own."""

    def update(model: Any, optimizer: Any, samples: Any, config: Any, *rest: Any) -> Any:
        return real(model, make_optimizer(model.model, config), samples, config, *rest)

    return update


def all_shown(samples: Sequence[TrainingSample]) -> list[TrainingSample]:
    """Observations predict the prompt and the answers too."""
    return [replace(sample, read=torch.arange(1, len(sample))) for sample in samples]


def shifted_mean(sample: TrainingSample) -> Any:
    return sample.advantages + 0.3


def one_prefix(batches: Sequence[Any]) -> list[Any]:
    """All shared prefixes of a pass hold the prompt of its first group."""
    changed: list[Any] = []
    for batch in batches:
        number, length = batch.tree.prefixes
        ids = batch.input_ids.clone()
        ids[0, : number * length] = ids[0, :length].repeat(number)
        changed.append(replace(batch, input_ids=ids))
    return changed


def cache_of_first(real: Call) -> Call:
    """Rows that begin as another one get the cache of the first group's prompt."""
    return lambda self, sources, targets, width: real(self, [sources[0]] * len(targets), targets, width)


def without_ratio(real: Call) -> Call:
    """In later epochs the divergence is not weighed by the ratio to the sampler."""
    return lambda config, plan, tokens, reference: real(config, plan, replace(tokens, old=tokens.logprobs), reference)


def without_alpha(real: Call) -> Call:
    """Adapters are scaled by 1, whatever alpha is set."""
    return lambda model, config, seed: real(model, config.model_copy(update={"alpha": config.rank}), seed)


def late(real: Call) -> Call:
    """Episodes are stored under the name of another step."""
    return lambda path, *rest, **options: real(path.with_name("step-000009.jsonl.gz"), *rest, **options)


def beyond_the_limit(real: Call) -> Call:
    """Episodes of the validation have as many turns as the environment allows."""
    return lambda *args, **options: real(*args, **{**options, "max_turns": None})


def never_greedy(real: Call) -> Call:
    return lambda *args, greedy=False, **options: real(*args, **options)


def all_layers(real: Call) -> Call:
    """Adapters are put on all linear layers, whichever the settings name."""
    return lambda model, config, seed: real(model, config.model_copy(update={"targets": "all-linear"}), seed)


VALIDATED = {"validation_every": 1, "validation_tasks": 4}


FAULTS: list[tuple[str, Any, str, Callable[[Call], Call], dict[str, Any]]] = [
    ("credit", learner, "credit_groups", advantages(lambda each: each.advantages * (1 - 2 * (each.key[0] == 1))), {}),
    ("credit", learner, "credit_groups", advantages(shifted_mean), {"credit": "episode"}),
    ("credit", learner, "credit_groups", advantages(lambda each: 2 * each.advantages), {}),
    ("tokens", learner, "credit_groups", then(without_ends), {}),
    ("loss", objective, "plan_update", then(lambda plan: replace(plan, n_tokens=2 * plan.n_tokens)), {}),
    ("loss", update, "backward_passes", last_pass_alone, {"token_budget": 60}),
    ("loss", update, "backward_passes", without_zero, {}),
    ("loss", update.UpdateTrainer, "old_logprobs", anew, {"epochs": 2}),
    (
        "loss",
        update,
        "plan_epoch",
        lambda real: lambda samples, config, key: real(samples, config, ()),
        {"minibatches": 2},
    ),
    ("loss", update, "kl_loss", then(lambda term: (2 * term[0], term[1])), {"kl_coef": 0.1}),
    (
        "loss",
        GrpoConfig,
        "at_step",
        lambda real: lambda self, step: self,
        {"entropy_coef": 0.1, "entropy_schedule": "linear"},
    ),
    ("tokens", learner, "credit_groups", then(all_shown), {}),
    ("optimizer", learner, "policy_update", forgetful, {}),
    ("optimizer", optimizers, "_is_embedding", lambda real: lambda name: False, {"optimizer": "muon"}),
    ("optimizer", grpo, "lr_at", then(lambda lr: 2 * lr), {}),
    ("optimizer", loss_step, "clip_gradients", lambda real: lambda model, limit: real(model, 0.0), {"grad_clip": 0.01}),
    ("grading", grpo, "roll_out", then(of_the_next), {"credit": "episode"}),
    ("grading", grpo, "roll_out", then(times_two), {}),
    ("saved", checkpoints, "generation_config", then(hotter), {}),
    ("saved", learner, "save_model", saves_others, {}),
    ("saved", learner, "save_model", saves_rounded, {}),
    ("tasks", grpo, "training_tasks", then(lambda result: (result[0], result[1] - 1)), {}),
    ("tasks", grpo, "training_tasks", then(lambda result: (result[0][:1] * len(result[0]), result[1])), {}),
    ("tasks", tasks, "_shuffle", lambda real: lambda seed, epoch, number: np.arange(number), {"tasks": 20}),
    ("tasks", tasks, "_shuffle", lambda real: lambda seed, *rest: real(0, *rest), {"tasks": 20}),
    ("replay", UnderWay, "_turn", then(lambda turn: replace(turn, env_reward=0.25)), {}),
    ("replay", UnderWay, "closed", then(lambda episode: replace(episode, stop=StopReason.TOKEN_LIMIT)), {}),
    ("replay", UnderWay, "_turn", then(lambda turn: replace(turn, observation=turn.observation[:-1])), {}),
    ("text", conversation, "opening_ids", lambda real: lambda renderer, prompt, seen: real(renderer, "", seen), {}),
    (
        "text",
        Conversation,
        "_continuation",
        lambda real: lambda self, renderer, seen: real(self, renderer, Observation(text="lamp red")),
        {},
    ),
    ("text", conversation, "Action", lambda real: lambda **fields: real(**{**fields, "text": fields["text"][:-1]}), {}),
    ("draws", sampling, "draw", lambda real: lambda logprobs, uniforms: real(logprobs, uniforms.sqrt()), {}),
    ("draws", grpo, "roll_out", lambda real: partial(forgets_the_step, real), {}),
    ("draws", UnderWay, "closed", then(lambda episode: replace(episode, group=0)), {}),
    ("sampler", sampling, "_scaled", lambda real: lambda logits, temperature: logits * 1.1, {}),
    ("checkpoint", checkpoints.LocalState, "collect", stores_moments(torch.zeros_like), {}),
    ("checkpoint", checkpoints.LocalState, "collect", stores_moments(torch.flatten), {}),
    (
        "checkpoint",
        grpo,
        "Checkpoint",
        lambda real: lambda **fields: real(**{**fields, "step": fields["step"] - 1}),
        {},
    ),
    (
        "records",
        grpo,
        "write_episodes",
        lambda real: lambda path, episodes, **rest: real(path, episodes[1:], **rest),
        {"store_every": 1},
    ),
    ("tokens", update, "microbatches", then(one_prefix), {"max_logp_diff": 30.0}),
    ("sampler", RaggedCache, "copy", cache_of_first, {"max_logp_diff": 30.0, "laws": {"off": ["draws"]}}),
    ("loss", update, "kl_loss", without_ratio, {"kl_coef": 0.5, "epochs": 3}),
    ("optimizer", prepare, "_with_lora", without_alpha, {"lora": {"rank": 4, "alpha": 32}}),
    ("saved", checkpoints, "free_sampling", then(lambda sampling: sampling.changed(max_new_tokens=3)), {}),
    ("records", grpo, "write_episodes", late, {"store_every": 2}),
    ("records", grpo, "step_record", then(lambda record: {**record, "turns_mean": 2.5}), {}),
    ("records", grpo, "step_record", then(lambda record: {**record, "reward_mean": record["reward_mean"] + 0.01}), {}),
    ("records", grpo, "chosen_reward", then(lambda reward: -reward), {"validation_every": 1, "validation_tasks": 8}),
    ("replay", validation, "roll_out", beyond_the_limit, {"max_turns": 1, **VALIDATED}),
    ("draws", learner, "sampling_policy", never_greedy, VALIDATED),
    ("draws", validation, "child_seed", lambda real: lambda seed, *key: seed, VALIDATED),
    ("records", validation, "_rounded", lambda real: lambda value: None, VALIDATED),
    ("tasks", splits, "validation_tasks", then(lambda tasks: tasks[1:]), VALIDATED),
    ("records", GrpoSplits, "store", lambda real: lambda self, folder, next_task: real(self, folder, 1), {}),
    ("records", update, "pass_figures", lambda real: lambda sums: real(sums[:1]), {"minibatches": 2, "lr": 1e-2}),
    ("records", grpo, "step_record", then(lambda record: {**record, "tokens": record["action_tokens"]}), {}),
    ("replay", conversation.PendingTurn, "room", then(lambda room: room - 1), {}),
    ("grading", Episode, "env_return", lambda real: property(lambda self: 0.5), {}),
    ("optimizer", prepare, "_with_lora", all_layers, {"lora": {"rank": 4, "alpha": 8, "targets": ["q_proj"]}}),
]


@pytest.mark.parametrize(("law", "module", "name", "fault", "changes"), FAULTS)
def test_a_fault_breaks_its_law(
    lamps_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    law: str,
    module: Any,
    name: str,
    fault: Callable[[Call], Call],
    changes: dict[str, Any],
) -> None:
    monkeypatch.setattr(module, name, fault(getattr(module, name)))
    with pytest.raises(
        LawBroken, match=rf"law broken: {law}: .* Step \d+, .*: the run has .*, computed again it is"
    ) as broken:
        train(lamps_model, tmp_path / "run", grpo_config(max_steps=4, **changes))
    assert broken.value.law == law


def loads_no_moments(real: Call) -> Call:
    """A run that goes on begins with new moments."""

    def load(state: Any, folder: Path) -> None:
        real(SimpleNamespace(model=state.model, optimizer=SimpleNamespace(load_state_dict=lambda state: None)), folder)

    return load


RESUMED: list[tuple[Any, str, Callable[[Call], Call]]] = [
    (checkpoints.LocalState, "load", loads_no_moments),
    (grpo, "GrpoState", lambda real: lambda **fields: real(**{**fields, "next_task": 0})),
    (grpo, "go_back", then(lambda checkpoint: replace(checkpoint, step=checkpoint.step - 1))),
]


@pytest.mark.parametrize(("module", "name", "fault"), RESUMED)
def test_a_run_that_goes_on_elsewhere_breaks_a_law(
    lamps_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, fault: Any
) -> None:
    config = grpo_config(max_steps=4, checkpoint_every=2)
    with pytest.raises(Stopped):
        train(lamps_model, tmp_path / "run", config, on_step=stop_after(3))
    with monkeypatch.context() as patch:
        patch.setattr(module, name, fault(getattr(module, name)))
        with pytest.raises(LawBroken, match="law broken: checkpoint"):
            train(lamps_model, tmp_path / "run", config, resume=True)
    train(lamps_model, tmp_path / "run", config, resume=True)


def test_a_law_that_is_off_stops_nothing(lamps_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner, "credit_groups", advantages(lambda each: 2 * each.advantages)(learner.credit_groups))
    train(lamps_model, tmp_path / "run", grpo_config(max_steps=1, laws={"off": ["credit"]}))
    first, *_ = lines(tmp_path / "run", "laws")
    assert first["not_measured"]["credit"] == "it is in laws.off"
    assert "tokens" in first["worst"]
    with pytest.raises(ValueError, match="laws"):
        GrpoConfig(laws={"off": ["gravity"]})  # type: ignore[arg-type]


def test_a_reference_that_moves_with_the_policy_breaks_its_law(
    lamps_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner, "load_reference", lambda loaded, config: partial(nullcontext, loaded.model))
    with pytest.raises(LawBroken, match="law broken: reference"):
        train(lamps_model, tmp_path / "run", grpo_config(max_steps=4, kl_coef=0.1))


def test_members_that_share_their_noise_break_a_law(
    lamps_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "turn_uniforms", one_noise(policy.turn_uniforms))
    with pytest.raises(LawBroken, match=r"law broken: independence: .*share of equal first answers in 16 groups"):
        train(lamps_model, tmp_path / "run", grpo_config(max_steps=4, laws={"off": ["draws"]}))


def uncut(*args: Any, **sizes: Any) -> LossResult:
    """A loss of one's own that divides by the tokens of a microbatch."""
    result = LOSSES["dapo"](*args, **{**sizes, "n_tokens": float(args[3].sum())})
    return replace(result, metrics={})


UNCUT = Algorithm(loss=uncut, source="a test", scale="batch", clip=(0.2, 0.2))


def test_a_loss_of_ones_own_that_depends_on_the_cut_breaks_a_law(lamps_model: Path, tmp_path: Path) -> None:
    config = grpo_config(max_steps=2, algorithm=f"{__file__}:UNCUT")
    with pytest.raises(LawBroken, match="law broken: cuts"):
        train(lamps_model, tmp_path / "run", config)


def test_all_laws_are_measured_in_one_run(lamps_model: Path, tmp_path: Path) -> None:
    train(lamps_model, tmp_path / "run", grpo_config(max_steps=4, kl_coef=0.1))
    worst = largest_shares(tmp_path / "run")
    assert set(worst) == set(LAWS)
    assert max(worst.values()) < 0.5, worst


def test_a_grader_that_fails_on_some_answers_breaks_no_law(lamps_model: Path, tmp_path: Path) -> None:
    """A reward that raised on one answer of a group ended the run in a TypeError of the law that grades again."""
    right = lamps().graders["sum"]

    def fails_on_red(episodes: Sequence[Episode]) -> list[Reward]:
        rewards = right.compute(episodes)
        return [
            replace(reward, value=None, error="no rule for red") if "red" in episode.turns[0].action else reward
            for reward, episode in zip(rewards, episodes, strict=True)
        ]

    train(lamps_model, tmp_path / "run", grpo_config(max_steps=1), grader=replace(right, compute=fails_on_red))
    assert max(record["worst"].get("grading", 0.0) for record in lines(tmp_path / "run", "laws")) == 0
    assert lines(tmp_path / "run")[0]["ungraded_episodes"] > 0


def test_muon_in_bfloat16_is_no_fault() -> None:
    """Of a gradient of nearly one rank its products make anything in the directions of small singular values."""
    model = torch.nn.Linear(48, 96, bias=False)
    config = GrpoConfig(optimizer="muon", lr=1e-3, grad_clip=0.0)
    optimizer = make_optimizer(model, config)
    generator = torch.Generator().manual_seed(0)
    for step in range(1, 5):
        strong = torch.randn(96, 1, generator=generator) @ torch.randn(1, 48, generator=generator)
        model.weight.grad = strong + 4e-3 * torch.randn(96, 48, generator=generator)
        movement = Movement(cast(Any, SimpleNamespace(model=model)), optimizer, config, config.lr, step)
        norm = norm_of(model.weight.grad)
        optimizer.step()
        pairs = list(movement.again(norm))
        assert len(pairs) == 5
        assert all(abs(pair.first - pair.second) <= pair.allowed for pair in pairs), pairs


@pytest.mark.parametrize("number", [3, 11, 19])
def test_a_healthy_run_breaks_no_law(lamps_model: Path, tmp_path: Path, number: int) -> None:
    try:
        train(lamps_model, tmp_path / "run", grpo_config(max_steps=3, **healthy_settings(number)), lamps(turns=2))
    except ConfigError:
        pytest.skip("settings that are refused")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(360))
def test_no_healthy_run_is_stopped(number: int, tmp_path: Path) -> None:
    """Goes on where it was broken off: the folder of GRADUS_HEALTHY (by default in the temporary folder) keeps what has held."""
    from healthy_runs import healthy_run

    healthy_run(number, tmp_path)


def without_history(samples: Sequence[TrainingSample]) -> list[TrainingSample]:
    """Each conversation lacks what stood before its last turn."""
    return [replace(each, ids=each.ids.where(torch.arange(len(each)) >= 12, each.ids[0])) for each in samples]


def all_noisy(real: Call) -> Call:
    """All answer tokens that are read are replaced, whatever share the settings name."""
    return lambda sample, share, *rest: real(sample, 1.0, *rest)


def other_coin(real: Call) -> Call:
    """The short steps are those that should not be short."""
    return lambda config, *key: None if real(config, *key) else config.short_turns


LESSON_FAULTS: list[tuple[str, Any, str, Callable[[Call], Call]]] = [
    ("tasks", sft._SftLessons, "epoch", lambda real: lambda self, step: real(self, step + 1)),
    ("tasks", sft, "_hold_out", then(lambda parts: (parts[0][2:], [*parts[1], *parts[0][:2]]))),
    ("loss", LocalLessonModel, "_measure", then(lambda figures: replace(figures, accuracy=figures.accuracy + 0.5))),
    ("text", sft, "text_sequences", then(without_history)),
    ("loss", LocalLessonModel, "_measure", then(lambda figures: replace(figures, loss=figures.loss / 2))),
    ("text", sft, "text_sequences", then(without_ends)),
    (
        "text",
        sft,
        "text_sequences",
        then(lambda samples: [replace(each, episode=each.episode ^ 1) for each in samples]),
    ),
    ("tasks", sft._SftLessons, "batch", lambda real: lambda self, step: real(self, 1)),
    ("loss", sft, "likelihood", then(lambda learned: replace(learned, loss=2 * learned.loss))),
    ("tasks", sft, "text_sequences", then(lambda samples: samples[:-2])),
    ("tasks", sft, "child_seed", lambda real: lambda seed, *key: real(seed, *key[:2])),
    (
        "optimizer",
        lesson_model,
        "apply_gradients",
        lambda real: lambda loaded, optimizer, config, lr: real(loaded, optimizer, config, 2 * lr),
    ),
    ("optimizer", lessons, "lr_at", then(lambda lr: 0.9 * lr)),
    ("checkpoint", checkpoints.LocalState, "collect", stores_moments(torch.zeros_like)),
    ("records", lessons.RunFolder, "append", lambda real: lambda self, record: real(self, {**record, "step": 7})),
    ("saved", lesson_model, "save_model", saves_rounded),
]


AUGMENTED: list[tuple[str, Callable[[Call], Call], dict[str, Any]]] = [
    ("with_history_noise", all_noisy, {"history_noise": 0.2, "batch_size": 16}),
    ("turns_of", other_coin, {"short_turns": 1, "short_turns_share": 0.8}),
]


@pytest.mark.parametrize(("name", "fault", "settings"), AUGMENTED)
def test_what_is_changed_of_conversations_follows_the_settings(
    lamps_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fault: Any, settings: dict[str, Any]
) -> None:
    teach(lamps_model, tmp_path / "sound", **settings)
    monkeypatch.setattr(lessons, name, fault(getattr(lessons, name)))
    with pytest.raises(LawBroken, match="law broken: text"):
        teach(lamps_model, tmp_path / "run", **settings)


def of_the_first_turn(real: Call) -> Call:
    """What the teacher states for the first turn is the target of every turn."""
    return lambda self, sample, stated: real(self, sample, [stated[0]] * len(stated))


def by_the_other(real: Call) -> Call:
    """The share of the student is that of the teacher."""
    return lambda self, *rest, by_student: real(self, *rest, by_student=not by_student)


def same_noise(real: Call) -> Call:
    """Each step draws with the random numbers of the first."""
    return lambda *args, **options: real(*args, **{**options, "first_group": 0})


DISTILLED: list[tuple[str, Any, str, Callable[[Call], Call]]] = [
    ("draws", distill, "roll_out", same_noise),
    ("tokens", distill, "_samples", lambda real: lambda loaded, episode, number: real(loaded, episode, 0)),
    ("tasks", distill, "distillation_tasks", then(lambda tasks: tasks[::-1])),
    ("credit", AnswerTargets, "label", of_the_first_turn),
    ("tasks", distill._DistillLessons, "_roll_out", by_the_other),
]


@pytest.mark.parametrize(("law", "module", "name", "fault"), DISTILLED)
def test_a_fault_in_distillation_breaks_its_law(
    lamps_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, law: str, module: Any, name: str, fault: Any
) -> None:
    settings: dict[str, Any] = {"max_steps": 4, "batch_size": 4, "on_policy": 0.75, "lr": 3e-3}
    healthy_runs.distill(lamps_model, tmp_path / "sound", lamps(), **settings)
    monkeypatch.setattr(module, name, fault(getattr(module, name)))
    with pytest.raises(LawBroken, match=f"law broken: {law}"):
        healthy_runs.distill(lamps_model, tmp_path / "run", lamps(), **settings)


class Halves:
    """A class whose steps give half a point."""

    def reset(self, seed: int) -> str:
        return f"lamp {seed % 2}"

    def step(self, action: str) -> tuple[str, float, bool]:
        return "done", 0.5, True


def test_rewards_are_what_the_class_itself_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = gradus.load_environment(Halves)
    grader = spec.grader()

    def broken_law() -> list[str]:
        red = FunctionPolicy("one", lambda seen, script: "red")
        groups = gradus.roll_out(spec, red, tasks=[spec.train_task(0)]).groups
        pairs = [*weighed_again(groups, grader), *played_again(spec, groups)]
        return [pair.place for pair in pairs if pair.first != pair.second]

    assert not broken_law()
    monkeypatch.setattr(ClassEnvironment, "_next", then(lambda seen: replace(seen, reward=0.0))(ClassEnvironment._next))
    assert any("answer of turn" in place for place in broken_law())
    monkeypatch.undo()
    whole = then(lambda reward: replace(reward, value=0.0, terms=((),)))
    monkeypatch.setattr(games, "_reward", whole(games._reward))
    assert any("own rewards" in place for place in broken_law())


@pytest.mark.parametrize(("law", "module", "name", "fault"), LESSON_FAULTS)
def test_a_fault_in_sft_breaks_its_law(
    lamps_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, law: str, module: Any, name: str, fault: Any
) -> None:
    monkeypatch.setattr(module, name, fault(getattr(module, name)))
    with pytest.raises(LawBroken, match=f"law broken: {law}"):
        teach(lamps_model, tmp_path / "run")


def test_a_law_of_sft_can_be_left_out(lamps_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sft, "text_sequences", then(without_ends)(sft.text_sequences))
    teach(lamps_model, tmp_path / "run", laws={"off": ["text"]})
