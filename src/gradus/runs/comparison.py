"""Finished runs, held against each other on the tasks that all of them were evaluated on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradus import environments
from gradus.core import Condition, ConfigError, EnvironmentSpec, Episode, Grader
from gradus.core.documents import MANIFEST, ManifestDocument, Results, read_document
from gradus.core.files import read_toml
from gradus.core.printing import go_around
from gradus.evidence.reports.run_files import evaluated_seeds, seed_folders
from gradus.evidence.stage_files import changed_since
from gradus.rollouts import read_episodes
from gradus.runs.manifest import CHECKPOINTS

STUDENTS = ("grpo", "distill", "sft", "base")
_GRADES = ("rewards.", "weights.", "reward_messages.")  # keys of a recipe
OfRuns = Mapping[str, Mapping[int, Sequence[Episode]]]  # run -> training seed -> episodes


def named_runs(given: Iterable[str]) -> dict[str, Path]:
    """Finished runs, two at least, as ``name=path`` or as a path whose last part is the name."""
    named: dict[str, Path] = {}
    for text in given:
        name, path = "", text
        if "=" in text and not Path(text).exists():  # a folder may have = in its name
            name, _, path = text.partition("=")
        folder = Path(path)
        name = name or folder.resolve().name
        if name in named or " - " in name:
            raise ConfigError(
                f"runs have different names without ' - ', got {name!r} for {text}; give name=path for each"
            )
        named[name] = folder
    if len(named) < 2:
        raise ConfigError(f"expected at least two runs to compare, got {len(named)}; give name=path for each")
    for folder in named.values():
        for file in ("results.json", "recipe.toml"):
            if not (folder / file).is_file():
                raise ConfigError(f"{folder} holds no {file}, which a finished run has; gradus run writes one")
    return named


def compare_runs(runs: Mapping[str, Path], *, policy: str | None = None) -> Results:
    """The document of an evaluation whose policies are the runs, paired over tasks, and over training seeds if runs have the same ones.

    ``policy``: the policy of each run; if None the best trained one that all of them were evaluated with. p-values are
    corrected (Holm) over conditions and pairs. ``one_checkpoint`` names the runs of one training seed, whose own seed no interval takes
    into account. ``quick_runs`` names those at toy size.
    Raises ConfigError unless the runs share the environment, the grading, a policy and the tasks.
    """
    from gradus.evidence.evaluation import compare_seeds

    stored = {name: read_document(folder / "results.json", Results) for name, folder in runs.items()}
    environment = _same({name: each["environment"] for name, each in stored.items()}, "environment")
    grader = _same({name: each["grader"] for name, each in stored.items()}, "grader")
    _graded_alike(runs, environment)
    shared = set.intersection(*(_policies(each) for each in stored.values()))
    chosen = policy or next((name for name in STUDENTS if name in shared), None)
    if chosen is None or chosen not in shared:
        raise ConfigError(
            f"policy {chosen!r} was not evaluated in all runs; they share {', '.join(sorted(shared)) or 'none'}"
        )
    files = {name: _episodes(folder, stored[name], chosen) for name, folder in runs.items()}
    rollouts = _by_condition(files, list(next(iter(stored.values()))["conditions"]))
    spec = _spec_of(next(iter(stored.values())))
    several = [set(of_seeds) for of_seeds in files.values() if len(of_seeds) > 1]
    seeds = sorted(set[int]().union(*several))
    document = compare_seeds(spec, rollouts, seeds=seeds, graders=[grader], checkpoint=chosen, correct_pairs=True)
    single = [name for name, of_seeds in files.items() if len(of_seeds) == 1]
    if single and CHECKPOINTS.get(chosen, ("model",))[0] != "model":
        document["one_checkpoint"] = single
    if any(each != several[0] for each in several):
        document["fewest_seeds"] = min(map(len, several))
    if quick := [name for name, each in stored.items() if each.get("quick")]:
        document["quick_runs"] = quick
    return document


def _by_condition(files: OfRuns, conditions: Iterable[str]) -> dict[str, OfRuns]:
    """The episodes by condition, without those that not all runs have. Raises ConfigError if runs have other tasks in one, or share none."""
    rollouts: dict[str, OfRuns] = {}
    for condition in conditions:
        of_runs = {
            name: {seed: [each for each in one if each.task.condition == condition] for seed, one in of_seeds.items()}
            for name, of_seeds in files.items()
        }
        tasks = {
            name: {(each.task.seed, each.task.id) for one in of_seeds.values() for each in one}
            for name, of_seeds in of_runs.items()
        }
        if not all(tasks.values()):
            continue
        if len(set(map(frozenset, tasks.values()))) > 1:
            counts = ", ".join(f"{name} has {len(each)}" for name, each in tasks.items())
            raise ConfigError(
                f"the runs were not evaluated on the same tasks of {condition} ({counts}); evaluate them on one data set, with one "
                "number of episodes"
            )
        rollouts[condition] = of_runs
    if not rollouts:
        raise ConfigError("the runs share no condition; evaluate them on the same ones")
    return rollouts


def _spec_of(results: Results) -> EnvironmentSpec:
    """The environment of a run, for its clusters and curves: a registered one. No file of anybody is imported.

    Of rows, and of code of one's own, the results say all that a comparison needs. Raises ConfigError if they have clusters, which they do not say.
    """
    name, grader, conditions = results["environment"], results["grader"], results["conditions"]
    figures = [each for condition in conditions.values() for each in condition["policies"].values()]
    weights = {component: 1.0 for each in figures for component in each["components"]}
    graders = {grader: Grader(name=grader, compute=_not_called, weights=weights)}
    try:
        spec = environments.load_stored(name)
        return spec if grader in spec.graders else replace(spec, graders={**spec.graders, **graders})
    except ConfigError:
        if any(each["clustered"] for each in conditions.values()):
            raise
    return EnvironmentSpec(
        name=name,
        summary="",
        make=_not_called,
        train_task=_not_called,
        max_turns=1,
        graders=graders,
        conditions={
            each: Condition(name=each, seeds=(), summary=condition["summary"]) for each, condition in conditions.items()
        },
        true_reward_name=results["true_reward_name"],
    )


def _not_called(*_: Any) -> Any:
    raise NotImplementedError("a comparison reads stored episodes, and makes and grades none")


def _policies(results: Results) -> set[str]:
    return {name for condition in results["conditions"].values() for name in condition["policies"]}


def _graded_alike(runs: Mapping[str, Path], environment: str) -> None:
    """Raise ConfigError if runs were graded in different ways: graders of one name then measure different things."""
    code = {name: _graded_by(folder) for name, folder in runs.items()}
    named = set.intersection(*map(set, code.values()))
    rows = [(key, [each[key] for each in code.values()]) for key in sorted(named)]
    rows += [(key, values) for key, values in differing_settings(runs) if f"{key}.".startswith(_GRADES)]
    differing = [(key, values) for key, values in rows if len(set(values)) > 1]
    if differing:
        told = "; ".join(
            f"{key}: {', '.join(f'{name} {value}' for name, value in zip(runs, values, strict=True))}"
            for key, values in differing
        )
        folders = ", ".join(repr(str(each)) for each in runs.values())
        raise ConfigError(
            f"the runs were not graded in one way ({told}); only what was measured in one way can be compared. Evaluate them "
            f"with one grader: gradus.evaluate([{folders}], env={environment!r}, rewards=[...]), or gradus eval with --grader"
        )


def _graded_by(run: Path) -> dict[str, str]:
    """The beginnings of the digests of the code of one's own that graded a run's evaluation."""
    places = [run, *seed_folders(run).values()]
    folder = next((place for place in places if (place / MANIFEST).is_file()), None)
    if folder is None:
        return {}
    stages = read_document(folder / MANIFEST, ManifestDocument)["stages"]
    code = stages["eval"]["code"] if "eval" in stages else {}
    return {label: digest[:8] for label, digest in code.items()}


def differing_settings(runs: Mapping[str, Path]) -> list[tuple[str, list[str]]]:
    """Recipe keys whose values differ, each with one value per run: the default if a recipe leaves it out, a dash without one."""
    from gradus.runs.recipe.record import Recipe  # it brings torch

    defaults = dict(_flattened(Recipe(environment="").model_dump(mode="json", exclude_none=True)))
    flat = [{**defaults, **dict(_flattened(read_toml(folder / "recipe.toml")))} for folder in runs.values()]
    keys = dict.fromkeys(key for each in flat for key in each)
    rows = [(key, [each.get(key, "–") for each in flat]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def _episodes(folder: Path, results: Results, policy: str) -> dict[int, Sequence[Episode]]:
    """A policy's episodes of the evaluation by training seed; a run of one seed has them under 0."""
    if seeds := evaluated_seeds(seed_folders(folder), results):
        return {int(name.removeprefix("seed ")): _stored(each, policy) for name, each in seeds.items()}
    return {0: _stored(folder, policy)}


def _stored(folder: Path, policy: str) -> Sequence[Episode]:
    path = folder / "eval" / "episodes.jsonl.gz"
    stored = read_episodes(path)
    for problem in (*stored.problems, *changed_since(path)):
        go_around(problem, "the other episodes are compared")
    return [each for each in stored.episodes if each.policy == policy]


def _same(values: Mapping[str, Any], what: str) -> str:
    if len(set(values.values())) > 1:
        raise ConfigError(
            f"the runs do not have the same {what} ({', '.join(f'{name}: {value}' for name, value in values.items())}); "
            "only what was measured in one way can be compared"
        )
    return str(next(iter(values.values())))


def _flattened(value: Mapping[str, Any], way: str = "") -> list[tuple[str, str]]:
    flat: list[tuple[str, str]] = []
    for key, each in value.items():
        path = f"{way}.{key}" if way else key
        flat += _flattened(each, path) if isinstance(each, dict) else [(path, str(each))]
    return flat
