"""`gradus run`: audit, teacher, SFT, GRPO, doctor, evaluation, report. Each stage leaves files; what is there is not done again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from rich.console import Console

from gradus.core import ConfigError, EnvironmentSpec, Grader, Policy
from gradus.core.files import read_json, write_json, write_text
from gradus.core.locks import FolderLock
from gradus.core.verbosity import quiet
from gradus.pipeline.audit import audit_stage
from gradus.pipeline.connections import served_sampler, track
from gradus.pipeline.doctor import diagnose_run
from gradus.pipeline.evaluate import evaluate_policies, parse_pair
from gradus.pipeline.policies import find_model, make_policy, teacher_name
from gradus.pipeline.progress import progress_bar
from gradus.pipeline.promises import check_promises
from gradus.pipeline.recipe import Recipe
from gradus.pipeline.report_episodes import write_report_episodes
from gradus.pipeline.run_summary import show_costs, show_promises
from gradus.pipeline.state import RunState
from gradus.pipeline.teaching import teach
from gradus.planning.model_probe import check_model
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.shelf import ModelShelf, ShelvedPolicy
from gradus.policies.nano.model import make_nano
from gradus.rollouts import read_episodes, write_episodes
from gradus.training.config import GrpoConfig
from gradus.training.data.tasks import reserved_ids
from gradus.training.distributed.processes import barrier, world
from gradus.training.engine.loss_step import TrainerConfig
from gradus.training.grpo import GrpoResult, train_grpo
from gradus.training.run.trackers import check_trackers
from gradus.training.sft import SftConfig, train_sft

__all__ = ["CHECKPOINTS", "grpo_alone", "remaining", "run_recipe", "sft_alone"]

C = TypeVar("C", SftConfig, GrpoConfig)

CHECKPOINTS: Mapping[str, tuple[str, bool]] = {  # policy name -> stage folder, greedy
    "base": ("model", False),
    "base-greedy": ("model", True),
    "sft": ("sft", False),
    "sft-greedy": ("sft", True),
    "grpo": ("grpo", False),
    "grpo-greedy": ("grpo", True),
}


class _Run:
    """One run: its recipe, folder, environment and state."""

    def __init__(self, recipe: Recipe, folder: Path, *, redo: bool, console: Console) -> None:
        self.recipe = recipe
        self.folder = folder
        self.console = console
        self.anyway = False
        self.spec: EnvironmentSpec = recipe.spec()
        self.grader = self.spec.grader(recipe.grader)
        self.schedule = recipe.schedule(self.grader)  # a stage that cannot be graded should fail now
        self.state = RunState(folder, redo=redo)

    @property
    def base(self) -> str:
        """The model before any training: the given one, or the nano model of this run."""
        path = self.recipe.model.path
        return str(self.folder / "model") if path is None else str(find_model(path) or path)

    def checkpoint(self, stage: str) -> str:
        """The best checkpoint of a training stage, or the model before any."""
        return self.base if stage == "model" else str(self.folder / stage / "best")

    @property
    def stages(self) -> Mapping[str, Any]:
        """The stages that the recipe wants."""
        left_out = () if self.recipe.teach.enabled else ("teach", "sft")
        return {name: stage for name, stage in _STAGES.items() if name not in left_out}


def run_recipe(
    recipe: Recipe, *, out: Path | None = None, redo: bool = False, anyway: bool = False, console: Console | None = None
) -> Path:
    """Do all stages of a recipe in a run folder and return it. Stages whose output is there already are skipped.

    A failed audit stops the run, unless ``anyway``.
    """
    folder = out or Path("runs") / recipe.environment.partition(":")[0]
    check_trackers(recipe.trackers)
    lock = FolderLock(folder)
    try:
        run = _Run(recipe, folder, redo=redo, console=console or Console(quiet=quiet()))
        run.anyway = anyway
        _do_stages(run)
        return _finish(run, console or Console())
    finally:
        lock.release()


def _do_stages(run: _Run) -> None:
    recipe, folder = run.recipe, run.folder
    settings = {name: select(run) for name, (_, select) in run.stages.items()}
    for name, (do, _) in run.stages.items():
        if run.state.done(name, settings[name]):
            run.console.print(f"[dim]{name}: there already[/dim]")
            continue
        run.console.rule(f"[bold]{name}[/bold]", align="left")
        with run.state.doing(name, settings[name]) as cost:
            do(run, cost)
        run.console.print(f"[dim]{name}: {cost['seconds']:.0f} s[/dim]")
    write_text(folder / "recipe.toml", tomli_w.dumps(_without_none(recipe.model_dump(mode="json", exclude_unset=True))))


def remaining(recipe: Recipe, folder: Path) -> list[str]:
    """The stages that a run in this folder would still do. Raises ConfigError if it holds a run with other settings."""
    run = _Run(recipe, folder, redo=False, console=Console(quiet=True))
    return [name for name, (_, select) in run.stages.items() if not run.state.done(name, select(run))]


def _finish(run: _Run, console: Console) -> Path:
    """Costs, the report with them, and the tables on screen."""
    from gradus.reports import show_results, write_report

    write_json(run.folder / "costs.json", {"schema": 2, "stages": run.state.costs()})
    report = write_report(run.folder)
    results = read_json(run.folder / "results.json")
    console.print(show_results(results, quick=run.recipe.quick))
    show_promises(console, results.get("promises", []))
    show_costs(console, run.state.costs())
    console.print(f"report: [bold]{report}[/bold]", highlight=False)
    return run.folder


def _do_model(run: _Run, cost: dict[str, Any]) -> None:
    """Make the nano model, unless a model was given."""
    if run.recipe.model.path is not None:
        # Fail now rather than after the teacher has worked.
        loaded = load_model(run.base, attention=run.recipe.grpo.attention, **run.recipe.template())
        run.console.print(check_model(loaded).sentence, highlight=False)
        return
    if find_model(run.base) is None:  # it is whole if it is there: a kill came before that was written down
        _make_nano(run.recipe, run.folder / "model")


def _do_audit(run: _Run, cost: dict[str, Any]) -> None:
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


def _do_teach(run: _Run, cost: dict[str, Any]) -> None:
    section = run.recipe.teach
    name = teacher_name(run.spec, section.policy)
    path = run.folder / "teach" / "episodes.jsonl"
    with progress_bar(f"teach · {name}", section.episodes, "episodes") as advance:
        summary = teach(
            run.spec,
            make_policy(run.spec, name),
            episodes=section.episodes,
            path=path,
            grader=run.grader,
            seed=run.recipe.seed,
            workers=section.workers,
            reserved=reserved_ids(run.spec, run.recipe.grpo),
            progress=advance,
        )
    run.console.print(summary.sentence(path), highlight=False)
    cost.update({key: value for key, value in asdict(summary).items() if key not in ("seconds", "grader", "policy")})


def _do_sft(run: _Run, cost: dict[str, Any]) -> None:
    taught = read_episodes(run.folder / "teach" / "episodes.jsonl")
    folder = run.folder / "sft"
    config = _seeded(run.recipe.sft, run.recipe)
    with track(run.recipe.trackers, folder, config) as trackers:
        base = _loaded(run.recipe, run.base, config)
        result = train_sft(base, taught.episodes, config, folder, resume=_begun(folder), on_record=trackers)
    run.console.print(f"loss {_figure(result.loss)}, held out {_figure(result.validation_loss)} nats per action token")
    cost.update(steps=result.steps, tokens=_tokens(folder))


def _do_grpo(run: _Run, cost: dict[str, Any]) -> None:
    folder = run.folder / "grpo"
    result = _train_grpo(
        run.recipe,
        run.checkpoint("sft" if run.recipe.teach.enabled else "model"),
        folder,
        run.grader,
        resume=_begun(folder),
    )
    cost.update(steps=result.steps, tokens=_tokens(folder))


def _do_doctor(run: _Run, cost: dict[str, Any]) -> None:
    diagnose_run(run.folder, console=run.console)


def _do_eval(run: _Run, cost: dict[str, Any]) -> None:
    section = run.recipe.eval
    names = section.policies or _default_policies(run)
    names = names if "base" in names else ("base", *names)  # what training began with is in every table
    graders = list(dict.fromkeys([run.grader.name, *section.graders]))
    policies = _policies(run, names)
    pairs = [parse_pair(text, list(names)) for text in section.pairs] or None
    evaluation = evaluate_policies(
        run.spec,
        policies,
        conditions=list(section.conditions) or None,
        graders=graders,
        episodes=section.episodes,
        samples=section.samples,
        pass_k=section.pass_k,
        seed=run.recipe.seed,
        pairs=pairs,
        checkpoint="grpo/best",
    )
    document = evaluation.to_json()
    by_grader = {run.grader.name: document, **document.get("graders", {})}
    document["promises"] = check_promises(run.recipe.promises, by_grader, run.grader.name)
    document["quick"] = run.recipe.quick
    write_json(run.folder / "results.json", document)
    flat = [each for by_policy in evaluation.episodes.values() for several in by_policy.values() for each in several]
    write_episodes(run.folder / "eval" / "episodes.jsonl", flat, environment=run.spec.name, note="gradus run")
    write_report_episodes(
        run.folder,
        run.spec,
        run.grader,
        run.recipe.grpo,
        evaluation.episodes,
        policies,
        each=section.shown,
        seed=run.recipe.seed,
    )
    cost.update(episodes=len(flat))


def _default_policies(run: _Run) -> tuple[str, ...]:
    first = ("random",) if "random" in run.spec.policies else ()
    return (*first, *(("sft",) if run.recipe.teach.enabled else ()), "grpo", "grpo-greedy")


def _policies(run: _Run, names: Sequence[str]) -> dict[str, Policy]:
    """The policies of the evaluation: the run's checkpoints, one loaded at a time, and whatever a name means elsewhere."""
    shelf = ModelShelf()
    policies: dict[str, Policy] = {}
    for name in names:
        policies[name] = (
            _checkpoint(run, name, shelf) if name in CHECKPOINTS else make_policy(run.spec, name, shelf=shelf)
        )
    return policies


def _checkpoint(run: _Run, name: str, shelf: ModelShelf) -> Policy:
    """A checkpoint of the run as a policy."""
    stage, greedy = CHECKPOINTS[name]
    grpo = run.recipe.grpo
    sampling = grpo.sampling.as_greedy() if greedy else grpo.sampling
    options = run.recipe.template() if stage == "model" else {}
    load = partial(load_model, run.checkpoint(stage), attention=grpo.attention, **options)
    make = partial(
        LocalPolicy,
        sampling=sampling,
        name=name,
        batch_size=grpo.batch_size,
        kv_cache_tokens=grpo.kv_cache_tokens,
        grammar=run.spec.language.grammar,
    )
    return ShelvedPolicy(shelf, f"checkpoint {stage}", load, make, name=name)


def sft_alone(recipe: Recipe, data: Sequence[Path], folder: Path, *, resume: bool) -> Path:
    """`gradus sft`: warm-start a model (a nano model if none is named) on stored episodes; returns the best checkpoint."""
    spec = recipe.spec()
    episodes = []
    for path in data:
        stored = read_episodes(path)
        if stored.environment != spec.name:
            raise ConfigError(f"{path} holds episodes of {stored.environment}, not of {spec.name}")
        episodes.extend(stored.episodes)
    path = recipe.model.path
    base = str(folder / "model") if path is None else str(find_model(path) or path)
    fresh = path is None and not _begun(folder)
    if fresh:
        _make_nano(recipe, folder / "model")
    config = _seeded(recipe.sft, recipe)
    try:
        with track(recipe.trackers, folder, config) as trackers:
            model = _loaded(recipe, base, config)
            return train_sft(model, episodes, config, folder, resume=resume, on_record=trackers).best
    finally:
        if fresh and not _begun(folder):  # it failed before it began: the next try may want another model
            shutil.rmtree(folder / "model", ignore_errors=True)
            with suppress(OSError):  # something else is in it
                folder.rmdir()


def _make_nano(recipe: Recipe, folder: Path) -> None:
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
    grader = recipe.spec().grader(recipe.grader)
    return _train_grpo(recipe, find_model(model) or model, folder, grader, resume=resume).best


def _train_grpo(recipe: Recipe, model: Path | str, folder: Path, grader: Grader, *, resume: bool) -> GrpoResult:
    """GRPO with what the recipe wants besides: trackers, and a server that samples."""
    from gradus.health import Monitor

    config = _seeded(recipe.grpo, recipe)
    source, sampler, push_weights = served_sampler(_loaded(recipe, str(model), config), config, folder)
    with track(recipe.trackers, folder, config) as trackers:
        return train_grpo(
            source,
            recipe.spec(),
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


def _loaded(recipe: Recipe, model: str, config: TrainerConfig) -> LoadedModel:
    """The model with what it is trained with, which is stored beside it: sampling, template, system prompt, environment."""
    device = world().device or config.device if config.device == "auto" else config.device
    dtype = "float32" if config.autocast else config.dtype
    loaded = load_model(model, dtype=dtype, device=device, attention=config.attention, **recipe.template())
    check_model(loaded)
    return loaded.with_settings(
        environment=recipe.environment, system_prompt=_system_prompt(recipe), sampling=recipe.grpo.sampling
    )


def _system_prompt(recipe: Recipe) -> str:
    """What the environment says first in the first training task."""
    spec = recipe.spec()
    task = spec.train_task(recipe.grpo.first_task)
    environment = spec.make()
    try:
        environment.reset(seed=task.seed, **task.options)
        return environment.system_prompt
    finally:
        environment.close()


def _seeded(config: C, recipe: Recipe) -> C:
    """The stage's own seed if the recipe gives one, else the run's."""
    return config if "seed" in config.model_fields_set else config.model_copy(update={"seed": recipe.seed})


def _begun(folder: Path) -> bool:
    return (folder / "config.json").exists()


def _tokens(folder: Path) -> int:
    """Tokens that a training stage went through, from its own metrics."""
    import json

    total = 0
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        total += int(record.get("tokens") or 0) if record.get("kind") in ("step", "sft") else 0
    return total


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _without_none(value: Any) -> Any:
    """TOML has no null: what is unset is left out."""
    if isinstance(value, dict):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_none(each) for each in value]
    return value


def _section(*names: str) -> Callable[[_Run], dict[str, Any]]:
    """The settings of a stage: sections of the recipe, and what every stage depends on."""

    def select(run: _Run) -> dict[str, Any]:
        dumped = run.recipe.model_dump(mode="json", exclude={"teach": {"workers"}})  # who rolls out changes no episode
        return {name: dumped[name] for name in ("environment", "seed", *names)}

    return select


_TRAINED = ("model", "teach", "sft", "grpo", "grader", "rewards", "stage", "adaptive")


_STAGES: Mapping[str, tuple[Callable[[_Run, dict[str, Any]], None], Callable[[_Run], dict[str, Any]]]] = {
    "model": (_do_model, _section("model")),
    "audit": (_do_audit, _section("audit", "grader", "rewards")),
    "teach": (_do_teach, _section("teach")),
    "sft": (_do_sft, _section("model", "teach", "sft")),
    "grpo": (_do_grpo, _section(*_TRAINED)),
    "eval": (_do_eval, _section(*_TRAINED, "eval", "promises")),
    "doctor": (_do_doctor, _section(*_TRAINED, "eval")),
}
