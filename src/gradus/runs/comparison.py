"""Finished runs, held against each other on the tasks that all of them were evaluated on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from gradus import environments
from gradus.core import Condition, ConfigError, EnvironmentSpec, Episode, Grader
from gradus.core.documents import MANIFEST, ManifestDocument, Results, read_document
from gradus.core.files import read_toml
from gradus.core.printing import go_around
from gradus.core.values import flattened
from gradus.evidence.reports.run_files import evaluated_seeds, seed_folders
from gradus.evidence.reports.verdict import STUDENTS
from gradus.evidence.stage_files import changed_since
from gradus.rollouts import read_episodes
from gradus.runs.manifest import UNTRAINED
from gradus.runs.recipe.record import Recipe
from gradus.runs.task_results import TASKS, task_episodes

_COMPARED = (*STUDENTS, "base")  # the first that all runs have is compared
_GRADING = ("rewards.", "weights.", "reward_messages.")  # keys of a recipe
OfRuns = Mapping[str, Mapping[int, Sequence[Episode]]]  # run -> training seed -> episodes


def named_paths(words: Iterable[str]) -> dict[str, Path]:
    """Runs or files, two at least, as ``name=path`` or as a path whose last part is the name."""
    runs: dict[str, Path] = {}
    for text in words:
        name, path = "", text
        if "=" in text and not Path(text).exists():  # a folder may have = in its name
            name, _, path = text.partition("=")
        folder = Path(path)
        name = name or folder.resolve().name
        if name in runs or " - " in name:
            raise ConfigError(
                f"runs have different names without ' - ', got {name!r} for {text}; give name=path for each"
            )
        runs[name] = folder
    if len(runs) < 2:
        raise ConfigError(f"expected at least two runs to compare, got {len(runs)}; give name=path for each")
    return runs


def named_runs(words: Iterable[str]) -> dict[str, Path]:
    """Finished runs, as :func:`named_paths`. Raises ConfigError for a folder without what such a run has."""
    runs = named_paths(words)
    for folder in runs.values():
        for file in ("results.json", "recipe.toml"):
            if not (folder / file).is_file():
                raise ConfigError(f"{folder} holds no {file}, which a finished run has; gradus run writes one")
    return runs


def compare_runs(runs: Mapping[str, Path], *, policy: str | Mapping[str, str] | None = None) -> Results:
    """The document of an evaluation whose policies are the runs, paired over tasks, and over training seeds if runs have the same ones.

    ``policy``: the policy of all runs, or of each by its name; if None the best trained one that all of them were evaluated with. p-values are
    corrected (Holm) over conditions and pairs. ``one_checkpoint`` names the runs of one training seed, whose own seed no interval takes
    into account. ``quick_runs`` names those at toy size.
    Raises ConfigError unless the runs share the environment, the grading, a policy and the tasks.
    """
    stored = {name: read_document(folder / "results.json", Results) for name, folder in runs.items()}
    first = next(iter(stored.values()))
    for what in ("environment", "grader"):
        _require_one(what, {name: str(results[what]) for name, results in stored.items()})
    _require_one_grading(runs, first["environment"])
    if not isinstance(policy, Mapping):
        policy = dict.fromkeys(runs, _shared_policy(stored.values(), policy))
    files = {name: _episodes(folder, stored[name], policy[name]) for name, folder in runs.items()}
    document = _paired(_spec_of(first), files, first["conditions"])
    document["checkpoint"] = "/".join(dict.fromkeys(policy.values()))
    single = [name for name in runs if policy[name] not in UNTRAINED and len(files[name]) == 1]
    if single:
        # An interval over tasks says nothing about how another training seed would have come out.
        document["one_checkpoint"] = single
    several = [set(of_seeds) for of_seeds in files.values() if len(of_seeds) > 1]
    # Runs of other seeds are not paired over them, and the list of all seeds is that of no run.
    if any(seeds != several[0] for seeds in several):
        document["fewest_seeds"] = min(map(len, several))
    quick = [name for name, results in stored.items() if results.get("quick")]
    if quick:
        document["quick_runs"] = quick
    return document


def compare_files(files: Mapping[str, Path]) -> Results:
    """The document of an evaluation whose policies are files of results by task. Raises ConfigError unless they have the same tasks."""
    spec = _spec_without_code(TASKS, {"score": 1.0}, {TASKS: "results by task"})
    return _paired(spec, {name: {0: task_episodes(path)} for name, path in files.items()}, [TASKS])


def _paired(spec: EnvironmentSpec, files: OfRuns, conditions: Iterable[str]) -> Results:
    """The comparison under the conditions that all have. Raises ConfigError if they have other tasks in one, or share none."""
    from gradus.evidence.evaluation import compare_seeds

    rollouts: dict[str, OfRuns] = {}
    for condition in conditions:
        selected = {name: _of_condition(of_seeds, condition) for name, of_seeds in files.items()}
        tasks = {name: _tasks(of_seeds) for name, of_seeds in selected.items()}
        first, *others = tasks.values()
        if not all(tasks.values()):  # a run was not evaluated under this condition
            continue
        if any(keys != first for keys in others):
            counts = ", ".join(f"{name} has {len(keys)}" for name, keys in tasks.items())
            remedy = "evaluate them on one data set, with one number of episodes"
            raise ConfigError(f"not all were evaluated on the same tasks of {condition} ({counts}); {remedy}")
        rollouts[condition] = selected
    if not rollouts:
        raise ConfigError("the runs share no condition; evaluate them on the same ones")
    # The one seed of a single checkpoint is no sample of seeds.
    seeds = {seed for of_seeds in files.values() for seed in of_seeds if len(of_seeds) > 1}
    return compare_seeds(spec, rollouts, seeds=sorted(seeds))


def _shared_policy(stored: Iterable[Results], name: str | None) -> str:
    """The policy that is compared. Raises ConfigError if not all runs were evaluated with it."""
    policies: list[set[str]] = []
    for results in stored:
        policies += [set(condition["policies"]) for condition in results["conditions"].values()]
    shared = policies[0].intersection(*policies)
    policy = name or next((student for student in _COMPARED if student in shared), "")
    if policy not in shared:
        names = ", ".join(sorted(shared)) or "none"
        raise ConfigError(f"policy {policy!r} was not evaluated in all runs; they share {names}")
    return policy


def _of_condition(of_seeds: Mapping[int, Sequence[Episode]], condition: str) -> dict[int, Sequence[Episode]]:
    """The episodes of one condition, by training seed."""
    selected: dict[int, Sequence[Episode]] = {}
    for seed, episodes in of_seeds.items():
        selected[seed] = [episode for episode in episodes if episode.task.condition == condition]
    return selected


def _tasks(of_seeds: Mapping[int, Sequence[Episode]]) -> set[tuple[int, str | None]]:
    """The tasks of all seeds."""
    return {(episode.task.seed, episode.task.id) for episodes in of_seeds.values() for episode in episodes}


def _spec_of(results: Results) -> EnvironmentSpec:
    """The environment of a run, for its clusters and curves: an installed one. No file of anybody is imported.

    Of rows, and of code of one's own, the results say all that a comparison needs. Raises ConfigError if they have clusters, which they do not say.
    """
    grader, conditions = results["grader"], results["conditions"]
    weights: dict[str, float] = {}
    for condition in conditions.values():
        for figures in condition["policies"].values():
            weights |= dict.fromkeys(figures["components"], 1.0)
    summaries = {name: condition["summary"] for name, condition in conditions.items()}
    bare = _spec_without_code(results["environment"], weights, summaries, grader)
    # Clusters and curves are functions of the environment, which no results hold.
    try:
        spec = environments.load_stored(results["environment"])
    except ConfigError:
        if any(condition["clustered"] for condition in conditions.values()):
            raise
        return replace(bare, true_reward_name=results["true_reward_name"])
    return replace(spec, graders={**bare.graders, **spec.graders}, default_grader=grader)


def _spec_without_code(
    name: str, weights: Mapping[str, float], conditions: Mapping[str, str], grader: str = "score"
) -> EnvironmentSpec:
    """An environment that is not rolled out. ``conditions``: their summaries by name."""

    def not_called(*_: Any) -> Any:
        raise AssertionError("a comparison reads stored episodes, and makes and grades none")

    return EnvironmentSpec(
        name=name,
        summary="",
        make=not_called,
        train_task=not_called,
        max_turns=1,
        graders={grader: Grader(name=grader, compute=not_called, weights=weights)},
        conditions={key: Condition(name=key, seeds=(), summary=summary) for key, summary in conditions.items()},
    )


def _require_one_grading(runs: Mapping[str, Path], environment: str) -> None:
    """Raise ConfigError if runs were graded in different ways: graders of one name then measure different things."""
    folders = ", ".join(repr(str(folder)) for folder in runs.values())
    again = f"gradus.evaluate([{folders}], env={environment!r}, rewards=[...]), or gradus eval with --grader"
    remedy = f"evaluate them with one grader: {again}"
    code = {name: _grading_code(folder) for name, folder in runs.items()}
    # A run without a digest, as of rows in memory, is no proof of another grading.
    first, *others = code.values()
    for label in sorted(set(first).intersection(*others)):
        _require_one(label, {name: digests[label] for name, digests in code.items()}, remedy)
    for key, values in differing_settings(runs).items():
        if f"{key}.".startswith(_GRADING):
            _require_one(key, values, remedy)


def _grading_code(run: Path) -> dict[str, str]:
    """The beginnings of the digests of the code of one's own that graded a run's evaluation."""
    if not (run / MANIFEST).is_file():
        return {}
    stages = read_document(run / MANIFEST, ManifestDocument)["stages"]
    code = stages["eval"]["code"] if "eval" in stages else {}
    return {label: digest[:8] for label, digest in code.items()}


def differing_settings(runs: Mapping[str, Path]) -> dict[str, dict[str, str]]:
    """Recipe keys whose values differ -> run -> value: the default if a recipe leaves it out, a dash without one."""
    defaults = flattened(Recipe(environment="").model_dump(mode="json", exclude_none=True))
    tables = {name: defaults | flattened(read_toml(folder / "recipe.toml")) for name, folder in runs.items()}
    differing: dict[str, dict[str, str]] = {}
    for key in dict.fromkeys(chain.from_iterable(tables.values())):
        values = {name: str(table.get(key, "–")) for name, table in tables.items()}
        if len(set(values.values())) > 1:
            differing[key] = values
    return differing


def _episodes(folder: Path, results: Results, policy: str) -> dict[int, Sequence[Episode]]:
    """A policy's episodes of the evaluation by training seed; a run of one seed has them under 0."""
    if seeds := evaluated_seeds(seed_folders(folder), results):
        return {int(name.removeprefix("seed ")): _stored(place, policy) for name, place in seeds.items()}
    return {0: _stored(folder, policy)}


def _stored(folder: Path, policy: str) -> Sequence[Episode]:
    """The episodes of a policy that the evaluation in a folder stored."""
    path = folder / "eval" / "episodes.jsonl.gz"
    stored = read_episodes(path)
    for problem in (*stored.problems, *changed_since(path)):
        go_around(problem, "the other episodes are compared")
    return [episode for episode in stored.episodes if episode.policy == policy]


def _require_one(what: str, values: Mapping[str, str], remedy: str = "compare runs that share it") -> None:
    """Raise ConfigError if runs differ in something that must be one: only what was measured in one way can be compared."""
    if len(set(values.values())) > 1:
        differing = ", ".join(f"{name} {value}" for name, value in values.items())
        raise ConfigError(f"the runs were not graded in one way ({what}: {differing}); {remedy}")
