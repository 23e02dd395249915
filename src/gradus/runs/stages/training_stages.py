"""SFT and GRPO with what a recipe says: the model to train, its seed, trackers, and a server that samples."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import BaseModel

from gradus.core import ConfigError, EnvironmentSpec, Episode, Grader, Policy
from gradus.core.files import digest, read_json, write_folder, write_json
from gradus.core.printing import go_around
from gradus.core.waiting import blocking
from gradus.evidence.health import Monitor
from gradus.evidence.stage_files import changed_since
from gradus.policies.local.export import write_merged
from gradus.policies.local.folders import find_model
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.nano.model import make_nano
from gradus.policies.vllm.http_sampler import HttpSampler, served_model
from gradus.rollouts import MAX_CONCURRENT, read_episodes
from gradus.runs.planning.model_probe import check_model
from gradus.runs.policies import base_model, make_policy, teacher_name
from gradus.runs.recipe.record import Recipe
from gradus.runs.stages.sources import algorithm_sources, environment_sources, reward_sources
from gradus.training.config import GrpoConfig
from gradus.training.data.sft_sequences import text_only
from gradus.training.data.tasks import reserved_ids
from gradus.training.distill import train_distill
from gradus.training.distributed.processes import barrier, world
from gradus.training.engine.fsdp import full_state_dict
from gradus.training.engine.prepare import prepare_model
from gradus.training.grpo import GrpoResult, train_grpo
from gradus.training.lesson_config import DistillConfig, SftConfig
from gradus.training.lessons import LessonResult
from gradus.training.run.folder import SOURCES
from gradus.training.run.options import GrpoOptions, Observer, PushWeights, RunOptions
from gradus.training.run.trackers import open_trackers
from gradus.training.sft import train_sft
from gradus.training.teachers import ModelTeacher, ScriptedTeacher, ServedTeacher, Teacher
from gradus.training.trainer_config import TrainerConfig

_SECONDS, _SECONDS_A_TOKEN = 300.0, 0.25  # that an answer may take: long answers of a busy server take many minutes


def track(names: tuple[str, ...], folder: Path, config: BaseModel) -> AbstractContextManager[Observer]:
    """The trackers of a training stage, writing into its folder; none in processes that write nothing."""
    return open_trackers(names if world().main else (), folder, name=folder.name, config=config.model_dump(mode="json"))


def served_sampler(
    model: str | LoadedModel, config: GrpoConfig, folder: Path
) -> tuple[str | LoadedModel, Policy | None, PushWeights | None]:
    """The model to train, the policy that samples in its place, and what brings that new weights; as given, None and None for local.

    ``http`` and ``vllm`` are one dialect, see :class:`~gradus.policies.vllm.http_sampler.HttpSampler`. A server that wants a key gets
    VLLM_API_KEY. Raises ConfigError if it cannot be reached or gives no token ids and log-probs.
    """
    if config.sampler == "local":
        return model, None, None
    loaded = prepare_model(model, config)
    assert config.sampler_url is not None  # the settings see to it
    key = os.environ.get("VLLM_API_KEY")
    policy = HttpSampler(
        served_model(config.sampler_url, api_key=key),
        base_url=config.sampler_url,
        renderer=loaded.renderer,
        sampling=config.sampling,
        api_key=key,
        concurrency=config.batch_size or MAX_CONCURRENT,
        timeout=max(_SECONDS, _SECONDS_A_TOKEN * config.sampling.max_new_tokens),
        name="grpo",
    )
    return loaded, policy, weights_to_server(policy, folder / "sampler")


def weights_to_server(policy: HttpSampler, folder: Path) -> PushWeights:
    """Write the weights to ``folder`` and let the server read them.

    The server must see the same files. Process 0 alone does it; the others wait.
    """

    def push_weights(loaded: LoadedModel, step: int) -> None:
        state = full_state_dict(loaded.model)

        def fill(aside: Path) -> None:
            write_merged(aside, loaded.model, state)
            loaded.tokenizer.save_pretrained(aside)

        if world().main:
            write_folder(folder, fill)
            policy.reload(folder)
        barrier()

    return push_weights


def sft_alone(recipe: Recipe, data: Sequence[Path], folder: Path, *, resume: bool) -> Path:
    """`gradus sft`: warm-start a model (a nano model if none is named) on stored episodes; returns the best checkpoint."""
    episodes = read_lessons(recipe.spec(), data)
    made_from = {f"episodes of {path.name}": digest(path) for path in data}
    fresh = recipe.model.path is None and not begun(folder)
    base = base_model(recipe, folder)
    if fresh:
        make_nano_model(recipe, folder / "model")
    try:
        with _same_sources(folder, made_from):
            return sft_stage(recipe, base, episodes, folder, resume=resume).best
    finally:
        if fresh and not begun(folder):  # it failed before it began: the next try may want another model
            shutil.rmtree(folder / "model", ignore_errors=True)
            with suppress(OSError):  # something else is in it
                folder.rmdir()


def distill_alone(recipe: Recipe, folder: Path, *, resume: bool) -> Path:
    """`gradus distill`: teach a model (a nano model if none is named); returns the best checkpoint."""
    spec = recipe.spec()
    base = base_model(recipe, folder)
    if recipe.model.path is None and not begun(folder):
        make_nano_model(recipe, folder / "model")
    with _same_sources(folder, environment_sources(recipe.environment, spec)):
        return distill_stage(recipe, str(find_model(base) or base), folder, resume=resume).best


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
    with _same_sources(folder, made_from):
        return grpo_stage(recipe, model, folder, grader, resume=resume).best


@contextmanager
def _same_sources(folder: Path, sources: Mapping[str, str]) -> Iterator[None]:
    """Raise ConfigError if a run that goes on was begun with other data or code than ``sources`` (what it is -> digest).

    The caller's threads are left as they were: what is evaluated next has the digits that it has in a process of its own.
    """
    path, threads = folder / SOURCES, torch.get_num_threads()
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
        torch.set_num_threads(threads)
        if world().main and not begun(folder):  # it failed before it began
            path.unlink(missing_ok=True)
            with suppress(OSError):  # something else is in it
                folder.rmdir()


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
