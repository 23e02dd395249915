"""Policies compared by episodes on the same seeds, and runs by what they stored."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from gradus.commands.environments import load_environment
from gradus.commands.options import (
    Environment,
    Line,
    MaxNewTokens,
    Rewards,
    Seed,
    Temperature,
    as_list,
    require_rewards_used,
    writes,
)
from gradus.commands.output import Shown, next_command, note, same
from gradus.commands.signature import command
from gradus.commands.training import Run
from gradus.core import ConfigError, EnvironmentSpec, Episode, Policy
from gradus.core.printing import verbose

if TYPE_CHECKING:
    from gradus.evidence.evaluation import Evaluation

# What makes an evaluation the one that it is.
_SAME = ("policies", "rewards", "graders", "conditions", "episodes", "seed", "pairs", "power", "samples", "pass_k", "until_decided",
         "temperature", "max_new_tokens")  # fmt: skip
_Policies = str | Path | Run | Policy | Sequence[Any] | Mapping[str, Any]

_POLICIES = typer.Option(
    "--policy",
    "-p",
    "--model",
    help="Policies or models, separated by commas; `all` for the scripted ones (repeatable).",
)
_CONDITIONS = typer.Option("--condition", "-c", help="Conditions, by commas; `all`, or `first` (repeatable).")
_GRADERS = typer.Option("--grader", "-g", help="Graders, by commas; the first is the main one (repeatable).")
_PAIRS = typer.Option("--pairs", help="Pairs to compare, as a-b, by commas; every pair otherwise (repeatable).")
_PASS_K = typer.Option(
    "--pass-k", help="Show the chance that one of K samples passes, as pass@K; several K by commas (repeatable)."
)
_RUNS = typer.Argument(
    metavar="RUNS",
    help="Run folders, as PATH or NAME=PATH; later ones minus earlier ones.",
)


@dataclass(frozen=True, repr=False)
class Scores(Shown):
    """Policies on conditions, with intervals and paired differences. ``result`` holds the episodes."""

    spec: EnvironmentSpec
    result: Evaluation

    def to_json(self) -> dict[str, Any]:
        """results.json."""
        return dict(self.result.to_json())

    def tables(self) -> Sequence[Any]:
        """The verdict and three figures a policy; with ``--verbose`` every figure, component and pair."""
        from gradus.evidence.reports import all_tables, power_lines, show_results

        results = self.result.to_json()
        wide = [*all_tables(results)] if verbose() else []
        return [show_results(results), "", *power_lines(results), *wide]

    @property
    def episodes(self) -> list[Episode]:
        """All episodes, conditions and policies one after another."""
        return self.result.flat

    def save(self, path: str | Path) -> Path:
        """Write the episodes as JSON lines."""
        from gradus.rollouts import write_episodes

        write_episodes(Path(path), self.episodes, environment=self.spec.name, note="gradus eval")
        return Path(path)

    def report(self, path: str | Path) -> Path:
        """Write an HTML report; returns its path."""
        from gradus.runs.stages.evaluation import write_evaluation_report

        return write_evaluation_report(self.spec, self.result, Path(path))


def _after_evaluate(
    result: Scores,
    *,
    env: str,
    out: Annotated[Path | None, writes("Write the episodes (JSON lines) here.")] = None,
    report: Annotated[Path | None, typer.Option("--report", help="Write an HTML report here.")] = None,
) -> int | None:
    if out is not None:
        note(f"episodes: {result.save(out)}")
    if report is not None:
        note(f"report: {result.report(report)}")
    if all(each.reward is None or each.reward.value is None for each in result.episodes):
        from gradus.evidence.evaluation import first_failure

        note("every episode failed or could not be graded; the first says why: " + first_failure(result.episodes))
        return 1
    if out is not None:
        return next_command("show", out)
    return next_command("eval", env, *same(*_SAME), "--out", "episodes.jsonl", "--report", report or "report.html")


@command("eval", _after_evaluate, shown=True)
def evaluate(
    policies: Annotated[_Policies, _POLICIES, Line(kind=list[str], item=str)],
    against: Any = (),
    *,
    env: Environment,
    conditions: Annotated[Sequence[str] | None, _CONDITIONS, Line(kind=list[str], default=["first"], item=str)] = None,
    graders: Annotated[Sequence[str] | None, _GRADERS, Line(kind=list[str], item=str)] = None,
    rewards: Rewards = (),
    episodes: Annotated[int | None, typer.Option("--episodes", "-n", help="At most so many per condition.")] = None,
    seed: Seed = 0,
    pairs: Annotated[Sequence[tuple[str, str] | str] | None, _PAIRS, Line(kind=list[str], item=str)] = None,
    power: Annotated[float | None, typer.Option(help="Say how many episodes a difference of this size needs.")] = None,
    samples: Annotated[int, typer.Option(help="Episodes of each task.")] = 1,
    pass_k: Annotated[Sequence[int], _PASS_K, Line(kind=list[str], item=int)] = (),
    until_decided: Annotated[bool, typer.Option("--until-decided", help="Stop once every pair is decided.")] = False,
    temperature: Temperature = None,
    max_new_tokens: MaxNewTokens = None,
) -> Scores:
    """Roll out policies on the same seeds and compare them with intervals. Exit code 1 if no episode could be graded.

    Policies are names as on the command line (``gold``, ``remote:MODEL``, a model or run folder), runs, policy objects, several of them, or
    a mapping from the name to show; names must differ. ``all`` are the scripted ones. ``against``: more policies.

    >>> import gradus
    >>> scores = gradus.evaluate(["gold", "random"], env="arithmetic", episodes=8, conditions=["held-out"])
    >>> scores.to_json()["conditions"]["held-out"]["policies"]["gold"]["true_reward"]["mean"]
    1.0
    """
    from gradus.runs.recipe.promises import parse_pair
    from gradus.runs.stages.evaluation import evaluate_policies

    chosen = _named(policies, against)
    graders = as_list(graders) if graders else None
    require_rewards_used(rewards, graders or ())
    spec = load_environment(env, rewards=rewards)
    made = _made(chosen, spec, temperature=temperature, max_new_tokens=max_new_tokens)
    if conditions:
        conditions = as_list(conditions)
        first = [next(iter(spec.conditions))]
        conditions = None if conditions == ["all"] else first if conditions == ["first"] else conditions
    if pairs:
        pairs = [parse_pair(each, list(made)) if isinstance(each, str) else each for each in as_list(pairs)]
    result = evaluate_policies(
        spec,
        made,
        conditions=conditions or None,
        graders=graders,
        episodes=episodes,
        seed=seed,
        pairs=pairs or None,
        power=power,
        samples=samples,
        pass_k=pass_k,
        until_decided=until_decided,
    )
    return Scores(spec, result)


def _made(chosen: Mapping[str, Any], spec: EnvironmentSpec, **sampling: Any) -> dict[str, Policy]:
    """The policies, with the scripted ones in the place of ``all``; models are loaded one at a time."""
    from gradus.policies.local.shelf import ModelShelf
    from gradus.runs.policies import make_policy, scripted_names

    named = _named(
        *(
            scripted_names(spec) if isinstance(each, str) and each == "all" else {name: each}
            for name, each in chosen.items()
        )
    )
    shelf = ModelShelf()
    made: dict[str, Policy] = {}
    for name, each in named.items():
        if not isinstance(each, str | Path | Run):
            made[name] = each
        else:
            made[name] = make_policy(spec, os.fspath(each), shelf=shelf, **sampling)
    return made


def _named(*given: Any) -> dict[str, Any]:
    """Name -> policy, of all that was given. What is given twice counts once; raises ConfigError if two policies have one name."""
    named: dict[str, Any] = {}
    for name, policy in (each for policies in given for each in _labeled(policies)):
        if name in named and named[name] != policy:
            raise ConfigError(f"two policies are called {name!r}; give each a name of its own, as {{'name': policy}}")
        named[name] = policy
    return named


def _labeled(policies: Any) -> list[tuple[str, Any]]:
    if isinstance(policies, Mapping):
        return list(cast(Mapping[str, Any], policies).items())
    single = not isinstance(policies, Iterable) or isinstance(policies, str) or hasattr(policies, "start")
    return [(_label(each), each) for each in ([policies] if single else cast(Iterable[Any], policies))]


def _label(policy: Any) -> str:
    if isinstance(policy, Run):
        return policy.folder.name
    return str(policy.name) if hasattr(policy, "start") else str(policy)


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """Runs on the tasks that all were evaluated on: each minus those before it. ``settings``: key -> name -> value, where they differ."""

    document: Mapping[str, Any]
    runs: Mapping[str, Path]
    settings: Mapping[str, Mapping[str, str]]

    def tables(self) -> Sequence[Any]:
        """The verdict, one table a condition, and the settings that differ."""
        from rich.text import Text

        from gradus.evidence.reports import show_results

        lines = [
            f"  {key}: {', '.join(f'{name} {value}' for name, value in values.items())}"
            for key, values in self.settings.items()
        ]
        return [
            show_results(self.document, every=verbose()),
            "",
            Text("\n".join(["settings that differ:", *(lines or ["  none"])])),
        ]

    def to_json(self) -> dict[str, Any]:
        """The document, in the form of results.json, with the settings."""
        return {**self.document, "settings": {key: dict(each) for key, each in self.settings.items()}}


def _after_compare(result: Comparison) -> None:
    next_command("report", list(result.runs.values())[-1])


@command("compare", _after_compare, shown=True)
def compare(
    *runs: Annotated[str | Path | Run, _RUNS, Line(kind=list[str])],
    policy: Annotated[
        str | None,
        typer.Option("--policy", "-p", help="Policy of each run; the best trained one that all have without it."),
    ] = None,
) -> Comparison:
    """Compare finished runs, paired over their tasks, and list the settings that differ.

    Nothing is rolled out. Runs of several training seeds are paired over those too, if they have the same ones. Runs whose rewards
    are composed differently, or that were evaluated on other tasks, are refused. p-values are corrected for the number of pairs and conditions.

    >>> import gradus
    >>> gradus.compare("a=runs/a", "b=runs/b")        # doctest: +SKIP
    """
    from gradus.runs.comparison import compare_runs, differing_settings, named_runs

    named = named_runs([str(each.folder) if isinstance(each, Run) else str(each) for each in runs])
    settings = {key: dict(zip(named, values, strict=True)) for key, values in differing_settings(named)}
    return Comparison(dict(compare_runs(named, policy=policy)), named, settings)
