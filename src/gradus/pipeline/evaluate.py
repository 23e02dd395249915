"""Evaluations with their progress shown, their report, and the comparison of two runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradus.core import ConfigError, EnvironmentSpec, Episode, Policy
from gradus.core.files import read_json
from gradus.evaluation import Evaluation, compare, evaluate
from gradus.pipeline.progress import progress_bar
from gradus.rollouts import read_episodes

__all__ = ["compare_runs", "evaluate_policies", "parse_pair", "scripted_names", "write_evaluation_report"]


def evaluate_policies(spec: EnvironmentSpec, policies: Mapping[str, Policy], **options: Any) -> Evaluation:
    """:func:`gradus.evaluation.evaluate` with a progress bar."""
    with progress_bar("evaluate", 0, "episodes") as advance:
        label = ""

        def tell(name: str, done: int, total: int) -> None:
            nonlocal label
            if name != label:
                label = name
            advance(done, total, label)

        return evaluate(spec, policies, progress=tell, **options)


def scripted_names(spec: EnvironmentSpec) -> list[str]:
    """Policies of the environment that need no argument and no server."""
    names: list[str] = []
    for name in spec.policies:
        try:
            spec.policy(name)
        except ConfigError:  # it wants an argument, as constant:ACTION does
            continue
        names.append(name)
    return names


def parse_pair(text: str, names: Sequence[str]) -> tuple[str, str]:
    """Split ``a-b`` where names may hold hyphens themselves."""
    for left in names:
        for right in names:
            if text.replace(" ", "") == f"{left}-{right}".replace(" ", ""):
                return left, right
    raise ConfigError(f"--pairs takes two of the played policies as a-b, got {text!r}; played are {', '.join(names)}")


def write_evaluation_report(spec: EnvironmentSpec, evaluation: Evaluation, path: Path) -> Path:
    """The HTML report of an evaluation that belongs to no run."""
    from gradus.pipeline.report_episodes import shown_groups
    from gradus.reports import environment_words, shown_episodes, write_eval_report

    shown = shown_episodes(spec, shown_groups(evaluation.episodes, 3))
    return write_eval_report(evaluation.to_json(), shown, path, about=environment_words(spec))


def compare_runs(folders: Sequence[Path], policy: str) -> dict[str, Any]:
    """The document that compares one policy of each run on the episodes that both evaluations rolled out; the last minus the first.

    Raises ConfigError if they share no condition, environment or grader.
    """
    from gradus.pipeline.recipe import load_recipe  # it brings torch, which nothing else here needs

    documents = [read_json(folder / "results.json") for folder in folders]
    for key in ("environment", "grader", "seed"):
        values = [document.get(key) for document in documents]
        if len(set(values)) > 1:
            raise ConfigError(
                f"the runs differ in {key} ({' and '.join(map(str, values))}), so their episodes are not paired; "
                "evaluate both with gradus eval"
            )
    spec = load_recipe(None, path=folders[0] / "recipe.toml").spec()
    labels = [folder.name for folder in folders]
    labels = labels if len(set(labels)) == len(labels) else [str(folder) for folder in folders]
    stored = [read_episodes(folder / "eval" / "episodes.jsonl").episodes for folder in folders]
    by_condition = [_by_condition(episodes, policy) for episodes in stored]
    shared = [condition for condition in by_condition[0] if all(condition in each for each in by_condition)]
    if not shared:
        raise ConfigError(f"the runs share no condition on which {policy!r} was evaluated; choose another policy")
    played = {
        condition: {label: each[condition] for label, each in zip(labels, by_condition, strict=True)}
        for condition in shared
    }
    return dict(compare(spec, played, graders=[documents[0]["grader"]], graded=True))


def _by_condition(episodes: Sequence[Episode], policy: str) -> dict[str, list[Episode]]:
    sorted_out: dict[str, list[Episode]] = {}
    for episode in episodes:
        if episode.policy == policy:
            sorted_out.setdefault(episode.task.condition, []).append(episode)
    return sorted_out
