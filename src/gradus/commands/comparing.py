"""Policies compared by episodes on the same seeds, and runs by what they stored."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack, cast

from cyclopts import Parameter

from gradus.commands.entries import command
from gradus.commands.environments import graded_environment
from gradus.commands.options import (
    AT_LEAST_ONE,
    COMMAS,
    NUMBERS,
    WORD,
    Data,
    Environment,
    MaxNewTokens,
    Rewards,
    Seed,
    Temperature,
    as_list,
    known_options,
    writes,
)
from gradus.commands.output import CommandCall, Shown, next_command, note
from gradus.commands.training import Run
from gradus.core import ConfigError, EnvironmentSpec, Episode, Policy
from gradus.core.files import check_file_can_be_written
from gradus.core.findings import EXIT_CODES
from gradus.core.printing import verbose
from gradus.core.values import Json, JsonDict

if TYPE_CHECKING:
    from gradus.core.documents import Results
    from gradus.evidence.evaluation import Evaluation

# What makes an evaluation the one that it is.
_SAME = ("policies", "rewards", "graders", "conditions", "episodes", "seed", "pairs", "power", "samples", "pass_k", "until_decided",
         "temperature", "max_new_tokens")  # fmt: skip
_Policies = str | Path | Run | Policy | Sequence[Any] | Json


class EvaluationOptions(TypedDict, total=False):
    """How policies are evaluated; each is optional."""

    conditions: Annotated[
        Sequence[str] | None,
        COMMAS,
        Parameter(
            name=("--condition", "-c"),
            metavar="NAME",
            help="Conditions, by commas; `all`, or `first`, which is the default (repeatable).",
        ),
    ]
    graders: Annotated[
        Sequence[str] | None,
        COMMAS,
        Parameter(
            name=("--grader", "-g"),
            metavar="NAME",
            help="Graders, by commas; the first is the main one (repeatable).",
        ),
    ]
    rewards: Rewards
    episodes: Annotated[int | None, AT_LEAST_ONE, Parameter(alias="-n", help="At most so many per condition.")]
    seed: Seed
    pairs: Annotated[
        Sequence[tuple[str, str] | str] | None,
        COMMAS,
        Parameter(
            name="--pairs", metavar="A-B", help="Pairs to compare, by commas; every pair otherwise (repeatable)."
        ),
    ]
    power: Annotated[float | None, Parameter(help="Say how many episodes a difference of this size needs.")]
    samples: Annotated[int, AT_LEAST_ONE, Parameter(help="Episodes of each task; 1 without it.")]
    pass_k: Annotated[
        Sequence[int],
        NUMBERS,
        Parameter(
            name="--pass-k",
            metavar="K",
            help="Show the chance that one of K samples passes, as pass@K; several K by commas (repeatable).",
        ),
    ]
    until_decided: Annotated[bool, Parameter(help="Stop once every pair is decided.")]
    temperature: Temperature
    max_new_tokens: MaxNewTokens


@dataclass(frozen=True, repr=False)
class Scores(Shown):
    """Policies on conditions, with intervals and paired differences. ``result`` holds the episodes."""

    spec: EnvironmentSpec
    result: Evaluation

    def to_json(self) -> JsonDict:
        """results.json."""
        return dict(self.result.to_json())

    def tables(self) -> Sequence[Any]:
        """The verdict and three figures a policy; with ``--verbose`` every figure, component and pair."""
        from gradus.evidence.reports import power_lines, show_results

        results = self.result.to_json()
        return [show_results(results, every=verbose()), "", *power_lines(results)]

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


def evaluate(
    policies: _Policies,
    against: Any = (),
    *,
    env: Data,
    **options: Unpack[EvaluationOptions],
) -> Scores:
    """Roll out policies on the same seeds and compare them with intervals.

    Policies are names as on the command line (``gold``, ``remote:MODEL``, a model or run folder), runs, policy objects, several of them, or
    a mapping from the name to show; names must differ. ``all`` are the scripted ones. ``against``: more policies. ``options``:
    those of ``gradus eval``, as ``conditions`` (all without it), ``graders``, ``rewards``, ``pairs``, ``pass_k``, ``until_decided``.

    >>> import gradus
    >>> scores = gradus.evaluate(["gold", "random"], env="arithmetic", episodes=8, conditions=["held-out"])
    >>> scores.to_json()["conditions"]["held-out"]["policies"]["gold"]["true_reward"]["mean"]
    1.0
    """
    from gradus.runs.recipe.promises import parse_pair
    from gradus.runs.stages.evaluation import evaluate_policies

    known_options(options, EvaluationOptions, "gradus.evaluate", also=("policies", "against", "env"))
    graders, rewards, pairs = options.get("graders"), options.get("rewards", ()), options.get("pairs")
    graders = as_list(graders) if graders else None
    spec, _ = graded_environment(env, rewards, graders or ())
    sampling = {"temperature": options.get("temperature"), "max_new_tokens": options.get("max_new_tokens")}
    evaluated = _policies_of([policies, against], spec, **sampling)
    if pairs:
        pairs = [parse_pair(pair, list(evaluated)) if isinstance(pair, str) else pair for pair in as_list(pairs)]
    result = evaluate_policies(
        spec,
        evaluated,
        conditions=_conditions(spec, options.get("conditions")),
        graders=graders,
        episodes=options.get("episodes"),
        seed=options.get("seed", 0),
        pairs=pairs or None,
        power=options.get("power"),
        samples=options.get("samples", 1),
        pass_k=options.get("pass_k", ()),
        until_decided=options.get("until_decided", False),
    )
    return Scores(spec, result)


def _after_evaluate(result: Scores, call: CommandCall) -> int | None:
    if all(episode.reward_value is None for episode in result.episodes):
        from gradus.evidence.evaluation import first_failure

        note("every episode failed or could not be graded; the first says why: " + first_failure(result.episodes))
        return EXIT_CODES["open"]
    out, report = call["out"], call["report"]
    if out is not None:
        return next_command("show", out)
    again = call.same(*_SAME)
    return next_command("eval", call["env"], *again, "--out", "episodes.jsonl", "--report", report or "report.html")


@command("eval", _after_evaluate, shown=True)
def evaluate_command(
    env: Environment,
    *,
    policies: Annotated[
        Sequence[str],
        COMMAS,
        Parameter(
            name=("--policy", "-p", "--model"),
            metavar="NAME",
            help="Policies or models, separated by commas; `all` for the scripted ones (repeatable).",
        ),
    ],
    out: Annotated[Path | None, writes("Write the episodes (JSON lines) here.")] = None,
    report: Annotated[Path | None, Parameter(help="Write an HTML report here.")] = None,
    **options: Unpack[EvaluationOptions],
) -> Scores:
    """Compare policies or models on the same tasks. Each difference has its interval. Exit code 3 if no episode could be graded."""
    for path in (out, report):  # before the work of hours
        if path is not None:
            check_file_can_be_written(path)
    is_first = "conditions" not in options
    options.setdefault("conditions", ["first"])
    scores = evaluate(policies, env=env, **options)
    if is_first and Path(str(env)).is_file() and scores.spec.data_set is not None:
        condition, asked = next(iter(scores.spec.conditions.items()))
        all_rows = f"'{env}?test={env}' --condition held-out"
        note(f"{condition}: {len(asked.seeds)} rows that a run does not train on; all rows of the file are {all_rows}")
    if out is not None:
        note(f"episodes: {scores.save(out)}")
    if report is not None:
        note(f"report: {scores.report(report)}")
    return scores


def _conditions(spec: EnvironmentSpec, names: Sequence[str] | None) -> list[str] | None:
    """The conditions of an evaluation; None for all."""
    words = as_list(names or ["all"])
    if words == ["first"]:
        return [next(iter(spec.conditions))]
    return None if words == ["all"] else words


def _policies_of(parts: Sequence[Any], spec: EnvironmentSpec, **sampling: Any) -> dict[str, Policy]:
    """The policies by name, with the scripted ones in the place of ``all``; models are loaded one at a time.

    What stands twice counts once; raises ConfigError if two policies have one name.
    """
    from gradus.policies.local.shelf import ModelShelf
    from gradus.runs.policies import make_policy

    named: JsonDict = {}
    for part in parts:
        for name, policy in _labeled(part, spec):
            if named.setdefault(name, policy) != policy:
                raise ConfigError(
                    f"two policies are called {name!r}; give each a name of its own, as {{'name': policy}}"
                )
    shelf = ModelShelf()
    policies: dict[str, Policy] = {}
    for name, policy in named.items():
        if isinstance(policy, str | Path | Run):
            policy = make_policy(spec, os.fspath(policy), shelf=shelf, **sampling)
        policies[name] = policy
    return policies


def _labeled(policies: Any, spec: EnvironmentSpec) -> list[tuple[str, Any]]:
    """Pairs of a name and a policy: of a mapping, of several policies, or of one."""
    from gradus.runs.policies import scripted_names

    if isinstance(policies, Mapping):
        return list(cast(Json, policies).items())
    # A text is iterable too, and so may a policy object be.
    is_one = isinstance(policies, str) or hasattr(policies, "start") or not isinstance(policies, Iterable)
    several: Iterable[Any] = [policies] if is_one else cast(Iterable[Any], policies)
    pairs: list[tuple[str, Any]] = []
    for policy in several:
        pairs += [(name, name) for name in scripted_names(spec)] if policy == "all" else [(_label(policy), policy)]
    return pairs


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

        lines = ["settings that differ:"]
        for key, values in self.settings.items():
            lines.append(f"  {key}: {', '.join(f'{name} {value}' for name, value in values.items())}")
        if not self.settings:
            lines.append("  none")
        return [show_results(self.document, every=verbose()), "", Text("\n".join(lines))]

    def to_json(self) -> JsonDict:
        """The document, in the form of results.json, with the settings."""
        return {**self.document, "settings": {key: dict(values) for key, values in self.settings.items()}}


def _after_compare(result: Comparison, _: CommandCall) -> None:
    last = list(result.runs.values())[-1]
    if last.is_dir():
        next_command("report", last)


@command("compare", _after_compare, shown=True)
def compare(
    *runs: Annotated[
        str | Path | Run,
        WORD,
        Parameter(
            name="runs",
            help="Run folders, or files of results by task (lm-eval, inspect), as PATH or NAME=PATH; later ones minus earlier ones.",
        ),
    ],
    policy: Annotated[
        str | None,
        Parameter(
            alias="-p", metavar="NAME", help="Policy of each run; the best trained one that all have without it."
        ),
    ] = None,
) -> Comparison:
    """Compare finished runs, paired over their tasks. The settings that differ are listed.

    Nothing is rolled out. Runs of several training seeds are paired over those too, if they have the same ones. Runs whose rewards
    are composed differently, or that were evaluated on other tasks, are refused. p-values are corrected for the number of pairs and conditions.

    >>> import gradus
    >>> gradus.compare("a=runs/a", "b=runs/b")        # doctest: +SKIP
    """
    from gradus.runs.comparison import compare_files, compare_runs, differing_settings, named_paths, named_runs

    words = [str(run.folder) if isinstance(run, Run) else str(run) for run in runs]
    folders = named_paths(words)
    if all(path.is_file() for path in folders.values()):
        return Comparison(compare_files(folders), folders, {})
    folders = named_runs(words)
    return Comparison(compare_runs(folders, policy=policy), folders, differing_settings(folders))
