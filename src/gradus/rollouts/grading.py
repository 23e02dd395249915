"""Grading played or stored episodes, one failing episode at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import fsum, isclose, isfinite

from gradus.core import EnvironmentSpec, Episode, Grade, Grader, GradingError, StopReason

__all__ = ["grade_episodes", "regrade"]


def grade_episodes(spec: EnvironmentSpec, episodes: Sequence[Episode], grader: Grader) -> list[Episode]:
    """Grade what can be graded and fill in the metrics; a failed episode keeps no grade (missing, not zero)."""
    whole = [index for index, episode in enumerate(episodes) if episode.stop is not StopReason.FAILED]
    grades = _grade_batch(grader, [episodes[index] for index in whole])
    graded = list(episodes)
    for index, grade in zip(whole, grades, strict=True):
        episode = replace(episodes[index], grade=grade)
        graded[index] = replace(episode, metrics=_metrics(spec, episode))
    return graded


def regrade(spec: EnvironmentSpec, episodes: Sequence[Episode], grader: Grader) -> list[Episode]:
    """The same episodes under another grader. Nothing is played again."""
    return grade_episodes(spec, episodes, grader)


def _grade_batch(grader: Grader, episodes: Sequence[Episode]) -> list[Grade]:
    """Grade all at once; if that raises, one by one, so that one bad episode costs one grade."""
    if not episodes:
        return []
    try:
        grades = list(grader.grade(episodes))
    except Exception as error:
        if len(episodes) == 1:
            return [Grade(grader=grader.name, value=None, error=f"{type(error).__name__}: {error}")]
        return [_grade_batch(grader, [episode])[0] for episode in episodes]
    if len(grades) != len(episodes):
        raise GradingError(
            f"grader {grader.name!r} gave {len(grades)} grades for {len(episodes)} episodes; expected one each, in order"
        )
    return [_checked(grade, episode) for grade, episode in zip(grades, episodes, strict=True)]


def _checked(grade: Grade, episode: Episode) -> Grade:
    """Hold a grader to its word: terms for every turn, their sum the grade, all of it finite."""
    if grade.value is None:
        return grade
    if not isfinite(grade.value):
        return Grade(grader=grade.grader, value=None, error=f"the grade is {grade.value}, expected a finite number")
    if len(grade.terms) != len(episode.turns):
        raise GradingError(
            f"grader {grade.grader!r} gave terms for {len(grade.terms)} turns of an episode with {len(episode.turns)}"
        )
    total = fsum(grade.turn_rewards)
    if not isclose(total, grade.value, rel_tol=1e-6, abs_tol=1e-6):
        raise GradingError(
            f"grader {grade.grader!r}: the terms sum to {total:.6f} but the grade is {grade.value:.6f}; "
            "turn credit would optimise something else than the grade"
        )
    return grade


def _metrics(spec: EnvironmentSpec, episode: Episode) -> dict[str, float | None]:
    found: dict[str, float | None] = dict(spec.metrics(episode)) if spec.metrics else {}
    found["yardstick"] = spec.yardstick(episode)
    return found
