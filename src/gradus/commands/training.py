"""Training as one call, and the run that comes back."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradus.commands.environments import as_name, reward_entries
from gradus.commands.given import as_list, known_options, parameters, path_text, whole_number
from gradus.commands.shown import Shown
from gradus.core import ConfigError
from gradus.core.documents import Results, read_document
from gradus.core.errors import require_training
from gradus.core.naming import did_you_mean
from gradus.core.printing import quiet

if TYPE_CHECKING:
    from gradus.runs.recipe.record import Recipe


WHOLE_RUN = ("out", "redo", "anyway", "seeds", "parallel")  # arguments of a run that say nothing of its recipe
_LOADED = ("quick", "seed", "grader", "trackers", "preset")  # what a recipe is loaded with besides


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
        """What the evaluation found (docs/evaluation.md describes it)."""
        return dict(read_document(self.folder / "results.json", Results))

    @cached_property
    def seeds(self) -> dict[int, Run]:
        """The run of each training seed; empty if there was one seed only."""
        from gradus.evidence.reports.run_files import seed_folders

        return {int(name.removeprefix("seed ")): Run(folder) for name, folder in seed_folders(self.folder).items()}

    @property
    def model(self) -> Path:
        """The folder of the trained model; that of the first seed if there are several."""
        from gradus.runs.policies import existing_model

        return existing_model(str(self.folder))

    def metrics(self, kind: str | None = "step") -> list[dict[str, Any]]:
        """The training's metrics, one record a step of GRPO. ``kind``: ``sft``, ``validation`` or ``alert`` for other records; None
        for all, in their order."""
        from gradus.core.metrics import KINDS, read_metrics

        if kind is not None and kind not in KINDS:
            raise ConfigError(
                f"unknown kind of metrics {kind!r}{did_you_mean(kind, KINDS)}; known are {', '.join(KINDS)}"
            )
        if self.seeds:
            raise ConfigError(
                f"{self.folder} holds several seeds; take the metrics of one, as in run.seeds[{min(self.seeds)}]"
            )
        return [record for record in read_metrics(self.folder) if kind in (None, record.get("kind"))]

    def tables(self) -> Sequence[Any]:
        """The table of results."""
        from gradus.evidence.reports import show_results

        return [show_results(self.results, quick=bool(self.results.get("quick")))]

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
    *,
    rewards: Sequence[Any] = (),
    steps: int | None = None,
    out: str | Path | None = None,
    warm_start: bool | None = None,
    **options: Any,
) -> Run:
    """Audit the rewards, check the settings, train with GRPO, diagnose, evaluate, and write a report.

    Args:
        model: a folder or a name on the hub; None makes a nano model from the data's words.
        data: an environment (its name, ``mine.py``, an EnvironmentSpec, a class with ``reset`` and ``step``) or data (``rows.jsonl``, ``rows.csv``, a list of
            rows with ``question`` and ``answer``).
        rewards: functions in TRL's signature, ``f(prompts, completions, **columns) -> list of numbers``; or names as in
            ``gradus rewards list``; or pairs of one of these and a weight. The environment's own grader if there are none.
        steps: GRPO's steps.
        out: the run's folder, ``runs/NAME`` if left out. The same call goes on where it stopped.
        warm_start: SFT on a teacher's episodes before GRPO. By default only a nano model gets it.
        options: further arguments of :func:`run` (``seed``, ``seeds``, ``parallel``, ``settings``, ``recipe``, ``quick``, ``redo``).

    See examples/own_rewards.py.
    """
    from gradus.runs.recipe.layers import parse_changes

    known_options(options, [*parameters(train), *parameters(run)], "gradus.train")
    warm = model is None if warm_start is None else warm_start
    settings = {
        "teach.enabled": warm,
        **({} if steps is None else {"grpo.max_steps": steps}),
        **parse_changes(options.pop("settings", ())),
    }
    return run(data, model=model, rewards=rewards, out=out, settings=settings, **options)


def run(
    data: Any = None,
    *,
    recipe: str | Path | None = None,
    model: str | Path | None = None,
    rewards: Sequence[Any] = (),
    settings: Mapping[str, Any] | Sequence[str] = (),
    quick: bool = False,
    seed: int | None = None,
    out: str | Path | None = None,
    redo: bool = False,
    anyway: bool = False,
    trackers: Sequence[str] = (),
    preset: str | None = None,
    memory: str | None = None,
    seeds: int | None = None,
    parallel: int | None = None,
) -> Run:
    """Do all stages of a recipe: audit, teacher, SFT, GRPO, doctor, evaluation, report. What is there already is not done again.

    ``data`` and ``rewards`` as in :func:`train`. ``recipe``: a TOML file, or one that comes with Gradus; without it the
    environment's own, or one made for the data. ``settings``: changes of single keys, ``{"grpo.max_steps": 20}``; None unsets one.
    ``preset``: settings that suit a machine (``cpu``, ``small-gpu``, ``large-gpu``). ``memory``: fit the settings to a card of this
    size, as in ``"24GB"``. ``quick``: every stage at toy size. ``redo``: do stages again whose settings, data or code have changed.
    ``anyway``: go on although the audit of the grader failed. ``seeds``: train from so many seeds, beginning with the recipe's, each in
    a folder of its own in ``out``; ``parallel`` of them at a time, by default as many as there are free cores. Intervals are then over
    seeds and tasks.

    >>> import gradus
    >>> gradus.run("rhythm", quick=True, out="runs/first").report()        # doctest: +SKIP
    """
    folder = Path(out) if out is not None else None
    made = make_recipe(
        data,
        recipe=recipe,
        model=model,
        rewards=rewards,
        settings=settings,
        quick=quick,
        seed=seed,
        trackers=trackers,
        preset=preset,
        memory=memory,
    )
    from gradus.runs.checks import require_names
    from gradus.runs.stages.runner import run_recipe

    if seeds is not None:
        whole_number("seeds", seeds)
    if parallel is not None:
        whole_number("parallel", parallel)
    with gradients():
        require_names(made)
        if seeds is not None and seeds != 1:
            from gradus.runs.stages.seeds import run_seeds

            return Run(run_seeds(made, seeds=seeds, parallel=parallel, out=folder, redo=redo, anyway=anyway))
        if parallel is not None:
            raise ConfigError("parallel has no effect without seeds; a plain run is one process")
        return Run(run_recipe(made, out=folder, redo=redo, anyway=anyway))


@contextmanager
def gradients() -> Iterator[None]:
    """Training works whatever its caller has switched: no_grad, inference_mode or autocast. The caller's threads are left as they were."""
    import torch

    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def make_recipe(
    data: Any = None,
    *,
    recipe: str | Path | None = None,
    rewards: Sequence[Any] = (),
    model: str | Path | None = None,
    settings: Mapping[str, Any] | Sequence[str] = (),
    memory: str | None = None,
    online: bool = True,
    **options: Any,
) -> Recipe:
    """The recipe of an environment, of rows, or of a file, with changes. Raises ConfigError.

    ``memory``: change settings until the forecast fits a card of this size, and say which. ``online``: the hub may be asked for the
    config and tokenizer of a model that is named.
    """
    require_training()
    from gradus.runs.recipe.layers import parse_changes
    from gradus.runs.recipe.load import load_recipe

    if whole := [name for name in WHOLE_RUN if name in options]:
        raise ConfigError(f"{whole[0]} is an argument of gradus.run, which does all stages; leave it out")
    known_options(options, [*parameters(make_recipe), *_LOADED], "a recipe")
    if memory is not None and not isinstance(memory, str):
        raise ConfigError(f"memory is a text, as in '24GB', got {memory!r}")
    if "trackers" in options:
        options["trackers"] = as_list("trackers", options["trackers"], example="['tensorboard']")
    load = partial(
        load_recipe,
        None if data is None else as_name(data, rewards),
        path=None if recipe is None else Path(recipe),
        model=None if model is None else path_text("model", model),
        rewards=reward_entries(rewards),
        online=online,
        **options,
    )
    made = load(changes=settings)
    if made.chosen and not quiet():
        print(made.chosen, file=sys.stderr)
    if memory is None:
        return made
    from gradus.runs.checks.plan import fitted_plan
    from gradus.runs.planning.forecast import check_fits

    forecast, config, changed = fitted_plan(made, preset=options.get("preset"), memory=memory, online=online)
    check_fits(forecast, config)
    print(f"{memory}: " + (" ".join(changed) or "the settings fit as they are"), file=sys.stderr)
    return load(changes={**parse_changes(settings), **parse_changes(changed)})


def recipe_or_data(name: str | None, recipe: str | None) -> tuple[str | None, str | None]:
    """What a command's first word means: data, or a recipe if it is a TOML file or one that comes with Gradus."""
    from gradus import environments
    from gradus.runs.recipe.tables import own_recipes

    if name is None or recipe is not None:
        return name, recipe
    is_recipe = name.endswith(".toml") or (name in own_recipes() and name not in environments.names())
    return (None, name) if is_recipe else (name, None)
