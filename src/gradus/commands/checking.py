"""What is judged before a run: the grader (audit), the settings (check), and what it will take (plan)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradus.commands.environments import Data, as_name, load_environment
from gradus.commands.given import as_list, require_rewards_used, whole_number
from gradus.commands.shown import Shown
from gradus.core import ConfigError, EnvironmentSpec, GradusError
from gradus.core.errors import require_training
from gradus.environments import file_name

if TYPE_CHECKING:
    from gradus.auditing import AuditResult, Hack
    from gradus.runs.checks import Finding
    from gradus.runs.planning.forecast import Plan


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
        from gradus.runs.stages.audits import audit_renderables

        return audit_renderables(self.result)

    def ask_person(self, review: str | Path) -> int:
        """Ask in the terminal about accepted answers that no rule settles, and keep what is said in the file ``review``.

        Returns how many were marked.
        """
        from gradus.runs.person import ask_person

        return ask_person(self.result.review, Path(review))

    def save(self, folder: str | Path) -> list[Path]:
        """Write audit.json, the page, the figure, the hack, a card and a badge; returns the paths."""
        from gradus.runs.stages.audits import store_audit

        return store_audit(self.spec, self.result, Path(folder))


def audit(
    environment: Data,
    grader: str | None = None,
    *,
    rewards: Sequence[Any] = (),
    recipe: str | Path | None = None,
    episodes: int | None = None,
    budget: int | None = None,
    policy: str | None = None,
    seed: int = 0,
    review: str | Path | None = None,
    unsafe: bool = False,
    seconds: float | None = None,
    attack: Sequence[str] = (),
    attack_episodes: int = 6400,
    attempts: int = 6,
) -> Audit:
    """Judge a grader (or reward functions) before money is spent on it.

    ``recipe``: a TOML recipe whose grader or rewards are meant, settings included (a judge's rubric and budget, say).
    ``episodes``: tasks of one turn to probe (48 if None), elsewhere paired seeds for every policy of the panel (60). ``budget``:
    answers that may be asked to evolve others (1152 if None), elsewhere episodes that the search for a hack may roll out (8000).
    ``policy``: also forecast the signal that this policy would give. ``review``: a file with what a person said of answers that no
    rule settles. ``unsafe``: try answers that may be executed even if no sandbox can be made. ``seconds``: what the calls of a
    grader of one-turn tasks may take together (20 if None, 180 if answers are programs); what is not asked within it is unresolved. ``attack``: who else looks for a hack:
    ``learn`` (a nano model trained by GRPO for ``attack_episodes``), or a policy such as ``remote:MODEL`` that reads the grader's
    source and has so many ``attempts``.

    >>> import gradus
    >>> gradus.audit("arithmetic", "format-only", episodes=20, budget=1200).verdict
    'fail'
    """
    from gradus.runs.person import read_marks
    from gradus.runs.policies import make_policy
    from gradus.runs.recipe import MOST_EPISODES
    from gradus.runs.replay import replay_elsewhere
    from gradus.runs.stages.audits import audit_with_progress

    numbers = {
        "episodes": (episodes, 1),
        "budget": (budget, 0),
        "attack_episodes": (attack_episodes, 1),
        "attempts": (attempts, 1),
    }
    for name, (value, least) in numbers.items():
        if value is not None:
            whole_number(name, value, least=least, most=MOST_EPISODES)
    attack = as_list("attack", attack, example="['learn']")
    if recipe is not None:
        environment, grader = _of_recipe(environment, recipe, grader, rewards)
        rewards = ()
    require_rewards_used(rewards, [grader])
    spec = load_environment(environment, rewards=rewards)
    attackers: Sequence[Any] = ()
    if attack:
        from gradus.runs.learning_attack import make_attackers

        attackers = make_attackers(spec, attack, budget=attack_episodes, tries=attempts)
    named = isinstance(environment, str | Path) and not rewards
    replay = partial(replay_elsewhere, file_name(str(environment))) if named else None
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
        attackers=attackers,
    )
    return Audit(spec, result)


def _of_recipe(
    environment: Data, recipe: str | Path, grader: str | None, rewards: Sequence[Any]
) -> tuple[EnvironmentSpec, str | None]:
    """The environment with the rewards of a recipe, and the grader that the recipe trains with."""
    from gradus.runs.recipe.load import load_recipe

    if rewards:
        raise ConfigError("a recipe names its rewards itself; give --recipe or --reward, got both")
    made = load_recipe(as_name(environment), path=Path(recipe))
    return made.spec(), grader or made.grader_name


@dataclass(frozen=True, repr=False)
class Checklist(Shown):
    """What would go wrong in a run, with a remedy for each. ``status`` is ``pass``, ``warn`` or ``fail``."""

    findings: Sequence[Finding]

    @property
    def status(self) -> str:
        """The worst of the findings."""
        from gradus.runs.checks import status_of

        return status_of(self.findings)

    def to_json(self) -> dict[str, Any]:
        """What ``gradus check --json`` prints."""
        from gradus.runs.checks import to_json

        return to_json(self.findings)

    def tables(self) -> Sequence[Any]:
        """The table, and the status."""
        from gradus.runs.checks import findings_table

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

    Nothing is trained. Servers and hubs are asked only with ``online``. Of ``seeds`` only the folder depends; ``parallel``, ``redo`` and
    ``anyway`` change nothing here.

    >>> import gradus
    >>> gradus.check("arithmetic", quick=True).status in ("pass", "warn")
    True
    """
    from gradus.commands.training import WHOLE_RUN, make_recipe

    require_training()
    from gradus.runs.checks import check_recipe, from_error

    folder = None if out is None else Path(out)
    several = options.get("seeds") not in (None, 1)
    options = {key: value for key, value in options.items() if key not in WHOLE_RUN}
    try:
        chosen = make_recipe(data, recipe=recipe, online=online, **options)
    except GradusError as error:
        return Checklist((from_error(error, "recipe", "correct the recipe"),))
    return Checklist(check_recipe(chosen, out=folder, online=online, several=several))


@dataclass(frozen=True, repr=False)
class Forecast(Shown):
    """Memory, time and money of a run. ``plan`` holds the figures; ``problem`` says why it cannot fit, or is None.

    ``changes``: the settings that make it fit into the memory that was asked for, as ``key=value``.
    """

    plan: Plan
    problem: str | None
    changes: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """The hardware, the figures, the problem and the changes."""
        figures = {"memory": dict(self.plan.memory), "peak": self.plan.peak, "seconds": dict(self.plan.seconds)}
        costs = {"steps": self.plan.steps, "hours": self.plan.hours, "cost": self.plan.cost}
        return {
            "hardware": self.plan.hardware.name,
            **figures,
            **costs,
            "problem": self.problem,
            "changes": list(self.changes),
        }

    def tables(self) -> Sequence[Any]:
        """The figures, and what stands against it or makes it fit."""
        from rich.table import Table
        from rich.text import Text

        from gradus.runs.planning.forecast import as_rows

        title = Text(f"{self.plan.model.name} on {self.plan.hardware.name}")
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
    from gradus.commands.training import WHOLE_RUN, make_recipe

    require_training()
    from gradus.runs.checks.plan import fitted_plan
    from gradus.runs.planning.forecast import check_fits

    if memory is not None and not isinstance(memory, str):
        raise ConfigError(f"memory is a text, as in '24GB', got {memory!r}")
    options = {key: value for key, value in options.items() if key not in WHOLE_RUN}
    chosen = make_recipe(data, preset=preset, **options)
    made, config, changes = fitted_plan(chosen, preset=preset, memory=memory, online=True)
    try:
        check_fits(made, config)
    except ConfigError as error:
        return Forecast(made, str(error), changes)
    return Forecast(made, None, changes)
