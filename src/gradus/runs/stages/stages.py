"""The stages of `gradus run`: model, audit, teacher, SFT, GRPO, evaluation, doctor. Each leaves files in the run's folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from rich.console import Console

from gradus.core import ConfigError, EnvironmentSpec, Episode, GradusError, Policy
from gradus.core.files import stored_file, write_json
from gradus.core.metrics import read_metrics
from gradus.policies.local.folders import find_model
from gradus.policies.local.loading import load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.shelf import ModelShelf, ShelvedPolicy
from gradus.rewards import tell_steps_taken
from gradus.rollouts import read_episodes, write_episodes
from gradus.runs.planning.model_probe import check_model
from gradus.runs.policies import base_model, make_policy, teacher_name
from gradus.runs.progress import progress_bar
from gradus.runs.recipe.promises import check_promises
from gradus.runs.recipe.record import Recipe
from gradus.runs.recipe.stepping import LIMITS
from gradus.runs.stages.audits import audit_stage
from gradus.runs.stages.doctor import diagnose_run
from gradus.runs.stages.evaluation import evaluate_policies, parse_pair
from gradus.runs.stages.evaluation_processes import roll_out_beside, workers_worth
from gradus.runs.stages.report_episodes import write_report_episodes
from gradus.runs.stages.sources import algorithm_sources, environment_sources, reward_sources
from gradus.runs.stages.state import CHECKPOINTS, RunState
from gradus.runs.stages.teach_summary import spent
from gradus.runs.stages.teaching import teach
from gradus.runs.stages.training import begun, grpo_stage, make_nano_model, read_lessons, sft_stage
from gradus.runs.stages.training_processes import training_processes
from gradus.stats import format_number
from gradus.training.data.tasks import reserved_ids, training_tasks


class RunContext:
    """One run: its recipe, folder, environment and state."""

    def __init__(self, recipe: Recipe, folder: Path, *, redo: bool, console: Console) -> None:
        self.recipe = recipe
        self.folder = folder
        self.console = console
        self.anyway = False
        self.stored: Path | None = None  # episodes of policies that are not rolled out again
        self.spec: EnvironmentSpec = recipe.spec()
        self.grader = self.spec.grader(recipe.grader_name)
        self.schedule = recipe.schedule(self.grader)  # a stage that cannot be graded should fail now
        if self.spec.content is not None:
            reserved = reserved_ids(self.spec, recipe.grpo)
            training_tasks(self.spec, recipe.grpo, 0, 1, reserved)  # and so should too few rows
        self.state = RunState(folder, redo=redo)

    def sources(self, settings: Mapping[str, Any]) -> dict[str, str]:
        """Digests of what a stage of these settings is made from besides: data and code that they name."""
        algorithm = algorithm_sources(self.recipe.grpo.algorithm) if "grpo" in settings else {}
        return {**self._environment, **(self._rewards if "rewards" in settings else {}), **algorithm}

    def grading(self, stage: str) -> dict[str, Any] | None:
        """What the rewards of the teacher's episodes come from: if it changes, they are graded again. None for other stages."""
        if stage != "teach":
            return None
        return {"settings": section_of(*GRADED)(self), "sources": self._rewards}

    @cached_property
    def _environment(self) -> dict[str, str]:
        return environment_sources(self.recipe.environment, self.spec)

    @cached_property
    def _rewards(self) -> dict[str, str]:
        return reward_sources(self.recipe.rewards, self.grader)

    @property
    def base(self) -> str:
        """The model before any training: the given one, or the nano model of this run."""
        return base_model(self.recipe, self.folder)

    def checkpoint(self, stage: str) -> str:
        """The best checkpoint of a training stage, or the model before any."""
        return self.base if stage == "model" else str(self.folder / stage / "best")

    @property
    def stages(self) -> Mapping[str, Stage]:
        """The stages that the recipe wants."""
        left_out = () if self.recipe.teach.enabled else ("teach", "sft")
        return {name: stage for name, stage in STAGES.items() if name not in left_out}


def _do_model(run: RunContext, cost: dict[str, Any]) -> None:
    """Make the nano model, unless a model was given."""
    if run.recipe.model.path is not None:
        # Fail now rather than after the teacher has worked.
        loaded = load_model(run.base, **run.recipe.loading())
        run.console.print(check_model(loaded).sentence, highlight=False)
        return
    if find_model(run.base) is None:  # it is whole if it is there: a kill came before that was written down
        make_nano_model(run.recipe, run.folder / "model")


def _do_audit(run: RunContext, cost: dict[str, Any]) -> None:
    """Audit the grader that is going to pay."""
    if not run.recipe.audit.enabled:
        run.console.print("switched off by the recipe (audit.enabled)")
        return
    section = run.recipe.audit
    verdict = audit_stage(
        run.spec,
        run.grader,
        run.folder,
        episodes=section.episodes,
        budget=section.budget,
        seed=run.recipe.seed,
        console=run.console,
    )
    if verdict == "fail" and not run.anyway:
        raise ConfigError(
            f"expected a grader that passes its audit, got {run.grader.name}, which fails; mend it, choose another "
            f"with --set grader=NAME ({', '.join(run.spec.graders)}), or run with --anyway"
        )


def _do_teach(run: RunContext, cost: dict[str, Any]) -> None:
    section = run.recipe.teach
    name = teacher_name(run.spec, section.policy)
    path = stored_file(run.folder / "teach" / "episodes.jsonl.gz")
    with progress_bar(f"teach · {name}", section.episodes, "episodes") as advance:
        policy = make_policy(run.spec, name, remote=section.remote.model_dump())
        summary = teach(
            run.spec,
            policy,
            episodes=section.episodes,
            path=path,
            grader=run.grader,
            seed=run.recipe.seed,
            workers=section.workers,
            reserved=reserved_ids(run.spec, run.recipe.grpo),
            progress=lambda done, total: advance(done, total, note=spent(policy)),
        )
    run.console.print(summary.sentence(path), highlight=False)
    if summary.reward_mean is None and summary.reason is not None:  # GRPO would come to the same, later
        raise GradusError(f"none of the {summary.episodes} episodes of {name} could be graded: {summary.reason}")
    left_out = {"seconds", "grader", "policy", "stored", *(() if summary.spent else ("spent",))}
    cost.update({key: value for key, value in asdict(summary).items() if key not in left_out})


def _do_sft(run: RunContext, cost: dict[str, Any]) -> None:
    data, folder = [run.folder / "teach" / "episodes.jsonl.gz"], run.folder / "sft"
    resume = begun(folder)
    with training_processes(run.recipe, "sft", model=run.base, folder=folder, data=data, resume=resume):
        result = sft_stage(run.recipe, run.base, read_lessons(run.spec, data), folder, resume=resume)
    run.console.print(
        f"loss {format_number(result.loss)}, held out {format_number(result.validation_loss)} nats per action token"
    )
    cost.update(steps=result.steps, tokens=_tokens(folder))


def _do_grpo(run: RunContext, cost: dict[str, Any]) -> None:
    folder = run.folder / "grpo"
    start = run.checkpoint("sft" if run.recipe.teach.enabled else "model")
    resume = begun(folder)
    with training_processes(run.recipe, "grpo", model=start, folder=folder, resume=resume):
        result = grpo_stage(run.recipe, start, folder, run.grader, resume=resume)
    cost.update(steps=result.steps, tokens=_tokens(folder))


def _do_doctor(run: RunContext, cost: dict[str, Any]) -> None:
    diagnose_run(run.folder, console=run.console)


def _do_eval(run: RunContext, cost: dict[str, Any]) -> None:
    section = run.recipe.eval
    names = run.recipe.evaluated(run.spec)
    graders = list(dict.fromkeys([run.grader.name, *section.graders]))
    stored = read_rollouts(run.stored) if run.stored else {}
    there = {name for policies in stored.values() for name in policies}
    missing = [name for name in names if name not in there]
    policies = run_policies(run, missing)
    if (workers := workers_worth(run, missing)) > 1:
        beside = roll_out_beside(run, missing, workers)
        stored = {condition: {**stored.get(condition, {}), **rolled_out} for condition, rolled_out in beside.items()}
        there |= set(missing)
    pairs = [parse_pair(text, list(names)) for text in section.pairs] or None
    tell_steps_taken(run.grader, run.recipe.grpo.max_steps)  # in whatever process, before or after a kill
    evaluation = evaluate_policies(
        run.spec,
        {name: None if name in there else policies[name] for name in names},
        stored=stored,
        conditions=list(section.conditions) or None,
        graders=graders,
        episodes=section.episodes,
        samples=section.samples,
        pass_k=section.pass_k,
        seed=run.recipe.seed if section.seed is None else section.seed,
        pairs=pairs,
        checkpoint="grpo/best",
    )
    document = evaluation.to_json()
    by_grader = {run.grader.name: document, **document.get("graders", {})}
    document["promises"] = check_promises(run.recipe.promises, by_grader, run.grader.name)
    document["quick"] = run.recipe.quick
    if best_is_the_start(run.folder / "grpo"):
        document["best_is_the_start"] = True
    write_json(run.folder / "results.json", document)
    flat = evaluation.flat
    write_episodes(run.folder / "eval" / "episodes.jsonl.gz", flat, environment=run.spec.name, note="gradus run")
    (run.folder / "eval" / "episodes.jsonl").unlink(missing_ok=True)  # of an earlier version
    write_report_episodes(run.folder, run.spec, run.grader, run.recipe, evaluation.episodes, policies)
    cost.update(episodes=len(flat))


def best_is_the_start(grpo: Path) -> bool:
    """Whether no step of GRPO was better in validation than the student that it began with."""
    validations = [record for record in read_metrics(grpo / "metrics.jsonl") if record.get("kind") == "validation"]
    best = {record.get("step") for record in validations if record.get("best")}
    return best == {0} and any(record.get("step") for record in validations)


def read_rollouts(path: Path) -> dict[str, dict[str, list[Episode]]]:
    """Stored episodes by condition and policy."""
    rollouts: dict[str, dict[str, list[Episode]]] = {}
    for episode in read_episodes(path).episodes:
        rollouts.setdefault(episode.task.condition or "", {}).setdefault(episode.policy, []).append(episode)
    return rollouts


def run_policies(run: RunContext, names: Sequence[str]) -> dict[str, Policy]:
    """The policies of the evaluation: the run's checkpoints, one loaded at a time, and whatever a name means elsewhere."""
    shelf = ModelShelf()
    policies: dict[str, Policy] = {}
    for name in names:
        policies[name] = (
            _checkpoint(run, name, shelf) if name in CHECKPOINTS else make_policy(run.spec, name, shelf=shelf)
        )
    return policies


def _checkpoint(run: RunContext, name: str, shelf: ModelShelf) -> Policy:
    """A checkpoint of the run as a policy."""
    stage, greedy = CHECKPOINTS[name]
    grpo = run.recipe.grpo
    sampling = grpo.sampling.as_greedy() if greedy else grpo.sampling
    options = run.recipe.loading() if stage == "model" else run.recipe.loading_trained()
    load = partial(load_model, run.checkpoint(stage), **options)
    make = partial(
        LocalPolicy,
        sampling=sampling,
        name=name,
        batch_size=grpo.batch_size,
        kv_cache_tokens=grpo.kv_cache_tokens,
        grammar=run.spec.language.grammar,
    )
    return ShelvedPolicy(shelf, f"checkpoint {stage}", load, make, name=name)


def _tokens(folder: Path) -> int:
    """Tokens that a training stage went through, from its own metrics."""
    records = read_metrics(folder / "metrics.jsonl")
    return sum(int(record.get("tokens") or 0) for record in records if record.get("kind") in ("step", "sft"))


_LATER = ("weights", "reward_messages", "stepping")
GRADED = ("grader", "weights", "rewards", "reward_messages", "stepping")
_TRAINED = ("model", "teach", "sft", "grpo", *GRADED, "stage", "adaptive")


def section_of(*names: str) -> Callable[[RunContext], dict[str, Any]]:
    """The settings of a stage: sections of the recipe, and what every stage depends on."""

    def select(run: RunContext) -> dict[str, Any]:
        # Who rolls out, and how many calls are made at once, changes no episode.
        dumped = run.recipe.model_dump(mode="json", exclude={"teach": {"workers", "remote"}, "eval": {"workers"}})
        if answers := run.recipe.teach.remote.answers():
            dumped["teach"]["remote"] = answers
        dumped["stepping"] = {name: dumped["stepping"][name] for name in LIMITS if dumped["stepping"][name] is not None}
        # Runs of earlier versions do not have these settings.
        return {
            name: dumped[name]
            for name in ("environment", "seed", *names)
            if name not in _LATER or dumped[name] or dumped[name] is False
        }

    return select


Stage = tuple[Callable[[RunContext, dict[str, Any]], None], Callable[[RunContext], dict[str, Any]]]  # do, settings

STAGES: Mapping[str, Stage] = {
    "model": (_do_model, section_of("model")),
    "audit": (_do_audit, section_of("audit", *GRADED)),
    "teach": (_do_teach, section_of("teach")),
    "sft": (_do_sft, section_of("model", "teach", "sft")),
    "grpo": (_do_grpo, section_of(*_TRAINED)),
    "eval": (_do_eval, section_of(*_TRAINED, "eval", "promises")),
    "doctor": (_do_doctor, section_of(*_TRAINED, "eval")),
}
