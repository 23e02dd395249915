"""Prepares the episodes of a report, and the words around them, while core objects are at hand.

The report itself reads these files and never meets an environment, a policy or a model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

from gradus.core import EnvironmentSpec, Episode, EpisodeView, Group, Message, Turn
from gradus.core.documents import SCHEMA
from gradus.core.files import write_text

Advantages = Callable[[Group], Sequence[Sequence[float]]]
"""A group -> one advantage per turn for each member, [G][K]."""

Pieces = Callable[[Sequence[int]], Sequence[str]]
"""Token ids -> the text of each, as long as the ids."""


def environment_words(spec: EnvironmentSpec) -> dict[str, Any]:
    """The words of an environment: its summary, true reward, graders with weights, conditions, and published figures."""
    graders = {
        name: {"summary": grader.summary, "weights": dict(grader.weights), "per_turn": grader.per_turn}
        for name, grader in spec.graders.items()
    }
    return {
        "schema": SCHEMA,
        "environment": spec.name,
        "summary": spec.summary,
        "true_reward": spec.true_reward_name,
        "default_grader": spec.default_grader,
        "graders": graders,
        "conditions": {name: condition.summary for name, condition in spec.conditions.items()},
        "reference": json_values(spec.presentation.reference),
    }


View = Callable[[Episode], EpisodeView]


def shown_episodes(
    spec: EnvironmentSpec | str,
    groups: Sequence[Group],
    *,
    advantages: Advantages | None = None,
    pieces: Mapping[str, Pieces] | None = None,
) -> dict[str, Any]:
    """The episodes that a report lets one browse, JSON values only.

    ``spec``: of an environment that is not here the name; its episodes have no view. One entry per group: ``policy``, ``condition``, ``seed`` and ``members``, each of them an episode with its view, reward, turns
    and, where ``advantages`` is given and the group has at least two members, its advantage per turn. ``pieces`` maps a
    policy's name to a function from token ids to their texts; without it token probabilities are shown by place alone.
    """
    name, view = (spec, None) if isinstance(spec, str) else (spec.name, spec.presentation.view)
    entries = [
        _entry(view, group, advantages, (pieces or {}).get(_policy(group))) for group in groups if group.episodes
    ]
    return {"schema": SCHEMA, "environment": name, "entries": entries}


def shown_view(view: EpisodeView) -> dict[str, Any]:
    """An episode's pictures as JSON values; fields that a panel leaves empty are left out."""
    panels = [
        {key: value for key, value in asdict(panel).items() if value not in (None, (), [], {}, "")}
        for panel in view.panels
    ]
    return json_values({"title": view.title, "facts": dict(view.facts), "panels": panels})


def prepare_report(
    run_folder: Path,
    spec: EnvironmentSpec,
    groups: Sequence[Group],
    *,
    facts: Mapping[str, Any] | None = None,
    advantages: Advantages | None = None,
    pieces: Mapping[str, Pieces] | None = None,
    evaluated: Sequence[Episode] = (),
) -> Path:
    """Write ``report/about.json`` and ``report/episodes.json.gz`` of a run. Returns their folder.

    ``facts``: what the page says of the run under its headline, name to value (model, parameters, seed, date, hardware).
    ``evaluated``: all episodes of the evaluation in the order in which they are stored; the page lists them.
    """
    folder = run_folder / "report"
    write_text(
        folder / "about.json",
        json.dumps({**environment_words(spec), "run": dict(facts or {})}, ensure_ascii=False, indent=1),
    )
    episodes = {
        **shown_episodes(spec, groups, advantages=advantages, pieces=pieces),
        "listed": listed_episodes(evaluated),
    }
    write_text(folder / "episodes.json.gz", json.dumps(episodes, ensure_ascii=False))
    (folder / "episodes.json").unlink(missing_ok=True)  # of an earlier version
    return folder


def listed_episodes(evaluated: Sequence[Episode]) -> list[dict[str, Any]]:
    """Lists each episode of an evaluation for the search of the page, in the order in which they are stored."""
    return [_listed(each) for each in evaluated]


def _listed(episode: Episode) -> dict[str, Any]:
    reward = episode.reward
    row = {
        "condition": episode.task.condition,
        "seed": episode.task.seed,
        "policy": episode.policy,
        "stop": episode.stop.value,
        "reward": reward.value if reward else None,
        "true_reward": episode.metrics.get("true_reward"),
        "components": dict(reward.components) if reward else {},
    }
    return json_values(row, digits=4)


def json_values(value: Any, digits: int = 6) -> Any:
    """Mappings, sequences and numbers as plain JSON; a number that is not finite is None, fractions are cut to ``digits`` figures.

    No figure before the point is cut: the tables of the page have them all.
    """
    if isinstance(value, Mapping):
        return {str(key): json_values(each, digits) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_values(each, digits) for each in value]
    if isinstance(value, float):
        if not isfinite(value):
            return None
        return float(f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:.0f}")
    if value is None or isinstance(value, bool | int | str):
        return value
    if hasattr(value, "item"):  # a numpy scalar
        return json_values(value.item(), digits)
    return str(value)


def _policy(group: Group) -> str:
    return next(iter(group.episodes)).policy


def _entry(view: View | None, group: Group, advantages: Advantages | None, pieces: Pieces | None) -> dict[str, Any]:
    by_turn = advantages(group) if advantages is not None and len(group.episodes) > 1 else None
    members = [
        _member(view, episode, [round(value, 9) for value in by_turn[index]] if by_turn is not None else None, pieces)
        for index, episode in enumerate(group.episodes)
    ]
    first = next(iter(group.episodes))
    return {
        "policy": first.policy,
        "condition": group.task.condition,
        "seed": group.task.seed,
        "system_prompt": first.system_prompt,
        "members": members,
    }


def _member(
    draw: View | None, episode: Episode, advantages: list[float] | None, pieces: Pieces | None
) -> dict[str, Any]:
    view = shown_view(draw(episode)) if draw is not None and episode.turns and episode.failure is None else None
    reward = episode.reward
    graded = None
    if reward is not None:
        graded = {
            "grader": reward.grader,
            "value": reward.value,
            "components": dict(reward.components),
            "error": reward.error,
        }
    return json_values(
        {
            "member": episode.member,
            "stop": episode.stop.value,
            "failure": asdict(episode.failure) if episode.failure else None,
            "return": episode.env_return,
            "metrics": dict(episode.metrics),
            "reward": graded,
            "view": view,
            "advantages": advantages,
            "turns": [_turn(episode, turn, pieces) for turn in episode.turns],
            "final": episode.final.text if episode.final else None,
            "results": _results(episode.final.messages) if episode.final else [],
        }
    )


def _turn(episode: Episode, turn: Turn, pieces: Pieces | None) -> dict[str, Any]:
    terms = dict(enumerate(episode.reward.terms)) if episode.reward else {}
    stored: dict[str, Any] = {
        "observation": turn.observation,
        "action": turn.action,
        "env_reward": turn.env_reward,
        "terms": [[term.component, term.value, term.span] for term in terms.get(turn.index, ())],
        "spans": [[span.name, span.start, span.end] for span in turn.spans],
    }
    if turn.calls:
        stored["calls"] = [[each.name, dict(each.arguments), each.fault, each.error] for each in turn.calls]
    if results := _results(turn.messages):
        stored["results"] = results
        stored["observation"] = "\n".join(each.content for each in turn.messages if each.role != "tool")
    if not turn.valid:
        stored["error"] = turn.error or "not understood"
    if turn.restart:
        stored["restart"] = True
    if turn.cut:
        stored["cut"] = True
    if turn.tokens is not None:
        ids = turn.tokens.action_ids
        texts = list(pieces(ids)) if pieces is not None else [f"#{token}" for token in ids]
        stored["tokens"] = [[text, logprob] for text, logprob in zip(texts, turn.tokens.logprobs, strict=True)]
    return stored


def _results(messages: Sequence[Message]) -> list[list[str]]:
    """Names of tools and what they gave."""
    return [[each.name, each.content] for each in messages if each.role == "tool"]
