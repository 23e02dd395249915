"""Training as one call, the run that comes back, and the check of a run that has not begun."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer

from gradus.commands.environments import agent, as_name, reward_entries
from gradus.commands.options import DataOrRecipe, RecipeOptions, RunOptions, TrainOptions, as_list, known_options
from gradus.commands.output import Shown, next_command, same
from gradus.commands.signature import command
from gradus.core import ConfigError, GradusError
from gradus.core.documents import SCHEMA, Results, read_document
from gradus.core.errors import require_training
from gradus.core.printing import quiet
from gradus.core.terminal import Terminal

if TYPE_CHECKING:
    from gradus.runs.checks import Finding
    from gradus.runs.recipe.record import Recipe

_OF_RUN = RunOptions.__annotations__.keys() - RecipeOptions.__annotations__.keys()  # they say nothing of the recipe


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
    def results(self) -> dict[str, Any]:
        """The document of the evaluation (docs/evaluation.md describes it)."""
        return dict(read_document(self.folder / "results.json", Results))

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
        return self.results

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
    """A run that is there already."""
    if not Path(folder).is_dir():
        raise ConfigError(f"no run folder {folder}; gradus run makes one")
    return Run(Path(folder))


def train(
    model: str | Path | None,
    data: Any,
    tasks: Any = None,
    *,
    steps: int | None = None,
    warm_start: bool | None = None,
    **options: Unpack[TrainOptions],
) -> Run:
    """Audit the rewards, check the settings, train with GRPO, diagnose, evaluate, and write a report.

    Args:
        model: a folder or a name on the hub; None makes a nano model from the data's words.
        data: an environment (its name, ``mine.py``, an EnvironmentSpec, a class with ``reset`` and ``step``) or data (``rows.jsonl``, ``rows.csv``, a list of
            rows with ``question`` and ``answer``); or an agent, a function or coroutine of a task and an OpenAI client.
        tasks: an agent's tasks, a list of rows.
        steps: GRPO's steps.
        warm_start: SFT on a teacher's episodes before GRPO. By default only a nano model gets it.
        options: further arguments of :func:`run`. ``rewards``: functions in TRL's signature, ``f(prompts, completions, **columns) -> list of
            numbers``; or names as in ``gradus rewards list``; or pairs of one of these and a weight. ``out``: the run's folder; the
            same call goes on there where it stopped. ``settings``: changes of single keys, ``{"grpo.max_steps": 20}``.

    See examples/own_rewards.py.
    """
    from gradus.runs.recipe.tables import parse_changes

    known_options(options, TrainOptions, "gradus.train", also=("model", "data", "tasks", "steps", "warm_start"))
    if tasks is not None:
        data = agent(data, tasks)
    warm = model is None if warm_start is None else warm_start
    settings = {
        "teach.enabled": warm,
        **({} if steps is None else {"grpo.max_steps": steps}),
        **parse_changes(options.pop("settings", ())),
    }
    return run(data, **{**options, "model": model, "settings": settings})


def _after_run(result: Run) -> None:
    from gradus.policies.local.folders import is_nano

    if is_nano(str(result.folder)):  # it knows its environment's words only, which is not enough for a conversation
        next_command("show", result.folder, "--last")
    else:
        next_command("chat", result.folder)


@command("run", _after_run)
def run(data: DataOrRecipe = None, **options: Unpack[RunOptions]) -> Run:
    """Do all stages of a recipe: audit, teacher, SFT, GRPO, doctor, evaluation, report. What is there already is not done again.

    >>> import gradus
    >>> gradus.run("rhythm", quick=True, out="runs/first").report()        # doctest: +SKIP
    """
    known_options(options, RunOptions, "gradus.run", also=("data",))
    of_recipe, whole = split_options(options)
    require_training()
    from gradus.runs.checks import require_names
    from gradus.runs.stages.fitting import fitted_recipe
    from gradus.runs.stages.runner import run_recipe
    from gradus.runs.stages.seeds import run_seeds

    seeds, time = whole.get("seeds"), whole.get("time")
    out = whole.get("out")
    told = {
        "out": None if out is None else Path(out),
        "redo": whole.get("redo", False),
        "anyway": whole.get("anyway", False),
    }
    made = make_recipe(data, **of_recipe)
    require_names(made)
    made = fitted_recipe(
        made,
        told["out"] or made.default_folder(),
        time=time,
        fixed=fixed_keys(made, data, of_recipe, time),
        anyway=told["anyway"],
        tell=Terminal(quiet=quiet(), highlight=False).print,
    )
    if seeds in (None, 1):
        return Run(run_recipe(made, **told))
    return Run(run_seeds(made, seeds=seeds, **told))


def _after_report(path: Path, *, run: Path) -> None:
    typer.echo(f"report: {path}")
    if (run / "results.json").is_file():
        next_command("show", run, "--last")


@command("report", _after_report)
def report(run: Annotated[Path, typer.Argument(help="A run folder.")]) -> Path:
    """Write RUN/report.html from what the run stored; it opens offline."""
    return load_run(run).report(show=False)


def split_options(options: RunOptions) -> tuple[RecipeOptions, dict[str, Any]]:
    """Returns the options that make the recipe, and those that say how it is run."""
    whole = {key: value for key, value in options.items() if key in _OF_RUN}
    return {key: value for key, value in options.items() if key not in whole}, whole  # pyright: ignore[reportReturnType]


def make_recipe(data: Any = None, *, online: bool = True, **options: Unpack[RecipeOptions]) -> Recipe:
    """The recipe of an environment, of rows, or of a file, with changes. Raises ConfigError.

    ``data``: an environment or rows; or a TOML recipe, or the name of one that comes with Gradus. ``memory``: change settings until
    the forecast fits a card of this size, and say which. ``online``: the hub may be asked for the config and tokenizer of a model that is named.
    """
    require_training()
    from gradus.runs.recipe.load import load_recipe
    from gradus.runs.recipe.tables import parse_changes

    known_options(options, RecipeOptions, "a recipe")
    told: dict[str, Any] = dict(options)
    memory, settings = told.pop("memory", None), told.pop("settings", ())
    rewards, recipe, model = told.pop("rewards", ()), told.pop("recipe", None), told.pop("model", None)
    if "trackers" in told:
        told["trackers"] = as_list(told["trackers"])
    if recipe is None and _is_recipe(data):
        data, recipe = None, data
    load = partial(
        load_recipe,
        None if data is None else as_name(data),
        path=None if recipe is None else Path(recipe),
        model=None if model is None else os.fspath(model),
        rewards=reward_entries(rewards),
        online=online,
        **told,
    )
    made = load(changes=settings)
    if made.chosen and not quiet():
        print(made.chosen, file=sys.stderr)
    if memory is None:
        return made
    from gradus.runs.checks.model import changes_for_card

    changed = changes_for_card(made, memory, online=online)
    print(f"{memory}: " + (" ".join(changed) or "the settings fit as they are"), file=sys.stderr)
    return load(changes={**parse_changes(settings), **parse_changes(changed)})


def fixed_keys(made: Recipe, data: Any, options: RecipeOptions, time: str | None) -> frozenset[str]:
    """Returns the settings that a time leaves as they are: those that were typed, and all of a file of one's own unless a time was typed."""
    own_file = (options.get("recipe") is not None or _is_recipe(data)) and time is None
    return made.fixed(all_of_file=own_file)


def _is_recipe(data: Any) -> bool:
    """True for a TOML file, and for the name of a recipe that comes with Gradus, unless an environment has it."""
    from gradus import environments
    from gradus.runs.recipe.tables import own_recipes

    if not isinstance(data, str | Path):
        return False
    name = str(data)
    return name.endswith(".toml") or (name in own_recipes() and name not in environments.names())


_STYLES = {"pass": "green", "warn": "yellow", "fail": "red", "skip": "dim"}


@dataclass(frozen=True, repr=False)
class Checklist(Shown):
    """The faults of a run that has not begun, with a remedy for each. ``status`` is ``pass``, ``warn`` or ``fail``."""

    findings: Sequence[Finding]

    @property
    def status(self) -> str:
        """The worst of the findings."""
        from gradus.runs.checks import status_of

        return status_of(self.findings)

    def to_json(self) -> dict[str, Any]:
        """The status and the findings."""
        return {"schema": SCHEMA, "status": self.status, "checks": [vars(finding) for finding in self.findings]}

    def tables(self) -> Sequence[Any]:
        """One line a finding, and the status."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for title in ("", "check", "result", "remedy"):
            table.add_column(title, overflow="fold")
        for each in self.findings:
            line = (Text(each.message), Text(each.remedy))
            table.add_row(Text(each.status, style=_STYLES[each.status]), each.check, *line)
        return [table, Text(self.status, style=f"bold {_STYLES[self.status]}")]


def _offline_unless(online: bool) -> bool:
    """Keeps the hub's client, which is not imported yet, from asking: this process is the command's alone."""
    if not online:
        os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    return online


_ONLINE = typer.Option(
    "--online", callback=_offline_unless, help="Ask servers and hubs too; nothing is asked otherwise."
)


def _after_check(result: Checklist, *, data: str | None) -> int | None:
    if result.status == "fail":
        return 1
    return next_command("run", *([data] if data else []), *same(*RunOptions.__annotations__))


@command("check", _after_check, shown=True)
def check(
    data: DataOrRecipe = None,
    *,
    online: Annotated[bool, _ONLINE] = False,
    **options: Unpack[RunOptions],
) -> Checklist:
    """Say what would go wrong in a run of the same options, with a remedy for each. Exit code 1 if anything would fail.

    Nothing is trained.

    >>> import gradus
    >>> gradus.check("arithmetic", quick=True).status in ("pass", "warn")
    True
    """
    require_training()
    from gradus.runs.checks import Circumstances, check_recipe, from_error

    of_recipe, whole = split_options(options)
    try:
        chosen = make_recipe(data, online=online, **of_recipe)
    except GradusError as error:
        return Checklist((from_error(error, "recipe", "correct the recipe"),))
    time = whole.get("time")
    given = Circumstances(
        online=online,
        time=time,
        fixed=fixed_keys(chosen, data, of_recipe, time),
        memory=of_recipe.get("memory"),
    )
    return Checklist(check_recipe(chosen, given))
