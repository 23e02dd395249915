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
    from gradus.core.documents import Results
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
    if all(episode.reward is None or episode.reward.value is None for episode in result.episodes):
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

    names = _by_label(policies, against)
    graders = as_list(graders) if graders else None
    require_rewards_used(rewards, graders or ())
    spec = load_environment(env, rewards=rewards)
    evaluated = _policies_of(names, spec, temperature=temperature, max_new_tokens=max_new_tokens)
    if pairs:
        pairs = [parse_pair(pair, list(evaluated)) if isinstance(pair, str) else pair for pair in as_list(pairs)]
    result = evaluate_policies(
        spec,
        evaluated,
        conditions=_conditions(spec, conditions),
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


def _conditions(spec: EnvironmentSpec, names: Sequence[str] | None) -> list[str] | None:
    """The conditions of an evaluation; None for all."""
    words = as_list(names or ["all"])
    if words == ["first"]:
        return [next(iter(spec.conditions))]
    return None if words == ["all"] else words


def _policies_of(names: Mapping[str, Any], spec: EnvironmentSpec, **sampling: Any) -> dict[str, Policy]:
    """The policies, with the scripted ones in the place of ``all``; models are loaded one at a time."""
    from gradus.policies.local.shelf import ModelShelf
    from gradus.runs.policies import make_policy, scripted_names

    parts = [scripted_names(spec) if policy == "all" else {name: policy} for name, policy in names.items()]
    shelf = ModelShelf()
    policies: dict[str, Policy] = {}
    for name, policy in _by_label(*parts).items():
        if isinstance(policy, str | Path | Run):
            policy = make_policy(spec, os.fspath(policy), shelf=shelf, **sampling)
        policies[name] = policy
    return policies


def _by_label(*parts: Any) -> dict[str, Any]:
    """Name -> policy. What stands twice counts once; raises ConfigError if two policies have one name."""
    policies: dict[str, Any] = {}
    for part in parts:
        for name, policy in _labeled(part):
            if name in policies and policies[name] != policy:
                raise ConfigError(
                    f"two policies are called {name!r}; give each a name of its own, as {{'name': policy}}"
                )
            policies[name] = policy
    return policies


def _labeled(policies: Any) -> list[tuple[str, Any]]:
    if isinstance(policies, Mapping):
        return list(cast(Mapping[str, Any], policies).items())
    is_one = isinstance(policies, str) or hasattr(policies, "start") or not isinstance(policies, Iterable)
    several: Iterable[Any] = [policies] if is_one else cast(Iterable[Any], policies)
    return [(_label(policy), policy) for policy in several]


def _label(policy: Any) -> str:
    if isinstance(policy, Run):
        return policy.folder.name
    return str(policy.name) if hasattr(policy, "start") else str(policy)


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """Runs on the tasks that all were evaluated on: each minus those before it. ``settings``: key -> name -> value, where they differ."""

    document: Results
    runs: Mapping[str, Path]
    settings: Mapping[str, Mapping[str, str]]

    def tables(self) -> Sequence[Any]:
        """The verdict, one table a condition, and the settings that differ."""
        from rich.text import Text

        from gradus.evidence.reports import show_results

        lines: list[str] = []
        for key, values in self.settings.items():
            lines.append(f"  {key}: {', '.join(f'{name} {value}' for name, value in values.items())}")
        return [
            show_results(self.document, every=verbose()),
            "",
            Text("\n".join(["settings that differ:", *(lines or ["  none"])])),
        ]

    def to_json(self) -> dict[str, Any]:
        """The document, in the form of results.json, with the settings."""
        return {**self.document, "settings": {key: dict(values) for key, values in self.settings.items()}}


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

    folders = named_runs([str(run.folder) if isinstance(run, Run) else str(run) for run in runs])
    settings = {key: dict(zip(folders, values, strict=True)) for key, values in differing_settings(folders)}
    return Comparison(compare_runs(folders, policy=policy), folders, settings)
