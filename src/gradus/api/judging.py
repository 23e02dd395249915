"""Judging graders, policies and runs: audit, check, evaluate, compare, plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gradus.api.environments import load_environment
from gradus.api.shown import Shown
from gradus.api.training import Run, load_run
from gradus.core import ConfigError, EnvironmentSpec, Episode, Policy

if TYPE_CHECKING:
    from gradus.audit import AuditResult, Hack
    from gradus.evaluation import Evaluation
    from gradus.pipeline.checks import Finding
    from gradus.planning.forecast import Plan

__all__ = ["Audit", "Checklist", "Comparison", "Forecast", "Scores", "audit", "check", "compare", "evaluate", "plan"]


@dataclass(frozen=True, repr=False)
class Audit(Shown):
    """The verdict on a grader. ``result`` holds the checks, the points of the figure and the hack, if one came up."""

    spec: EnvironmentSpec
    result: AuditResult

    @property
    def verdict(self) -> str:
        """``pass``, ``fail`` or ``unresolved``."""
        return self.result.verdict

    @property
    def hack(self) -> Hack | None:
        """A plan that the grader prefers to honest play, with an episode to look at; None if the search brought none."""
        return self.result.hack

    def to_json(self) -> dict[str, Any]:
        """What ``gradus audit --json`` prints."""
        return dict(self.result.to_json())

    def tables(self) -> Sequence[Any]:
        """The checks, the panel, the hack, and the verdict."""
        from gradus.pipeline.audit import audit_renderables

        return audit_renderables(self.result)

    def save(self, folder: str | Path) -> list[Path]:
        """Write audit.json, the figure and the hack; returns the paths."""
        from gradus.pipeline.audit import store_audit

        return store_audit(self.spec, self.result, Path(folder))


def audit(
    environment: str | EnvironmentSpec,
    grader: str | None = None,
    *,
    rewards: Sequence[Any] = (),
    episodes: int = 60,
    budget: int = 8000,
    policy: str | None = None,
    seed: int = 0,
    review: str | Path | None = None,
    unsafe: bool = False,
    seconds: float = 25.0,
) -> Audit:
    """Judge a grader (or reward functions) before money is spent on it.

    ``episodes``: paired seeds for every policy of the panel. ``budget``: episodes that the search for a hack may roll out.
    ``policy``: also forecast the signal that this policy would give. ``review``: a file with what a person said of answers that no
    rule settles. ``unsafe``: try answers that may be executed even if no sandbox can be made. ``seconds``: what the calls of a
    grader of one-turn tasks may take together; what is not asked within it is unresolved.

    >>> import gradus
    >>> gradus.audit("arithmetic", "format-only", episodes=20, budget=1200).verdict
    'fail'
    """
    from gradus.pipeline.audit import audit_with_progress
    from gradus.pipeline.policies import make_policy
    from gradus.pipeline.replay import replay_elsewhere
    from gradus.pipeline.review import read_marks

    spec = load_environment(environment, rewards=rewards)
    replay = partial(replay_elsewhere, environment) if isinstance(environment, str) and not rewards else None
    result = audit_with_progress(
        spec,
        spec.grader(grader),
        episodes=episodes,
        budget=budget,
        seed=seed,
        signal_policy=make_policy(spec, policy) if policy else None,
        elsewhere=replay,
        marks=read_marks(Path(review)) if review else None,
        unsafe=unsafe,
        limit=seconds,
    )
    return Audit(spec, result)


@dataclass(frozen=True, repr=False)
class Scores(Shown):
    """Policies on conditions, with intervals and paired differences. ``result`` holds the episodes; ``wide`` shows all figures."""

    spec: EnvironmentSpec
    result: Evaluation
    wide: bool = False

    def to_json(self) -> dict[str, Any]:
        """results.json."""
        return dict(self.result.to_json())

    def tables(self) -> Sequence[Any]:
        """The verdict and three figures a policy; if ``wide``, every figure, component, pair and curve."""
        if not self.wide:
            from gradus.reports import show_results

            return [show_results(self.result.to_json()), ""]
        return [part for table in self.result.tables() for part in (table, "")]

    @property
    def episodes(self) -> list[Episode]:
        """All episodes, conditions and policies one after another."""
        return [
            each for by_policy in self.result.episodes.values() for several in by_policy.values() for each in several
        ]

    @property
    def first_failure(self) -> str:
        """What went wrong in the first episode that failed, or an empty text."""
        failed = (each.failure for each in self.episodes if each.failure is not None)
        return next((f"{each.stage}: {each.type}: {each.message}" for each in failed), "")

    @property
    def all_failed(self) -> bool:
        """Whether there is no episode to judge by."""
        return all(each.failure is not None for each in self.episodes)

    def save(self, path: str | Path) -> Path:
        """Write the episodes as JSON lines."""
        from gradus.rollouts import write_episodes

        write_episodes(Path(path), self.episodes, environment=self.spec.name, note="gradus eval")
        return Path(path)

    def report(self, path: str | Path) -> Path:
        """Write an HTML report; returns its path."""
        from gradus.pipeline.evaluate import write_evaluation_report

        return write_evaluation_report(self.spec, self.result, Path(path))


def evaluate(
    policies: str | Path | Run | Policy | Sequence[Any] | Mapping[str, Any],
    against: Any = (),
    *,
    env: str | EnvironmentSpec | None = None,
    conditions: Sequence[str] | None = None,
    graders: Sequence[str] | None = None,
    rewards: Sequence[Any] = (),
    episodes: int | None = None,
    seed: int = 0,
    pairs: Sequence[tuple[str, str]] | None = None,
    power: float | None = None,
    samples: int = 1,
    pass_k: Sequence[int] = (),
    **sampling: Any,
) -> Scores:
    """Roll out policies on the same seeds and compare them, with intervals.

    ``policies`` and ``against``: names as on the command line (``gold``, ``remote:MODEL``, a model or run folder), runs, policy
    objects, several of them, or a mapping from the name to show. ``env`` may be left out if a run is among them.
    ``samples``: episodes of each task. ``pass_k``: for each k the chance that one of k samples passes, as the figure ``pass@k``.
    ``sampling``: ``temperature`` (0 is greedy), ``max_new_tokens`` and ``keep_history`` of models, if not as they were trained.

    >>> import gradus
    >>> scores = gradus.evaluate(["gold", "random"], env="arithmetic", episodes=8, conditions=["held-out"])
    >>> scores.to_json()["conditions"]["held-out"]["policies"]["gold"]["true_reward"]["mean"]
    1.0
    """
    from gradus.pipeline.evaluate import evaluate_policies
    from gradus.pipeline.policies import make_policy
    from gradus.policies.local.shelf import ModelShelf

    chosen = {**_named(policies), **_named(against)}
    spec = load_environment(env or _environment_of(chosen.values()), rewards=rewards)
    shelf = ModelShelf()
    made = {
        name: make_policy(spec, str(each.folder if isinstance(each, Run) else each), shelf=shelf, **sampling)
        if isinstance(each, str | Path | Run)
        else each
        for name, each in chosen.items()
    }
    result = evaluate_policies(
        spec,
        made,
        conditions=conditions,
        graders=graders,
        episodes=episodes,
        seed=seed,
        pairs=pairs,
        power=power,
        samples=samples,
        pass_k=pass_k,
    )
    return Scores(spec, result)


def _named(policies: Any) -> dict[str, Any]:
    if isinstance(policies, Mapping):
        return dict(policies)
    single = isinstance(policies, str | Path | Run) or hasattr(policies, "start")
    several: list[Any] = [policies] if single else [*cast(Iterable[Any], policies)]
    return {_label(each): each for each in several}


def _label(policy: Any) -> str:
    if isinstance(policy, Run):
        return policy.folder.name
    return str(policy.name) if hasattr(policy, "start") else str(policy)


def _environment_of(policies: Any) -> str:
    for each in policies:
        folder = each.folder if isinstance(each, Run) else Path(each) if isinstance(each, str | Path) else None
        if folder is not None and (folder / "results.json").is_file():
            return str(load_run(folder).results["environment"])
    raise ConfigError(
        "name the environment, as in evaluate(..., env='rhythm'); none of the policies is a run that knows it"
    )


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """Runs on the tasks that all were evaluated on: each minus those before it. ``settings``: key -> name -> value, where they differ."""

    document: Mapping[str, Any]
    runs: Mapping[str, Path]
    settings: Mapping[str, Mapping[str, str]]

    def tables(self) -> Sequence[Any]:
        """The verdict, one table a condition, and the settings that differ."""
        from rich.text import Text

        from gradus.reports import show_results

        lines = [
            f"  {key}: {', '.join(f'{name} {value}' for name, value in each.items())}"
            for key, each in self.settings.items()
        ]
        return [show_results(self.document), "", Text("\n".join(["settings that differ:", *(lines or ["  none"])]))]

    def to_json(self) -> dict[str, Any]:
        """The document, in the form of results.json, with the settings."""
        return {**self.document, "settings": {key: dict(each) for key, each in self.settings.items()}}

    def report(self, path: str | Path) -> Path:
        """Write an HTML page with the curves over each other; returns its path."""
        from gradus.core.files import write_text
        from gradus.pipeline.compare import comparison_page

        write_text(Path(path), comparison_page(self.runs, self.document))
        return Path(path)


def compare(*runs: str | Path | Run, policy: str | None = None) -> Comparison:
    """Compare runs of one environment by their stored evaluations, paired over the tasks; nothing is rolled out.

    ``runs``: folders, ``name=folder``, or runs. ``policy``: the one of each run that is compared; the best trained one that
    all have if None. p-values are corrected for the number of pairs and conditions.

    >>> import gradus
    >>> gradus.compare("a=runs/a", "b=runs/b")        # doctest: +SKIP
    """
    from gradus.pipeline.compare import compare_runs, differing_settings, named_runs

    named = named_runs([str(each.folder) if isinstance(each, Run) else str(each) for each in runs])
    settings = {key: dict(zip(named, values, strict=True)) for key, values in differing_settings(named)}
    return Comparison(dict(compare_runs(named, policy=policy)), named, settings)


@dataclass(frozen=True, repr=False)
class Checklist(Shown):
    """What would go wrong in a run, with a remedy for each. ``status`` is ``pass``, ``warn`` or ``fail``."""

    findings: Sequence[Finding]

    @property
    def status(self) -> str:
        """The worst of the findings."""
        from gradus.pipeline.checks import status_of

        return status_of(self.findings)

    def to_json(self) -> dict[str, Any]:
        """What ``gradus check --json`` prints."""
        from gradus.pipeline.checks import to_json

        return to_json(self.findings)

    def tables(self) -> Sequence[Any]:
        """The table, and the status."""
        from gradus.pipeline.checks.table import findings_table

        return findings_table(self.findings, self.status)


def check(
    data: Any = None,
    *,
    recipe: str | Path | None = None,
    out: str | Path | None = None,
    online: bool = False,
    **options: Any,
) -> Checklist:
    """Everything that would go wrong in a run of the same arguments (see :func:`gradus.run`), before it starts.

    Nothing is trained. Servers and hubs are asked only with ``online``.

    >>> import gradus
    >>> gradus.check("arithmetic", quick=True).status in ("pass", "warn")
    True
    """
    from gradus.api.training import make_recipe
    from gradus.core import GradusError
    from gradus.pipeline.checks import check_made_recipe, from_error

    folder = None if out is None else Path(out)
    try:
        chosen = make_recipe(data, recipe=recipe, **options)
    except GradusError as error:
        return Checklist((from_error(error, "recipe", "correct the recipe"),))
    return Checklist(check_made_recipe(chosen, out=folder, online=online))


@dataclass(frozen=True, repr=False)
class Forecast(Shown):
    """Memory, time and money of a run. ``plan`` holds the figures; ``problem`` says why it cannot fit, or is None.

    ``changes``: the settings that make it fit into the memory that was asked for, as ``key=value``.
    """

    plan: Plan
    problem: str | None
    changes: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """The figures, the problem and the changes."""
        figures = {"memory": dict(self.plan.memory), "peak": self.plan.peak, "seconds": dict(self.plan.seconds)}
        costs = {"steps": self.plan.steps, "hours": self.plan.hours, "cost": self.plan.cost}
        return {**figures, **costs, "problem": self.problem, "changes": list(self.changes)}

    def tables(self) -> Sequence[Any]:
        """The figures, and what stands against it or makes it fit."""
        from rich.table import Table
        from rich.text import Text

        from gradus.planning.forecast import as_rows

        title = f"{self.plan.model.name} on {self.plan.hardware.name}"
        table = Table(title=title, box=None, show_header=False, title_justify="left")
        for row in as_rows(self.plan):
            table.add_row(*row)
        fits = [Text("it fits with: " + " ".join(f"--set {each}" for each in self.changes))] if self.changes else []
        return [table, *fits, *([Text(self.problem, style="red")] if self.problem else [])]


def plan(data: Any = None, *, preset: str | None = None, memory: str | None = None, **options: Any) -> Forecast:
    """Forecast memory, time and money of a run of the same arguments (see :func:`gradus.run`); nothing is trained.

    ``preset``: settings that suit a machine, ``cpu``, ``small-gpu`` or ``large-gpu``. ``memory``: fit the settings to a card of this
    size, as in ``"24GB"``.

    >>> import gradus
    >>> gradus.plan("arithmetic").problem is None
    True
    """
    from gradus.api.training import make_recipe
    from gradus.pipeline.checks.plan import fitted_plan
    from gradus.planning.forecast import check_fits

    made, config, changes = fitted_plan(make_recipe(data, preset=preset, **options), preset=preset, memory=memory)
    try:
        check_fits(made, config)
    except ConfigError as error:
        return Forecast(made, str(error), changes)
    return Forecast(made, None, changes)
