"""Training as one call, the run that comes back, and the check of a run that has not begun."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack, cast

from cyclopts import Parameter

from gradus.commands.entries import command
from gradus.commands.environments import agent, environment_of
from gradus.commands.options import (
    WORD,
    Data,
    DataOrRecipe,
    Port,
    RecipeOptions,
    Rows,
    RunArguments,
    as_list,
    known_options,
)
from gradus.commands.output import CommandCall, Shown, next_command, note
from gradus.core import ConfigError, EnvironmentSpec, GradusError
from gradus.core.documents import SCHEMA, Results, read_document
from gradus.core.errors import require_training
from gradus.core.findings import EXIT_CODES, Finding, worst
from gradus.core.printing import quiet
from gradus.core.values import Json, JsonDict

if TYPE_CHECKING:
    from gradus.runs.job import Job

_OF_RUN = RunArguments.__annotations__.keys() - RecipeOptions.__annotations__.keys()  # they say nothing of the recipe


@dataclass(frozen=True, repr=False)
class Run(Shown):
    """A run's folder. ``results`` is its results.json, ``model`` its best checkpoint.

    It prints as the table of results; :meth:`report` writes and opens the HTML report.
    """

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))

    def __fspath__(self) -> str:
        return str(self.folder)

    @cached_property
    def results(self) -> Results:
        """The document of the evaluation (docs/evaluation.md describes it)."""
        return read_document(self.folder / "results.json", Results)

    @property
    def model(self) -> Path:
        """The folder of the trained model; that of the first seed if there are several."""
        from gradus.runs.policies import existing_model

        return existing_model(str(self.folder))

    def metrics(self, kind: str | None = "step") -> list[dict[str, Any]]:
        """The training's metrics, one record a step of GRPO. ``kind``: ``sft``, ``validation`` or ``alert`` for other records; None
        for all, in their order."""
        from gradus.core.metrics import read_metrics

        return [record for record in read_metrics(self.folder) if kind in (None, record.get("kind"))]

    def to_json(self) -> dict[str, Any]:
        """results.json."""
        return dict(self.results)

    def tables(self) -> Sequence[Any]:
        """The table of results."""
        from gradus.evidence.reports import show_results

        return [show_results(self.results)]

    def report(self, *, show: bool = True) -> Path:
        """Write the HTML report; with ``show`` it opens in a browser. Returns its path."""
        import webbrowser

        from gradus.evidence.reports import write_report

        path = write_report(self.folder)
        if show:
            webbrowser.open(path.resolve().as_uri())
        return path


def load_run(folder: str | Path) -> Run:
    """Returns the run of a folder."""
    if not Path(folder).is_dir():
        raise ConfigError(f"no run folder {folder}; gradus run makes one")
    return Run(Path(folder))


def train(
    model: str | Path | None,
    data: Data | Callable[..., Any],
    tasks: Rows | None = None,
    *,
    rewards: Sequence[Any] = (),
    steps: int | None = None,
    warm_start: bool | None = None,
    out: str | Path | None = None,
    time: str | None = None,
    seed: int | None = None,
    seeds: int | None = None,
    grader: str | None = None,
    settings: Mapping[str, Any] | Sequence[str] = (),
    recipe: str | Path | None = None,
    memory: str | None = None,
    trainer: str | None = None,
    max_cost: str | None = None,
    trackers: Sequence[str] = (),
    lora: int | bool | None = None,
    quick: bool = False,
    redo: bool = False,
    anyway: bool = False,
) -> Run:
    """Audit the rewards, check the settings, train with GRPO, diagnose, evaluate, and write a report.

    Args:
        model: a folder or a name on the hub; None makes a nano model from the data's words.
        data: an environment (its name, ``mine.py``, an EnvironmentSpec, a class with ``reset`` and ``step``) or data (``rows.jsonl``, ``rows.csv``, a list of
            rows with ``question`` and ``answer``); or an agent, a function or coroutine of a task and an OpenAI client.
        tasks: an agent's tasks, a list of rows.
        rewards: functions in TRL's signature, ``f(prompts, completions, **columns) -> list of numbers``; or names as in ``gradus rewards list``; or
            pairs of one of these and a weight.
        steps: GRPO's steps.
        warm_start: SFT on a teacher's episodes before GRPO. By default the recipe says so, and a base without a signal gets it from reference answers.
        out: the run's folder; the same call goes on there where it stopped.
        time: fit lengths, groups, steps and evaluation to a time, as in ``"20m"``.
        seed: of the whole run. ``seeds``: train from so many, one after another or beside each other.
        grader: a grader of the environment, in place of rewards.
        settings: changes of single keys, ``{"grpo.max_steps": 20}``.
        recipe: a TOML recipe, or one that comes with Gradus; otherwise the environment's.
        memory: fit the settings to a card of this size, as in ``"24GB"``.
        trainer: ``tinker:URL`` trains and samples on a server of the Tinker API, which has the model.
        lora: train adapters (LoRA), ``True`` or their rank, at their own rates.
        max_cost: stop before this is spent, as in ``"5usd"``, by the recipe's ``[prices]``.
        trackers: where metrics go besides metrics.jsonl, as in ``["wandb"]``.
        quick: every stage at toy size.
        redo: do stages again whose settings, data or code have changed.
        anyway: go on although the audit of the grader failed.

    See examples/own_rewards.py.
    """
    from gradus.runs.recipe.tables import parse_changes

    if tasks is not None:
        data = agent(cast(Callable[..., Any], data), tasks)
    changes: dict[str, Any] = {} if warm_start is None else {"teach.enabled": warm_start}
    if steps is not None:
        changes["grpo.max_steps"] = steps
    return run(
        data,
        model=model,
        rewards=rewards,
        settings={**changes, **parse_changes(settings)},
        out=out,
        time=time,
        seed=seed,
        seeds=seeds,
        grader=grader,
        recipe=recipe,
        memory=memory,
        trainer=trainer,
        max_cost=max_cost,
        trackers=trackers,
        lora=lora,
        quick=quick,
        redo=redo,
        anyway=anyway,
    )


def _after_run(result: Run, call: CommandCall) -> None:
    from gradus.policies.local.folders import find_model, is_nano, model_kind

    if arms := call.values.get("arms"):
        next_command("show", result.folder / f"arm-{arms[-1]}", "--last")
        return
    model = find_model(result.folder)
    is_served = model is not None and model_kind(model) == "served"
    # A nano model knows its environment's words only, which is not enough for a conversation.
    if is_served or is_nano(str(result.folder)):
        next_command("show", result.folder, "--last")
    else:
        next_command("chat", result.folder)


@command("run", _after_run)
def run(data: DataOrRecipe = None, **options: Unpack[RunArguments]) -> Run:
    """Audit, warm-start, train, diagnose, evaluate and report. What is there already is not done again.

    >>> import gradus
    >>> gradus.run("rhythm", quick=True, out="runs/first").report()        # doctest: +SKIP
    """
    known_options(options, RunArguments, "gradus.run", also=("data",))
    recipe_options, run_options = split_options(options)
    require_training()
    # These bring torch, which the base install lacks and no other command should wait for.
    from gradus.core.terminal import Terminal
    from gradus.runs.forecast.checks import require_names, setting_warnings
    from gradus.runs.forecast.look import fitted_job
    from gradus.runs.stages.arms import run_arms
    from gradus.runs.stages.runner import run_stages
    from gradus.runs.stages.seeds import run_seeds

    time, seeds = run_options.get("time"), run_options.get("seeds") or 1
    job = make_job(data, **recipe_options)
    require_names(job)  # before anything is loaded or spent
    folder = Path(run_options.get("out") or job.recipe.default_folder())
    anyway, redo = run_options.get("anyway", False), run_options.get("redo", False)
    fixed = fixed_keys(job, data, recipe_options, time)
    if arms := as_list(run_options.get("arms", ())):
        if seeds != 1:
            raise ConfigError("arms are trained from one seed; leave out --seeds, or run each arm with it")
        return Run(run_arms(job, folder, arms, time=time, fixed=fixed, redo=redo, anyway=anyway))
    tell = Terminal(quiet=quiet(), highlight=False).print
    job = fitted_job(job, folder, time=time, fixed=fixed, anyway=anyway, seeds=seeds, tell=tell)
    # Of the settings that the run will have: the fitted ones.
    for warning in setting_warnings(job):
        tell(f"warn: {warning.evidence} -> {warning.remedy}")
    if seeds == 1:
        return Run(run_stages(job, folder, redo=redo, anyway=anyway))
    return Run(run_seeds(job, folder, seeds=seeds, redo=redo, anyway=anyway))


def _after_report(path: Path, call: CommandCall) -> None:
    if call["live"]:
        return
    print(f"report: {path}")
    if (Path(call["run"]) / "results.json").is_file():
        next_command("show", call["run"], "--last")


@command("report", _after_report)
def report(
    run: Annotated[str | Path, WORD, Parameter(name="run", help="A run folder.")],
    *,
    live: Annotated[bool, Parameter(help="Serve the report of a run that goes on, renewed every few seconds.")] = False,
    port: Port = 0,
) -> Path:
    """Write RUN/report.html from what the run stored; it opens offline. --live serves it on this machine while the run goes on."""
    if not live:
        return load_run(run).report(show=False)
    from gradus.interop.live import live_app
    from gradus.interop.servers import listen, serve_until_stopped, server_config, url

    folder = load_run(run).folder
    with listen("127.0.0.1", port) as listener:
        note(f"{folder} at {url(listener, '127.0.0.1')}; Ctrl-C stops")
        serve_until_stopped(server_config(live_app(folder)), listener)
    return folder


def split_options(options: RunArguments) -> tuple[RecipeOptions, RunArguments]:
    """Returns the options that make the recipe, and those that say how it is run."""
    of_recipe = {key: value for key, value in options.items() if key not in _OF_RUN}
    of_run = {key: value for key, value in options.items() if key in _OF_RUN}
    return cast(RecipeOptions, of_recipe), cast(RunArguments, of_run)


def make_job(data: Any = None, *, online: bool = True, **options: Unpack[RecipeOptions]) -> Job:
    """The job of an environment, of rows, or of a recipe's file, with changes. Raises ConfigError.

    ``data``: an environment or rows; or a TOML recipe, or the name of one that comes with Gradus. ``memory``: change settings until
    the forecast fits a card of this size, and say which. ``online``: the hub may be asked for the config and tokenizer of a model that is named.
    """
    require_training()
    from gradus.rewards import choose_rewards
    from gradus.runs.job import resolve
    from gradus.runs.recipe.load import load_recipe
    from gradus.runs.recipe.tables import parse_changes
    from gradus.runs.sources import forget_changed_files

    known_options(options, RecipeOptions, "a recipe")
    forget_changed_files()  # before any of them is imported again by its name
    path = options.get("recipe")
    if path is None and _is_recipe(data):
        data, path = None, data
    model, memory = options.get("model"), options.get("memory")
    source = None if data is None else environment_of(data)
    rewards = choose_rewards(options.get("rewards", ()))

    def job_with(changes: Json) -> Job:
        recipe = load_recipe(
            source,
            path=None if path is None else Path(path),
            model=None if model is None else os.fspath(model),
            changes=changes,
            rewards=rewards,
            quick=options.get("quick", False),
            seed=options.get("seed"),
            grader=options.get("grader"),
            trackers=as_list(options.get("trackers", ())),
            trainer=options.get("trainer"),
            online=online,
        )
        return resolve(recipe, environment=source if isinstance(source, EnvironmentSpec) else None, rewards=rewards)

    settings = _settings_of(options)
    job = job_with(settings)
    if job.recipe.chosen and not quiet():
        print(job.recipe.chosen, file=sys.stderr)
    if memory is None:
        return job
    from gradus.runs.forecast.model import changes_for_card

    changes = changes_for_card(job, memory, online=online)
    print(f"{memory}: " + (" ".join(changes) or "the settings fit as they are"), file=sys.stderr)
    return job_with({**settings, **parse_changes(changes)})


def _settings_of(options: RecipeOptions) -> JsonDict:
    """The changes that ``lora`` stands for, those by name, which come on top, and ``max_cost``."""
    from gradus.runs.money import read_dollars
    from gradus.runs.recipe.starter import adapters_of
    from gradus.runs.recipe.tables import parse_changes

    settings = {**adapters_of(options.get("lora")), **parse_changes(options.get("settings", ()))}
    max_cost = options.get("max_cost")
    if max_cost is not None:
        settings["prices.max_cost"] = read_dollars(max_cost)
    return settings


def fixed_keys(job: Job, data: Any, options: RecipeOptions, time: str | None) -> frozenset[str]:
    """Returns the settings that a time leaves as they are: those that were typed, and all of a file of one's own unless a time was typed."""
    own_file = (options.get("recipe") is not None or _is_recipe(data)) and time is None
    return job.recipe.fixed(all_of_file=own_file)


def _is_recipe(data: Any) -> bool:
    """True for a TOML file, and for the name of a recipe that comes with Gradus, unless an environment has it."""
    from gradus import environments
    from gradus.runs.recipe.tables import own_recipes

    if not isinstance(data, str | Path):
        return False
    name = str(data)
    return name.endswith(".toml") or (name in own_recipes() and name not in environments.names())


# The one scale of findings as a check before a run writes it -> its color.
_STATUSES = {"pass": "pass", "note": "pass", "open": "skip", "warn": "warn", "fail": "fail"}
_STYLES = {"pass": "green", "warn": "yellow", "fail": "red", "skip": "dim"}


@dataclass(frozen=True, repr=False)
class Checklist(Shown):
    """The faults of a run that has not begun, with a remedy for each. ``status`` is ``pass``, ``warn`` or ``fail``."""

    findings: Sequence[Finding]

    @property
    def status(self) -> str:
        """The worst of the findings. What could not be looked at does not count."""
        return _STATUSES[worst(finding for finding in self.findings if finding.status != "open")]

    def to_json(self) -> dict[str, Any]:
        """The status and the findings."""
        checks: list[dict[str, str]] = []
        for finding in self.findings:
            status = _STATUSES[finding.status]
            row = {"check": finding.subject, "status": status, "message": finding.evidence, "remedy": finding.remedy}
            checks.append(row)
        return {"schema": SCHEMA, "status": self.status, "checks": checks}

    def tables(self) -> Sequence[Any]:
        """One line a finding, and the status."""
        from rich.table import Table
        from rich.text import Text

        table = Table("", "check", "result", "remedy", box=None, pad_edge=False)
        for finding in self.findings:
            status = _STATUSES[finding.status]
            line = (Text(finding.evidence), Text(finding.remedy))
            table.add_row(Text(status, style=_STYLES[status]), finding.subject, *line)
        return [table, Text(self.status, style=f"bold {_STYLES[self.status]}")]


def _after_check(result: Checklist, call: CommandCall) -> int | None:
    if result.status == "fail":
        return EXIT_CODES["fail"]
    environment = [call["data"]] if call["data"] else []
    return next_command("run", *environment, *call.same(*RunArguments.__annotations__))


def check(data: DataOrRecipe = None, *, online: bool = False, **options: Unpack[RunArguments]) -> Checklist:
    """Say what would go wrong in a run of the same options, with a remedy for each. Nothing is trained.

    An agent without a named model runs one episode on a scripted one, which takes seconds. ``online``: ask servers and hubs too.

    >>> import gradus
    >>> gradus.check("arithmetic", quick=True).status in ("pass", "warn")
    True
    """
    require_training()
    from gradus.runs.forecast.checks import check_job
    from gradus.runs.forecast.subject import Circumstances, from_error

    recipe_options, run_options = split_options(options)
    try:
        job = make_job(data, online=online, **recipe_options)
    except GradusError as error:
        return Checklist((from_error(error, "recipe", "correct the recipe"),))
    if job.environment.foreign and recipe_options.get("model") is None:
        from gradus.interop.agents.checkup import check_agent

        return Checklist(check_agent(job.environment))
    time = run_options.get("time")
    circumstances = Circumstances(
        online=online,
        time=time,
        fixed=fixed_keys(job, data, recipe_options, time),
        memory=recipe_options.get("memory"),
    )
    return Checklist(check_job(job, circumstances))


@command("check", _after_check, shown=True)
def check_command(
    data: DataOrRecipe = None,
    *,
    online: Annotated[bool, Parameter(help="Ask servers and hubs too; nothing is asked otherwise.")] = False,
    **options: Unpack[RunArguments],
) -> Checklist:
    """Say what would go wrong in a run of the same options. Each fault has a remedy. Nothing is trained."""
    if not online:  # the hub's client is not imported yet, and this process is the command's alone
        os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    return check(data, online=online, **options)
