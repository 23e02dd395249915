"""`gradus eval`, whole: names to policies, played, compared, shown and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradus import environments
from gradus.core import ConfigError, EnvironmentSpec, Episode, Policy
from gradus.core.files import write_json
from gradus.evaluation import Evaluation, evaluate
from gradus.pipeline.policies import make_policy
from gradus.pipeline.progress import progress_bar

__all__ = ["evaluate_command", "evaluate_policies", "parse_pair", "split_names"]


def split_names(text: str) -> list[str]:
    """Names separated by commas, in order, without repeats.

    >>> split_names("a, b,,a")
    ['a', 'b']
    """
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def evaluate_command(
    environment: str,
    *,
    policies: str,
    conditions: str = "main",
    graders: str | None = None,
    episodes: int | None = None,
    seed: int = 0,
    pairs: str | None = None,
    power: float | None = None,
    temperature: float | None = None,
    max_new_tokens: int | None = None,
    keep_history: bool | None = None,
    json_path: Path | None = None,
    episodes_path: Path | None = None,
    report_path: Path | None = None,
) -> Evaluation:
    """Evaluate, print the tables, and write what was asked for."""
    from rich.console import Console

    spec = environments.load(environment)
    names = list(_offline(spec)) if policies == "all" else split_names(policies)
    changes: dict[str, Any] = {
        "temperature": temperature,
        "max_new_tokens": max_new_tokens,
        "keep_history": keep_history,
    }
    made = {name: make_policy(spec, name, **changes) for name in names}
    evaluation = evaluate_policies(
        spec,
        made,
        conditions=_conditions(spec, conditions),
        graders=split_names(graders) if graders else None,
        episodes=episodes,
        seed=seed,
        pairs=[parse_pair(each, names) for each in split_names(pairs)] if pairs else None,
        power=power,
    )
    console = Console()
    for table in evaluation.tables():
        console.print(table)
        console.print()
    if json_path is not None:
        write_json(json_path, evaluation.to_json())
        console.print(f"results: {json_path}")
    if episodes_path is not None:
        _save(spec, evaluation, episodes_path)
        console.print(f"episodes: {episodes_path}")
    if report_path is not None:
        console.print(f"report: {_report(spec, evaluation, report_path)}")
    return evaluation


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


def _offline(spec: EnvironmentSpec) -> Sequence[str]:
    """Policies of the environment that need no argument and no server."""
    names: list[str] = []
    for name in spec.policies:
        try:
            spec.policy(name)
        except ConfigError:  # it wants an argument, as constant:ACTION does
            continue
        names.append(name)
    return names


def _conditions(spec: EnvironmentSpec, text: str) -> list[str]:
    if text == "all":
        return list(spec.conditions)
    return [next(iter(spec.conditions))] if text == "main" and "main" not in spec.conditions else split_names(text)


def parse_pair(text: str, names: Sequence[str]) -> tuple[str, str]:
    """Split ``a-b`` where names may hold hyphens themselves."""
    for left in names:
        for right in names:
            if text.replace(" ", "") == f"{left}-{right}".replace(" ", ""):
                return left, right
    raise ConfigError(f"--pairs takes two of the played policies as a-b, got {text!r}; played are {', '.join(names)}")


def _save(spec: EnvironmentSpec, evaluation: Evaluation, path: Path) -> None:
    from gradus.rollouts import write_episodes

    flat: list[Episode] = [
        episode for policies in evaluation.episodes.values() for played in policies.values() for episode in played
    ]
    write_episodes(path, flat, environment=spec.name, note="gradus eval")


def _report(spec: EnvironmentSpec, evaluation: Evaluation, path: Path) -> Path:
    from gradus.pipeline.report_episodes import shown_groups
    from gradus.reports import environment_words, shown_episodes, write_eval_report

    payload = shown_episodes(spec, shown_groups(evaluation.episodes, 3))
    return write_eval_report(evaluation.to_json(), payload, path, about=environment_words(spec))
