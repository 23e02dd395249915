"""Supervised fine-tuning on stored text."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import lamps
from short_runs import ctrl_c_after, same_weights

from gradus.core import ConfigError, ContextLengthError, Episode, StopReason
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.scripted import FunctionPolicy
from gradus.rollouts import roll_out
from gradus.training.data.microbatches import microbatches
from gradus.training.data.sft_sequences import text_only, text_sequences
from gradus.training.lesson_config import SftConfig
from gradus.training.lessons import LessonResult, answer_pools, short_turns, with_history_noise
from gradus.training.run.folder import RunFolder
from gradus.training.run.options import RunOptions
from gradus.training.run.splits import task_id
from gradus.training.sft import train_sft

SPEC = lamps()


@cache
def lessons() -> Sequence[Episode]:
    """Sixty episodes of the teacher."""
    tasks = [SPEC.train_task(index) for index in range(60)]
    return roll_out(SPEC, SPEC.policy("gold"), tasks).episodes


@pytest.fixture
def taught() -> list[Episode]:
    return list(lessons())


def train(model: Path, folder: Path, config: SftConfig, *, resume: bool = False, **watch: Any) -> LessonResult:
    return train_sft(model, lessons(), config, folder, resume=resume, options=RunOptions(live=False, **watch))


def settings(**changes: Any) -> SftConfig:
    base: dict[str, Any] = {"epochs": 6, "batch_size": 12, "lr": 1e-2, "threads": 1, "device": "cpu"}
    return SftConfig(**{**base, "checkpoint_every": 4, "validation_share": 0.1, **changes})


def test_a_student_learns_what_the_teacher_says(lamps_model: Path, taught: list[Episode], tmp_path: Path) -> None:
    result = train_sft(lamps_model, taught, settings(epochs=12), tmp_path / "run", options=RunOptions(live=False))
    records = RunFolder(tmp_path / "run").records()
    assert {record["kind"] for record in records} == {"sft"}
    assert records[-1]["loss"] < 0.4 * records[0]["loss"]
    assert result.validation_accuracy > 0.5
    assert [record["epoch"] for record in records if "validation_loss" in record] == list(range(1, 13))
    best = load_model(result.best, device="cpu")
    policy = LocalPolicy(best, SamplingConfig(max_new_tokens=4, greedy=True))
    episodes = roll_out(SPEC, policy, SPEC.tasks("test", 8)).episodes
    assert all(turn.valid for episode in episodes for turn in episode.turns)


def test_only_answers_are_trained(loaded: LoadedModel, taught: list[Episode]) -> None:
    """The labels spell the teacher's answers, each with its stop token, and nothing that was read."""
    for sequence, episode in zip(text_sequences(loaded, taught[:5]), taught[:5], strict=True):
        labels = sequence.ids[sequence.positions].tolist()
        assert labels.count(loaded.renderer.stop_id) == len(episode.turns)
        for number, turn in enumerate(episode.turns):
            own = [i for i, at in zip(labels, sequence.turns, strict=True) if at == number]
            assert loaded.renderer.decode(own) == turn.action


def test_observations_are_learned_beside_answers_and_no_noise_reaches_them(
    loaded: LoadedModel, taught: list[Episode]
) -> None:
    (sequence,) = text_sequences(loaded, taught[:1])
    assert sequence.read is not None
    following = [token for turn in taught[0].turns[1:] for token in loaded.renderer.following(turn.observation)]
    noisy = with_history_noise(sequence, 1.0, answer_pools([sequence]), np.random.default_rng(0))
    assert not torch.equal(noisy.ids, sequence.ids)
    first = len(loaded.renderer.following(taught[0].turns[1].observation))
    for one, count in ((sequence, len(following)), (noisy, len(following)), (short_turns(sequence, 2), first)):
        (batch,) = microbatches([one], budget=4096)
        assert batch.labels.read_target.tolist() == following[:count]


def test_a_student_learns_what_the_world_answers(lamps_model: Path, taught: list[Episode], tmp_path: Path) -> None:
    def surprise(folder: Path) -> float:
        """Nats per token of observations."""
        model = load_model(folder, device="cpu")
        (sequence, *_) = text_sequences(model, taught[:1])
        with torch.no_grad():
            logits = model.model(sequence.ids[None]).logits[0]
        at = sequence.read
        return -float(logits.log_softmax(-1)[at - 1, sequence.ids[at]].mean())

    plain, both = (train(lamps_model, tmp_path / str(weight), settings(observations=weight)) for weight in (0.0, 0.5))
    assert surprise(both.final) < 0.5 * surprise(plain.final)
    assert plain.loss is not None
    assert both.loss < 2 * plain.loss  # the figure is that of answers alone


def test_text_becomes_the_tokens_that_the_policy_would_read(loaded: LoadedModel) -> None:
    """SFT's ids and the local policy's ids of one conversation are the same ids."""
    policy = LocalPolicy(loaded, SamplingConfig(max_new_tokens=4, grammar=True), grammar=SPEC.language.grammar)
    for restart in (False, True):
        spec = lamps(turns=4, restart=restart)
        episodes = [e for e in roll_out(spec, policy, [spec.train_task(i) for i in range(6)]).episodes if _whole(e)]
        assert episodes
        for episode in episodes:
            read = [turn.tokens for turn in episode.turns if turn.tokens]
            ids = [i for tokens in read for i in (*tokens.context_ids, *tokens.action_ids)]
            assert [i for one in text_sequences(loaded, [episode]) for i in one.ids.tolist()] == ids


def _whole(episode: Episode) -> bool:
    return all(turn.valid and not turn.cut for turn in episode.turns)


def test_the_text_alone_gives_the_same_sequences(loaded: LoadedModel, taught: list[Episode]) -> None:
    wrong = replace(taught[2], turns=(replace(taught[2].turns[0], valid=False, restart=True), *taught[2].turns[1:]))
    episodes = [taught[0], taught[1], wrong]
    slim = [text_only(episode) for episode in episodes]
    assert [task_id(episode) for episode in slim] == [task_id(episode) for episode in episodes]
    assert not any(turn.data or turn.spans for episode in slim for turn in episode.turns)
    for one, other in zip(text_sequences(loaded, slim), text_sequences(loaded, episodes), strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert one.positions.tolist() == other.positions.tolist()


def test_an_invalid_answer_is_history_and_no_lesson(loaded: LoadedModel, taught: list[Episode]) -> None:
    turns = (replace(taught[0].turns[0], valid=False), *taught[0].turns[1:])
    sequence = text_sequences(loaded, [replace(taught[0], turns=turns)])[0]
    assert set(sequence.turns.tolist()) == {1, 2}
    assert sequence.ids.tolist() == text_sequences(loaded, taught[:1])[0].ids.tolist()


def test_an_answer_that_a_limit_cut_teaches_no_end(loaded: LoadedModel, taught: list[Episode]) -> None:
    turns = (replace(taught[0].turns[0], cut=True), *taught[0].turns[1:])
    whole = text_sequences(loaded, taught[:1])[0]
    sequence = text_sequences(loaded, [replace(taught[0], turns=turns)])[0]
    assert sequence.ids.tolist() == whole.ids.tolist()
    ends = [(one.turns[one.learned_ids == loaded.renderer.stop_id]).tolist() for one in (whole, sequence)]
    assert ends == [[0, 1, 2], [1, 2]]


def test_what_does_not_fit_is_an_error_with_both_lengths(loaded: LoadedModel, taught: list[Episode]) -> None:
    long = replace(taught[0], turns=tuple(replace(turn, observation="lamp red " * 200) for turn in taught[0].turns))
    with pytest.raises(ContextLengthError, match=r"has \d+ tokens, but the model's context holds 512"):
        text_sequences(loaded, [long])
    with pytest.raises(ConfigError, match="none of the 1 episodes"):
        text_sequences(loaded, [replace(taught[0], stop=StopReason.FAILED)])


@pytest.fixture(scope="module")
def unbroken(lamps_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LessonResult]:
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    return folder, train(lamps_model, folder, settings(max_steps=10))


@pytest.mark.parametrize("after", [3, 8])
def test_resume_is_bit_for_bit(
    unbroken: tuple[Path, LessonResult], lamps_model: Path, tmp_path: Path, after: int
) -> None:
    whole, wanted = unbroken
    with pytest.raises(KeyboardInterrupt):
        train(lamps_model, tmp_path, settings(max_steps=10), on_step=ctrl_c_after(after))
    resumed = train(lamps_model, tmp_path, settings(max_steps=10), resume=True)
    assert same_weights(whole, tmp_path, "best")
    assert same_weights(whole, tmp_path)
    assert wanted.validation_loss == resumed.validation_loss


def test_training_ends_when_the_held_out_loss_falls_no_more(lamps_model: Path, tmp_path: Path) -> None:
    """The length of a warm start was fixed: too short for counting words, and much too long for names of colors."""
    patient = settings(epochs=40, patience=2)
    result = train(lamps_model, tmp_path / "unbroken", patient)
    losses = [r["validation_loss"] for r in RunFolder(tmp_path / "unbroken").records() if "validation_loss" in r]
    best = [min(losses[: place + 1]) for place in range(len(losses))]
    falls = [before - after >= 0.01 for before, after in itertools.pairwise(best)]
    assert len(losses) < 40
    assert falls[-2:] == [False, False]
    assert not any(falls[place : place + 2] == [False, False] for place in range(len(falls) - 2))
    with pytest.raises(KeyboardInterrupt):
        train(lamps_model, tmp_path / "resumed", patient, on_step=ctrl_c_after(result.steps - 1))
    assert train(lamps_model, tmp_path / "resumed", patient, resume=True).steps == result.steps
    assert same_weights(tmp_path / "unbroken", tmp_path / "resumed", "best")
    with pytest.raises(ValueError, match="patience has no effect without validation"):
        settings(patience=2, validation_share=0)


def test_training_ends_when_the_held_out_loss_can_fall_no_more(
    lamps_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warm start of a solved task went on for half of its 66 steps at a loss of 0.0001."""
    monkeypatch.setattr("gradus.training.lessons._LEAST_FALL", 1.0)
    train(lamps_model, tmp_path / "run", settings(epochs=40, patience=9))
    losses = [r["validation_loss"] for r in RunFolder(tmp_path / "run").records() if "validation_loss" in r]
    assert losses[-1] < 1.0
    assert all(loss >= 1.0 for loss in losses[:-1])


def test_adapters_alone_are_trained_and_saved(lamps_model: Path, taught: list[Episode], tmp_path: Path) -> None:
    result = train(lamps_model, tmp_path / "run", settings(max_steps=4, lora={"rank": 4, "alpha": 8}))
    assert (result.best / "adapter_model.safetensors").exists()
    assert not (result.best / "model.safetensors").exists()
    tuned = load_model(result.best, device="cpu")
    assert len(text_sequences(tuned, taught[:1])) == 1


def test_episodes_that_all_failed_say_why(loaded: LoadedModel) -> None:
    def absent(seen: Any, script: Any) -> str:
        return seen.messages[0].content

    spec = lamps()
    failed = roll_out(spec, FunctionPolicy("absent", absent), [spec.train_task(0)]).episodes
    with pytest.raises(ConfigError, match="1 failed, as with IndexError: tuple index out of range"):
        text_sequences(loaded, failed)
