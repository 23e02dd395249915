"""SFT and GRPO with what a recipe says: the model to train, its seed, trackers, and a server that samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from gradus.core import ConfigError, EnvironmentSpec, Episode, Grader
from gradus.core.printing import go_around
from gradus.core.waiting import blocking
from gradus.evidence.health import Monitor
from gradus.evidence.stage_files import changed_since
from gradus.policies.local.folders import find_model
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.nano.model import make_nano
from gradus.rollouts import read_episodes
from gradus.runs.planning.model_probe import check_model
from gradus.runs.policies import make_policy, teacher_name
from gradus.runs.recipe.record import Recipe
from gradus.runs.stages.connections import served_sampler, track
from gradus.training.config import GrpoConfig
from gradus.training.data.sft_sequences import text_only
from gradus.training.data.tasks import reserved_ids
from gradus.training.distill import train_distill
from gradus.training.distributed.processes import barrier, world
from gradus.training.engine.loss_step import prepare_model
from gradus.training.grpo import GrpoResult, train_grpo
from gradus.training.lesson_config import DistillConfig, SftConfig
from gradus.training.lessons import LessonResult
from gradus.training.run.options import GrpoOptions, RunOptions
from gradus.training.sft import train_sft
from gradus.training.teachers import ModelTeacher, ScriptedTeacher, ServedTeacher, Teacher
from gradus.training.trainer_config import TrainerConfig

C = TypeVar("C", SftConfig, DistillConfig, GrpoConfig)


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


def sft_stage(recipe: Recipe, model: str, episodes: Sequence[Episode], folder: Path, *, resume: bool) -> LessonResult:
    """SFT with what the recipe wants besides: trackers."""
    config = _seeded(recipe.sft, recipe)
    with track(recipe.trackers, folder, config) as trackers:
        loaded = _model_to_train(recipe, recipe.spec(), model, config)
        return train_sft(loaded, episodes, config, folder, resume=resume, options=RunOptions(on_record=trackers))


def distill_stage(recipe: Recipe, model: str, folder: Path, *, resume: bool) -> LessonResult:
    """Distillation with what the recipe wants besides: trackers."""
    config, spec = _seeded(recipe.distill or DistillConfig(), recipe), recipe.spec()
    with track(recipe.trackers, folder, config) as trackers:
        loaded = prepare_model(_model_to_train(recipe, spec, model, config), config)
        return train_distill(
            loaded,
            find_teacher(spec, loaded, config, recipe.grpo.sampling),
            spec,
            config,
            folder,
            sampling=recipe.grpo.sampling,
            reserved=reserved_ids(spec, recipe.grpo),
            resume=resume,
            options=RunOptions(on_record=trackers),
        )


def find_teacher(
    spec: EnvironmentSpec, student: LoadedModel, config: DistillConfig, sampling: SamplingConfig
) -> Teacher:
    """Returns the teacher that the settings name: a model or run folder, a server's address, or a policy that states distributions."""
    name = teacher_name(spec, config.teacher)
    if name.startswith(("http://", "https://")):
        return ServedTeacher(name, student, sampling)
    if (folder := find_model(name)) is not None:
        return ModelTeacher(load_model(folder, device=student.device, dtype=student.dtype), spec, student, sampling)
    return ScriptedTeacher(make_policy(spec, name), spec, student)


def make_nano_model(recipe: Recipe, folder: Path) -> None:
    """A nano model of the environment's words; one process makes it for all."""
    spec = recipe.spec()
    if spec.language.vocabulary is None:
        raise ConfigError(f"{spec.name} has no vocabulary to make a nano model from; give a model with --model")
    if world().main:
        make_nano(folder, spec.language.vocabulary(), recipe.model.nano, seed=recipe.seed)
    barrier()


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
            resume=resume,
            options=GrpoOptions(
                grader=grader,
                schedule=recipe.schedule(grader),
                monitor=Monitor(),
                on_record=trackers,
                sampler=sampler,
                push_weights=push_weights,
                teacher=lambda student: find_teacher(
                    spec, student, DistillConfig(teacher=config.distill_teacher), config.sampling
                ),
            ),
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
