"""SFT and GRPO with what a recipe says: the model to train, its seed, trackers, and a server that samples."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from gradus.core import ConfigError, EnvironmentSpec, Episode, Policy
from gradus.core.files import write_folder
from gradus.core.naming import import_object
from gradus.core.printing import go_around
from gradus.core.waiting import blocking
from gradus.evidence.health import Monitor
from gradus.evidence.stage_files import changed_since
from gradus.policies.local.export import write_merged
from gradus.policies.local.folders import find_model
from gradus.policies.local.loading import LoadedModel, LoadedTokenizer, load_model
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.nano.model import make_nano
from gradus.policies.tinker.policy import TokenCounts
from gradus.policies.vllm.http_sampler import HttpSampler, served_model
from gradus.rollouts import MAX_CONCURRENT, read_episodes
from gradus.runs.forecast.model_probe import check_model
from gradus.runs.job import Job, vocabulary_of
from gradus.runs.policies import make_policy, teacher_name
from gradus.runs.recipe.record import Recipe
from gradus.training.config import GrpoConfig
from gradus.training.data.sft_sequences import text_only
from gradus.training.data.tasks import reserved_ids
from gradus.training.distill import train_distill
from gradus.training.distributed.processes import barrier, world
from gradus.training.engine.fsdp import full_state_dict
from gradus.training.engine.prepare import prepare_model
from gradus.training.grpo import GrpoResult, train_grpo, train_learner
from gradus.training.lesson_config import DistillConfig, DistillTable, SftConfig
from gradus.training.lessons import LessonResult
from gradus.training.run.options import GrpoOptions, Observer, PushWeights, RunOptions
from gradus.training.run.trackers import open_trackers
from gradus.training.sft import train_sft
from gradus.training.teachers import ModelTeacher, ScriptedTeacher, ServedTeacher, Teacher
from gradus.training.tinker.learner import TinkerLearner
from gradus.training.tinker.weights import ServedTraining
from gradus.training.trainer_config import TrainerConfig

_SECONDS, _SECONDS_A_TOKEN = 300.0, 0.25  # that an answer may take: long answers of a busy server take many minutes


@contextmanager
def track(
    names: tuple[str, ...], folder: Path, config: BaseModel, observer: Observer | None = None
) -> Generator[Observer]:
    """The trackers of a training stage, writing into its folder, and ``observer`` behind them; none in processes that write nothing."""
    names = names if world().main else ()
    with open_trackers(names, folder, name=folder.name, config=config.model_dump(mode="json")) as trackers:

        def observe(record: Mapping[str, Any]) -> None:
            trackers(record)
            if observer is not None:
                observer(record)

        yield observe


def served_sampler(
    model: str | LoadedModel, config: GrpoConfig, folder: Path
) -> tuple[str | LoadedModel, Policy | None, PushWeights | None]:
    """The model to train, the policy that samples in its place, and what brings that new weights; as given, None and None for local.

    An engine of one's own is a function of the model and its sampling that returns a policy with ``sync_weights(loaded, step)``. ``http`` and ``vllm`` are one dialect, see :class:`~gradus.policies.vllm.http_sampler.HttpSampler`. A server that wants a key gets
    VLLM_API_KEY. Raises ConfigError if it cannot be reached or gives no token ids and log-probs.
    """
    if config.sampler == "local":
        return model, None, None
    loaded = prepare_model(model, config)
    if ":" in config.sampler:
        engine: Any = import_object(config.sampler, "engine")
        own = engine(loaded, config.sampling)
        return loaded, own, own.sync_weights
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


def sft_stage(
    job: Job,
    model: str,
    episodes: Sequence[Episode],
    folder: Path,
    *,
    resume: bool,
    counts: TokenCounts | None = None,
    options: RunOptions | None = None,
) -> LessonResult:
    """SFT with the trackers of the recipe. ``counts``: where a server's tokens are counted."""
    options = options or RunOptions()
    config = _seeded(job.recipe.sft, job.recipe)
    with track(job.recipe.trackers, folder, config, options.on_record) as trackers:
        source = _served_training(job, model, counts or TokenCounts())
        loaded = _model_to_train(job, model, config) if source is None else source
        observed = replace(options, on_record=trackers)
        return train_sft(loaded, episodes, config, folder, resume=resume, options=observed)


def distill_stage(
    job: Job, model: str, folder: Path, *, resume: bool, options: RunOptions | None = None
) -> LessonResult:
    """Distillation with the trackers of the recipe."""
    options = options or RunOptions()
    recipe, spec = job.recipe, job.environment
    config = _seeded((recipe.distill or DistillTable()).over(recipe.sft), recipe)
    with track(recipe.trackers, folder, config, options.on_record) as trackers:
        loaded = prepare_model(_model_to_train(job, model, config), config)
        return train_distill(
            loaded,
            find_teacher(spec, loaded, config, recipe.grpo.sampling),
            spec,
            config,
            folder,
            sampling=recipe.grpo.sampling,
            reserved=reserved_ids(spec, recipe.grpo),
            resume=resume,
            options=replace(options, on_record=trackers),
        )


def find_teacher(
    spec: EnvironmentSpec, student: LoadedTokenizer, config: DistillConfig, sampling: SamplingConfig
) -> Teacher:
    """Returns the teacher that the settings name: a model or run folder, a server's address, or a policy that states distributions."""
    name = teacher_name(spec, config.teacher)
    if name.startswith(("http://", "https://")):
        return ServedTeacher(name, student, sampling)
    if (folder := find_model(name)) is not None:
        place: dict[str, Any] = {}
        if isinstance(student, LoadedModel):
            place = {"device": student.device, "dtype": student.dtype}
        return ModelTeacher(load_model(folder, **place), spec, student, sampling)
    return ScriptedTeacher(make_policy(spec, name), spec, student)


def make_nano_model(job: Job, folder: Path) -> None:
    """Make a nano model of the environment's words; one process makes it for all."""
    vocabulary = vocabulary_of(job.environment)
    if world().main:
        make_nano(folder, vocabulary, job.recipe.model.nano, seed=job.recipe.seed)
    barrier()


def _served_training(job: Job, model: str, counts: TokenCounts) -> ServedTraining | None:
    """What training on a server begins with; None without one."""
    address = job.address(model)
    if address is None:
        return None
    words = job.words(address, model)
    return ServedTraining(model=address, words=_with_rules(job, words), counts=counts)


def _serving_grpo(
    job: Job, source: ServedTraining, config: GrpoConfig, folder: Path, *, resume: bool, options: GrpoOptions
) -> GrpoResult:
    """GRPO on a server."""
    recipe, spec = job.recipe, job.environment
    teacher = None
    if config.distill_coef:
        teacher = find_teacher(spec, source.words, DistillConfig(teacher=config.distill_teacher), config.sampling)
    learner = TinkerLearner(source, spec, config, grader=job.grader, teacher=teacher)
    with track(recipe.trackers, folder, config, options.on_record) as trackers:
        return train_learner(learner, spec, folder, resume=resume, options=replace(options, on_record=trackers))


def grpo_stage(
    job: Job,
    model: str,
    folder: Path,
    *,
    resume: bool,
    seconds: float | None = None,
    counts: TokenCounts | None = None,
    options: RunOptions | None = None,
) -> GrpoResult:
    """GRPO with the trackers of the recipe, and the server that trains or samples.

    ``seconds``: steps that do not fit are left out. ``counts``: where a server's tokens are counted.
    """
    options = options or RunOptions()
    observer, stop = options.on_record, options.stop
    recipe, spec = job.recipe, job.environment
    config = _seeded(recipe.grpo, recipe)
    if (source := _served_training(job, model, counts or TokenCounts())) is not None:
        served = GrpoOptions(schedule=job.schedule(), monitor=Monitor(), seconds=seconds, on_record=observer, stop=stop)
        return _serving_grpo(job, source, config, folder, resume=resume, options=served)
    loaded = _model_to_train(job, model, config)
    source, sampler, push_weights = served_sampler(loaded, config, folder)
    with track(recipe.trackers, folder, config, observer) as trackers:
        return train_grpo(
            source,
            spec,
            config,
            folder,
            resume=resume,
            options=GrpoOptions(
                grader=job.grader,
                schedule=job.schedule(),
                monitor=Monitor(),
                on_record=trackers,
                stop=stop,
                seconds=seconds,
                sampler=sampler,
                push_weights=push_weights,
                teacher=lambda student: find_teacher(
                    spec, student, DistillConfig(teacher=config.distill_teacher), config.sampling
                ),
            ),
        )


def _model_to_train(job: Job, model: str, config: TrainerConfig) -> LoadedModel:
    """The model with what it is trained with, which is stored beside it: sampling, template, system prompt, environment."""
    device = world().device or config.device if config.device == "auto" else config.device
    options = {"dtype": config.weights_dtype, "attention": config.attention, "quantize": config.quantize}
    loaded = load_model(model, device=device, **options, **job.template())
    check_model(loaded)
    return _with_rules(job, loaded)


W = TypeVar("W", bound=LoadedTokenizer)


def _with_rules(job: Job, loaded: W) -> W:
    """The model with what it is trained with. What its chat template cannot do is refused before anything is trained."""
    system_prompt, tools = _rules(job)
    loaded.renderer.for_tools(tools)
    return loaded.with_settings(
        environment=job.recipe.environment,
        system_prompt=system_prompt,
        tools=tools,
        sampling=job.recipe.grpo.sampling,
    )


def _rules(job: Job) -> tuple[str, tuple[dict[str, Any], ...]]:
    """Returns the system prompt of the first training task, and the tools that can be called there."""
    task = job.environment.train_task(job.recipe.grpo.first_task)
    environment = blocking(job.environment.make())
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
