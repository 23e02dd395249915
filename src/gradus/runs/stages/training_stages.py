"""SFT and GRPO with what a recipe says: the model to train, its seed, trackers, and a server that samples."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from gradus.core import ConfigError, EnvironmentSpec, Episode, Policy
from gradus.core.files import write_folder
from gradus.core.metrics import read_metrics
from gradus.core.naming import import_object
from gradus.core.printing import go_around
from gradus.core.values import Json, JsonDict
from gradus.evidence.health import Monitor
from gradus.evidence.stage_files import changed_since
from gradus.policies.local.export import write_merged
from gradus.policies.local.folders import find_model
from gradus.policies.local.loading import LoadedModel, LoadedTokenizer, load_model
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.vllm.http_sampler import HttpSampler
from gradus.rollouts import MAX_CONCURRENT, read_episodes
from gradus.rollouts.under_way import first_sight
from gradus.runs.forecast.model_probe import check_model
from gradus.runs.job import Job
from gradus.runs.manifest import TRAINING
from gradus.runs.money import STEPS
from gradus.runs.policies import make_policy, teacher_name
from gradus.runs.stages.context import RunContext
from gradus.stats import format_number
from gradus.training.config import GrpoConfig
from gradus.training.data.sft_sequences import text_only
from gradus.training.data.tasks import reserved_ids
from gradus.training.distill import train_distill
from gradus.training.distributed.processes import barrier, world
from gradus.training.engine.fsdp import full_state_dict
from gradus.training.engine.prepare import prepare_model
from gradus.training.grpo import train_grpo, train_learner
from gradus.training.lesson_config import DistillTable
from gradus.training.run.options import GrpoOptions, PushWeights, RunOptions
from gradus.training.run.trackers import open_trackers
from gradus.training.sft import train_sft
from gradus.training.teachers import ModelTeacher, ScriptedTeacher, ServedTeacher, Teacher
from gradus.training.tinker.learner import TinkerLearner
from gradus.training.tinker.weights import ServedTraining
from gradus.training.trainer_config import TrainerConfig

_SECONDS, _SECONDS_A_TOKEN = 300.0, 0.25  # that an answer may take: long answers of a busy server take many minutes


@contextmanager
def _tracked(run: RunContext, folder: Path, config: BaseModel) -> Generator[RunOptions]:
    """The options of a training: its records go to the recipe's trackers, in the process that writes, and to the run's ledger."""
    names = run.recipe.trackers if world().main else ()
    with open_trackers(names, folder, name=folder.name, config=config.model_dump(mode="json")) as trackers:

        def observe(record: Json) -> None:
            """Pass a record on."""
            trackers(record)
            run.ledger.watch(record)

        yield RunOptions(on_record=observe, stop=run.ledger.must_stop)


def do_sft(run: RunContext, cost: JsonDict) -> None:
    """SFT on the teacher's episodes, or on the files in their place."""
    folder = run.folder / "sft"
    config = run.recipe.sft.model_copy(update={"seed": run.recipe.seed})
    resume = _begun(folder)
    lessons = _read_lessons(run.spec, run.lessons or [run.folder / "teach" / "episodes.jsonl.gz"])
    with _tracked(run, folder, config) as options:
        model = _served_training(run, run.base) or _model_to_train(run.job, run.base, config)
        result = train_sft(model, lessons, config, folder, resume=resume, options=options)
    losses = f"loss {format_number(result.loss)}, held out {format_number(result.validation_loss)}"
    run.console.print(f"{losses} nats per action token")
    cost.update(steps=result.steps, tokens=_tokens(folder))


def do_distill(run: RunContext, cost: JsonDict) -> None:
    """Distillation of the recipe's teacher."""
    recipe, spec, folder = run.recipe, run.spec, run.folder / "distill"
    config = (recipe.distill or DistillTable()).over(recipe.sft).model_copy(update={"seed": recipe.seed})
    resume, sampling = _begun(folder), recipe.grpo.sampling
    with _tracked(run, folder, config) as options:
        student = prepare_model(_model_to_train(run.job, _start(run, "distill"), config), config)
        teacher = _find_teacher(spec, config.teacher, student, sampling)
        reserved = reserved_ids(spec, recipe.grpo)
        result = train_distill(
            student,
            teacher,
            spec,
            config,
            folder,
            sampling=sampling,
            reserved=reserved,
            resume=resume,
            options=options,
        )
    run.console.print(f"divergence {format_number(result.loss)} nats per token", highlight=False)
    cost.update(steps=result.steps, tokens=_tokens(folder))


def do_grpo(run: RunContext, cost: JsonDict) -> None:
    """GRPO in this process, with a server that samples, or on a server that trains."""
    job, spec, folder = run.job, run.spec, run.folder / "grpo"
    config = run.recipe.grpo.model_copy(update={"seed": run.recipe.seed})
    model = _start(run, "grpo")
    resume = _begun(folder)

    def teacher(student: LoadedTokenizer) -> Teacher:
        """The teacher of the distillation term, for this student."""
        return _find_teacher(spec, config.distill_teacher, student, config.sampling)

    with _tracked(run, folder, config) as observers:
        options = GrpoOptions(
            on_record=observers.on_record,
            stop=observers.stop,
            grader=job.grader,
            schedule=job.schedule(),
            monitor=Monitor(),
            seconds=run.manifest.seconds_for("grpo"),
        )
        served = _served_training(run, model)
        if served is None:
            loaded = _model_to_train(job, model, config)
            source, sampler, push_weights = served_sampler(loaded, config, folder)
            options = replace(options, sampler=sampler, push_weights=push_weights, teacher=teacher)
            result = train_grpo(source, spec, config, folder, resume=resume, options=options)
        else:
            # A local learner makes its teacher itself, once its model is on the device.
            distilled = teacher(served.words) if config.distill_coef else None
            learner = TinkerLearner(served, spec, config, grader=job.grader, teacher=distilled)
            result = train_learner(learner, spec, folder, resume=resume, options=options)
    cost.update(steps=result.steps, tokens=_tokens(folder))
    # The number of steps that fit a time depends on the machine: typed, it gives the same run on any.
    if result.steps < config.max_steps and result.stopped is None:
        again = f"gradus run {run.folder / 'recipe.toml'} --set grpo.max_steps={result.steps} --out OTHER"
        run.console.print(f"{result.steps} steps fitted the time; the same numbers again: {again}", highlight=False)


def _start(run: RunContext, stage: str) -> str:
    """The checkpoint that a training stage begins with: of the last one before it that was begun in this folder."""
    # A stage that another recipe left in this folder is none of this run.
    earlier = [name for name in TRAINING[: TRAINING.index(stage)] if name in run.stages]
    return run.checkpoint(earlier[-1])


def _begun(folder: Path) -> bool:
    """True if training in this folder has started."""
    return (folder / "config.json").exists()


def _tokens(folder: Path) -> int:
    """Tokens that a training stage went through, from its own metrics."""
    records = read_metrics(folder / "metrics.jsonl")
    return sum(int(record.get("tokens") or 0) for record in records if record.get("kind") in STEPS)


def _read_lessons(spec: EnvironmentSpec, data: Sequence[Path]) -> list[Episode]:
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


def _find_teacher(
    spec: EnvironmentSpec, name: str | None, student: LoadedTokenizer, sampling: SamplingConfig
) -> Teacher:
    """Returns a teacher by its name: a model or run folder, a server's address, or a policy that states distributions."""
    name = teacher_name(spec, name)
    if name.startswith(("http://", "https://")):
        return ServedTeacher(name, student, sampling)
    folder = find_model(name)
    if folder is not None:
        # Beside a student that a server trains it takes the device and the precision of any model here.
        place: JsonDict = {}
        if isinstance(student, LoadedModel):
            place = {"device": student.device, "dtype": student.dtype}
        return ModelTeacher(load_model(folder, **place), spec, student, sampling)
    return ScriptedTeacher(make_policy(spec, name), spec, student)


def _served_training(run: RunContext, model: str) -> ServedTraining | None:
    """What training on a server begins with; None without one."""
    address = run.job.address(model)
    if address is None:
        return None
    words = _with_rules(run.job, run.job.words(address, model))
    return ServedTraining(model=address, words=words, counts=run.counts)


def _model_to_train(job: Job, model: str, config: TrainerConfig) -> LoadedModel:
    """The model with what it is trained with, which is stored beside it: sampling, template, system prompt, environment."""
    # Each of several processes has a device of its own, unless the recipe names one.
    device = config.device
    if device == "auto":
        device = world().device or device
    options = {"dtype": config.weights_dtype, "attention": config.attention, "quantize": config.quantize}
    loaded = load_model(model, device=device, **options, **job.template())
    check_model(loaded)
    return _with_rules(job, loaded)


W = TypeVar("W", bound=LoadedTokenizer)


def _with_rules(job: Job, loaded: W) -> W:
    """The model with what it is trained with. What its chat template cannot do is refused before anything is trained."""
    start = first_sight(job.environment, job.environment.train_task(job.recipe.grpo.first_task))
    tools = tuple(dict(tool) for tool in start["tools"])
    loaded.renderer.for_tools(tools)
    return loaded.with_settings(
        environment=job.recipe.environment,
        system_prompt=start["system prompt"],
        tools=tools,
        sampling=job.recipe.grpo.sampling,
    )


def served_sampler(
    model: str | LoadedModel, config: GrpoConfig, folder: Path
) -> tuple[str | LoadedModel, Policy | None, PushWeights | None]:
    """The model to train, the policy that samples in its place, and what brings that new weights; for ``local`` the model alone.

    An engine of one's own is a function of the model and its sampling that returns a policy with ``sync_weights(loaded, step)``. ``http`` and
    ``vllm`` are one dialect, see :class:`~gradus.policies.vllm.http_sampler.HttpSampler`. A server that wants a key gets VLLM_API_KEY.
    Raises ConfigError if it cannot be reached or gives no token ids and log-probs.
    """
    if config.sampler == "local":
        return model, None, None
    # The sampler reads the weights that are trained, so they are prepared before it is asked.
    loaded = prepare_model(model, config)
    if ":" in config.sampler:
        engine: Any = import_object(config.sampler, "engine")
        policy = engine(loaded, config.sampling)
        return loaded, policy, policy.sync_weights
    assert config.sampler_url is not None  # the settings see to it
    policy = HttpSampler(
        base_url=config.sampler_url,
        renderer=loaded.renderer,
        sampling=config.sampling,
        api_key=os.environ.get("VLLM_API_KEY"),
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
        """Write the weights after a step, and let the server read them."""
        # In every process: the shards of the weights are gathered from all of them.
        state = full_state_dict(loaded.model)

        def fill(aside: Path) -> None:
            """Write model and tokenizer into a folder aside."""
            write_merged(aside, loaded.model, state)
            loaded.tokenizer.save_pretrained(aside)

        if world().main:
            write_folder(folder, fill)
            policy.reload(folder)
        barrier()

    return push_weights
