"""Short runs of GRPO for tests: made, broken off, read and compared."""

import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fakes import lamps
from safetensors.torch import load_file

from gradus.core import EnvironmentSpec
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.nano.model import NanoConfig, make_nano
from gradus.rollouts import roll_out
from gradus.training.config import GrpoConfig
from gradus.training.data.credit import credit_groups
from gradus.training.data.sequences import TrainingSample
from gradus.training.grpo import GrpoResult, train_grpo
from gradus.training.lesson_config import SftConfig
from gradus.training.run.folder import RunFolder
from gradus.training.run.options import GrpoOptions, RunOptions
from gradus.training.sft import train_sft

__all__ = [
    *("Stopped", "ctrl_c_after", "grpo_config", "lamps_nano", "lines", "same_weights", "sampled", "stop_after"),
    *("taught_lamps", "train", "without_clock"),
]

CLOCK = ("seconds", "tokens_per_second")


def grpo_config(**changes: Any) -> GrpoConfig:
    """Four groups of four, answers of three tokens, and no validation unless ``changes`` say so."""
    base: dict[str, Any] = {"groups": 4, "group_size": 4, "lr": 3e-3, "validation_every": 0}
    sampling = SamplingConfig(max_new_tokens=3, grammar=True)
    return GrpoConfig(**{**base, "sampling": sampling, "threads": 1, "device": "cpu", **changes})


def train(
    model: Any,
    folder: Path,
    config: GrpoConfig,
    spec: EnvironmentSpec | None = None,
    *,
    resume: bool = False,
    **options: Any,
) -> GrpoResult:
    """Train in lamps unless another environment is given; ``options`` are those of GrpoOptions."""
    return train_grpo(model, spec or lamps(), config, folder, resume=resume, options=GrpoOptions(live=False, **options))


def lamps_nano(folder: Path, *, seed: int = 0, **shape: Any) -> Path:
    """A nano model with random weights that knows the words of lamps."""
    config = NanoConfig(**{"hidden_size": 32, "layers": 2, "heads": 2, "intermediate_size": 64, **shape})
    return make_nano(folder, lamps().language.vocabulary(), config, seed=seed)


def taught_lamps(folder: Path, config: SftConfig | None = None, **shape: Any) -> Path:
    """The folder of an SFT run: its model answers well now and then, so that there is something to learn from."""
    spec = lamps()
    tasks = [spec.train_task(9_000 + index) for index in range(64)]
    lessons = roll_out(spec, spec.policy(spec.teacher), tasks).episodes
    config = config or SftConfig(epochs=8, batch_size=16, lr=1e-2, validation_share=0)
    model = lamps_nano(folder / "fresh", **shape)
    train_sft(model, lessons, config, folder / "taught", options=RunOptions(live=False))
    return folder / "taught"


def lines(folder: Path, kind: str = "step") -> list[dict[str, Any]]:
    """The lines of one kind among a run's metrics."""
    return [record for record in RunFolder(folder).records() if record["kind"] == kind]


def without_clock(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records without the figures of a clock, which differ from run to run."""
    return [{name: value for name, value in record.items() if name not in CLOCK} for record in records]


class Stopped(Exception):
    """What ends a run of a test where no checkpoint is made."""


def stop_after(step: int) -> Callable[[Mapping[str, Any]], None]:
    """What raises behind a step, for ``on_step``: the run goes on from the checkpoint before it, as after a kill."""

    def stop(record: Mapping[str, Any]) -> None:
        if record["step"] == step:
            raise Stopped

    return stop


def ctrl_c_after(step: int) -> Callable[[Mapping[str, Any]], None]:
    """What presses Ctrl-C behind a step, for ``on_step``: a checkpoint is made there."""

    def press(record: Mapping[str, Any]) -> None:
        if record["step"] == step:
            signal.raise_signal(signal.SIGINT)

    return press


def same_weights(one: Path, other: Path, name: str = "final") -> bool:
    """Whether two runs left the same weights, bit for bit."""
    left, right = (load_file(run / name / "model.safetensors") for run in (one, other))
    return left.keys() == right.keys() and all(left[key].equal(right[key]) for key in left)


def sampled(loaded: LoadedModel, config: GrpoConfig, spec: EnvironmentSpec | None = None) -> list[TrainingSample]:
    """The samples of a step: rolled out in lamps or in ``spec``, graded and credited."""
    spec = spec or lamps()
    if config.autocast is True:
        loaded = replace(loaded, autocast=True)
    policy = LocalPolicy(loaded, config.sampling, grammar=spec.language.grammar)
    tasks = [spec.train_task(index) for index in range(config.groups)]
    groups = roll_out(spec, policy, tasks, group_size=config.group_size, seed=5).groups
    return credit_groups(groups, config.resolved(spec.grader()), loaded.renderer, weights=spec.grader().weights)
