"""Evaluations with their progress shown, and their report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradus.core import ConfigError, EnvironmentSpec, Policy
from gradus.evidence.evaluation import Evaluation, evaluate
from gradus.runs.progress import progress_bar


def evaluate_policies(spec: EnvironmentSpec, policies: Mapping[str, Policy | None], **options: Any) -> Evaluation:
    """:func:`gradus.evidence.evaluation.evaluate` with a progress bar."""
    with progress_bar("evaluate", 0, "episodes") as advance:

        def tell(name: str, done: int, total: int) -> None:
            advance(done, total, name)

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
    raise ConfigError(f"--pairs takes two of the policies as a-b, got {text!r}; there are {', '.join(names)}")


def write_evaluation_report(spec: EnvironmentSpec, evaluation: Evaluation, path: Path) -> Path:
    """The HTML report of an evaluation that belongs to no run."""
    from gradus.evidence.reports import environment_words, listed_episodes, shown_episodes, write_eval_report
    from gradus.runs.stages.report_episodes import shown_groups

    shown = {
        **shown_episodes(spec, shown_groups(evaluation.episodes, 3)),
        "listed": listed_episodes(evaluation.flat),
    }
    return write_eval_report(evaluation.to_json(), shown, path, about=environment_words(spec))
