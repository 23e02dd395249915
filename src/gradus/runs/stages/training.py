"""SFT and GRPO with what a recipe says: the model to train, its seed, trackers, and a server that samples."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from gradus.core import ConfigError, EnvironmentSpec, Episode, Grader
from gradus.core.files import digest, read_json, write_json
from gradus.core.printing import go_around
from gradus.core.waiting import blocking
from gradus.evidence.health import Monitor
from gradus.evidence.stage_files import changed_since
from gradus.policies.local.folders import find_model
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.nano.model import make_nano
from gradus.rollouts import read_episodes
from gradus.runs.planning.model_probe import check_model
from gradus.runs.policies import base_model
from gradus.runs.recipe.record import Recipe
from gradus.runs.stages.connections import served_sampler, track
from gradus.runs.stages.sources import algorithm_sources, environment_sources, reward_sources
from gradus.runs.stages.training_processes import training_processes
from gradus.training.config import GrpoConfig
from gradus.training.data.sft_sequences import text_only
from gradus.training.distributed.processes import barrier, world
from gradus.training.grpo import GrpoResult, train_grpo
from gradus.training.run.folder import SOURCES
from gradus.training.sft import SftResult, train_sft
from gradus.training.sft_config import SftConfig
from gradus.training.trainer_config import TrainerConfig

C = TypeVar("C", SftConfig, GrpoConfig)


def sft_alone(recipe: Recipe, data: Sequence[Path], folder: Path, *, resume: bool) -> Path:
    """`gradus sft`: warm-start a model (a nano model if none is named) on stored episodes; returns the best checkpoint."""
    episodes = read_lessons(recipe.spec(), data)
    made_from = {f"episodes of {path.name}": digest(path) for path in data}
    fresh = recipe.model.path is None and not begun(folder)
    base = base_model(recipe, folder)
    if fresh:
        make_nano_model(recipe, folder / "model")
    try:
        with (
            _same_sources(folder, made_from),
            training_processes(recipe, "sft", model=base, folder=folder, data=data, resume=resume),
        ):
            return sft_stage(recipe, base, episodes, folder, resume=resume).best
    finally:
        if fresh and not begun(folder):  # it failed before it began: the next try may want another model
            shutil.rmtree(folder / "model", ignore_errors=True)
            with suppress(OSError):  # something else is in it
                folder.rmdir()


def read_lessons(spec: EnvironmentSpec, data: Sequence[Path]) -> list[Episode]:
    """The episodes to train on, without what SFT has no use for. Raises ConfigError if they are of another environment."""
    episodes: list[Episode] = []
    for path in data:
        stored = read_episodes(path, keep=text_only)
        if stored.environment != spec.name:
            raise ConfigError(f"{path} holds episodes of {stored.environment}, not of {spec.name}")
        for problem in (*stored.problems, *changed_since(path)):
            go_around(problem, "SFT trains on the other episodes")
        episodes.extend(stored.episodes)
    return episodes


def sft_stage(recipe: Recipe, model: str, episodes: Sequence[Episode], folder: Path, *, resume: bool) -> SftResult:
    """SFT with what the recipe wants besides: trackers."""
    config = _seeded(recipe.sft, recipe)
    with track(recipe.trackers, folder, config) as trackers:
        loaded = _model_to_train(recipe, recipe.spec(), model, config)
        return train_sft(loaded, episodes, config, folder, resume=resume, monitor=Monitor(), on_record=trackers)


def make_nano_model(recipe: Recipe, folder: Path) -> None:
    """A nano model of the environment's words; one process makes it for all."""
    spec = recipe.spec()
    if spec.language.vocabulary is None:
        raise ConfigError(f"{spec.name} has no vocabulary to make a nano model from; give a model with --model")
    if world().main:
        make_nano(folder, spec.language.vocabulary(), recipe.model.nano, seed=recipe.seed)
    barrier()


def grpo_alone(recipe: Recipe, folder: Path, *, resume: bool) -> Path:
    """`gradus grpo`: train ``model.path`` on the recipe's environment; returns the best checkpoint."""
    model = recipe.model.path or ""
    spec = recipe.spec()
    grader = spec.grader(recipe.grader_name)
    model = str(find_model(model) or model)
    made_from = {
        **environment_sources(recipe.environment, spec),
        **reward_sources(recipe.rewards, grader),
        **algorithm_sources(recipe.grpo.algorithm),
    }
    with (
        _same_sources(folder, made_from),
        training_processes(recipe, "grpo", model=model, folder=folder, resume=resume),
    ):
        return grpo_stage(recipe, model, folder, grader, resume=resume).best


@contextmanager
def _same_sources(folder: Path, sources: Mapping[str, str]) -> Iterator[None]:
    """Raise ConfigError if a run that goes on was begun with other data or code than ``sources`` (what it is -> digest)."""
    path = folder / SOURCES
    if begun(folder):
        before: Mapping[str, str] = read_json(path) if path.exists() else {}
        other = [name for name, now in sources.items() if before.get(name, now) != now]
        if other:
            raise ConfigError(
                f"{folder} was begun with other {' and other '.join(other)}; put back what it was made from, or choose another folder with --out"
            )
    elif world().main:
        write_json(path, dict(sources))
    try:
        yield
    finally:
        if world().main and not begun(folder):  # it failed before it began
            path.unlink(missing_ok=True)
            with suppress(OSError):  # something else is in it
                folder.rmdir()


def grpo_stage(recipe: Recipe, model: Path | str, folder: Path, grader: Grader, *, resume: bool) -> GrpoResult:
    """GRPO with what the recipe wants besides: trackers, and a server that samples."""
    config, spec = _seeded(recipe.grpo, recipe), recipe.spec()
    loaded = _model_to_train(recipe, spec, str(model), config)
    source, sampler, push_weights = served_sampler(loaded, config, folder)
    with track(recipe.trackers, folder, config) as trackers:
        return train_grpo(
            source,
            spec,
            config,
            folder,
            grader=grader,
            schedule=recipe.schedule(grader),
            resume=resume,
            monitor=Monitor(),
            on_record=trackers,
            sampler=sampler,
            push_weights=push_weights,
            sources=recipe.grpo_sources(),
        )


def _model_to_train(recipe: Recipe, spec: EnvironmentSpec, model: str, config: TrainerConfig) -> LoadedModel:
    """The model with what it is trained with, which is stored beside it: sampling, template, system prompt, environment."""
    device = world().device or config.device if config.device == "auto" else config.device
    options = {"dtype": config.weights_dtype, "attention": config.attention, "quantize": config.quantize}
    loaded = load_model(model, device=device, **options, **recipe.template())
    check_model(loaded)
    system_prompt, tools = _rules(recipe, spec)
    loaded.renderer.for_tools(tools)  # what the chat template cannot do is refused before anything is trained
    return loaded.with_settings(
        environment=recipe.environment, system_prompt=system_prompt, tools=tools, sampling=recipe.grpo.sampling
    )


def _rules(recipe: Recipe, spec: EnvironmentSpec) -> tuple[str, tuple[dict[str, Any], ...]]:
    """Returns the system prompt of the first training task, and the tools that can be called there."""
    task = spec.train_task(recipe.grpo.first_task)
    environment = blocking(spec.make())
    try:
        environment.reset(seed=task.seed, **task.options)
        return environment.system_prompt, tuple(dict(tool) for tool in getattr(environment, "tools", ()))
    finally:
        environment.close()


def _seeded(config: C, recipe: Recipe) -> C:
    """The stage's own seed if the recipe gives one, else the run's."""
    return config if "seed" in config.model_fields_set else config.model_copy(update={"seed": recipe.seed})


def begun(folder: Path) -> bool:
    """True if training in this folder has started."""
    return (folder / "config.json").exists()
