"""Prepares the episodes of a report, and the words around them, while core objects are at hand.

The report itself reads these files and never meets an environment, a policy or a model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any, cast

from gradus.core import EnvironmentSpec, Episode, EpisodeView, Group, Message, Reward, Turn
from gradus.core.documents import SCHEMA, Description, ShownEpisodes, ShownGroup, ShownMember
from gradus.core.files import write_text
from gradus.core.values import Json, JsonDict

Advantages = Callable[[Group], Sequence[Sequence[float]]]
"""A group -> one advantage per turn for each member, [G][K]."""

Pieces = Callable[[Sequence[int]], Sequence[str]]
"""Token ids -> the text of each, as long as the ids."""


def environment_words(spec: EnvironmentSpec) -> Description:
    """The words of an environment: its summary, true reward, graders with weights, conditions, and published figures."""
    words: Any = {
        "schema": SCHEMA,
        "environment": spec.name,
        "summary": spec.summary,
        "true_reward": spec.true_reward_name,
        "default_grader": spec.default_grader,
        "graders": {
            name: {"summary": grader.summary, "weights": dict(grader.weights), "per_turn": grader.per_turn}
            for name, grader in spec.graders.items()
        },
        "conditions": {name: condition.summary for name, condition in spec.conditions.items()},
    }
    if spec.presentation.reference:
        words["reference"] = json_values(spec.presentation.reference)
    return words


View = Callable[[Episode], EpisodeView]


def shown_episodes(
    spec: EnvironmentSpec,
    groups: Sequence[Group],
    *,
    advantages: Advantages | None = None,
    pieces: Mapping[str, Pieces] | None = None,
    evaluated: Sequence[Episode] = (),
) -> ShownEpisodes:
    """The episodes that a report lets one browse, JSON values only.

    One entry per group: ``policy``, ``condition``, ``seed`` and ``members``, each of them an episode with its view, reward, turns
    and, where ``advantages`` is given and the group has at least two members, its advantage per turn. ``pieces`` maps a
    policy's name to a function from token ids to their texts; without it token probabilities are shown by place alone.
    ``evaluated``: all episodes of an evaluation in the order in which they are stored; the page lists them.
    """
    entries: list[ShownGroup] = []
    for group in groups:
        if group.episodes:
            texts_of = pieces.get(group.episodes[0].policy) if pieces else None
            entries.append(_entry(group, spec.presentation.view, advantages, texts_of))
    listed = [_listed(episode) for episode in evaluated]
    return {"schema": SCHEMA, "environment": spec.name, "entries": entries, "listed": listed}


def prepare_report(
    run_folder: Path, spec: EnvironmentSpec, episodes: ShownEpisodes, *, facts: Json | None = None
) -> Path:
    """Write ``report/about.json`` and ``report/episodes.json.gz`` of a run, of :func:`shown_episodes`. Returns their folder.

    ``facts``: what the page says of the run under its headline, name to value (model, parameters, seed, date, hardware).
    """
    folder = run_folder / "report"
    about = {**environment_words(spec), "run": dict(facts or {})}
    write_text(folder / "about.json", json.dumps(about, ensure_ascii=False, indent=1))
    write_text(folder / "episodes.json.gz", json.dumps(episodes, ensure_ascii=False))
    return folder


def _listed(episode: Episode) -> JsonDict:
    """One row of the page's search."""
    reward = episode.reward
    row: JsonDict = {
        "condition": episode.task.condition,
        "seed": episode.task.seed,
        "policy": episode.policy,
        "stop": episode.stop.value,
        "reward": reward.value if reward else None,
        "true_reward": episode.metrics.get("true_reward"),
        "components": reward.components if reward else {},
    }
    return json_values(row, digits=4)


def json_values(value: Any, digits: int = 6) -> Any:
    """Mappings, sequences and numbers as plain JSON; a number that is not finite is None, fractions are cut to ``digits`` figures.

    No figure before the point is cut: the tables of the page have them all.
    """
    if isinstance(value, Mapping):
        items = cast(Mapping[Any, Any], value).items()
        return {str(key): json_values(inner, digits) for key, inner in items}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_values(inner, digits) for inner in cast(Sequence[Any], value)]
    if hasattr(value, "item"):  # a numpy scalar
        value = value.item()
    if isinstance(value, float):
        if not isfinite(value):
            return None
        return float(f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:.0f}")
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _entry(
    group: Group,
    view: View | None,
    advantages: Advantages | None,
    pieces: Pieces | None,
) -> ShownGroup:
    by_member = advantages(group) if advantages and len(group.episodes) > 1 else None
    # An advantage compares members, so an episode alone has none.
    members = [_member(episode, view, pieces) for episode in group.episodes]
    for index, member in enumerate(members):
        member["advantages"] = json_values(by_member[index]) if by_member is not None else None
    first = next(iter(group.episodes))
    return {
        "policy": first.policy,
        "condition": group.task.condition,
        "seed": group.task.seed,
        "system_prompt": first.system_prompt,
        "members": members,
    }


def _member(episode: Episode, view: View | None, pieces: Pieces | None) -> ShownMember:
    """An episode with its pictures, if it came to something that they show."""
    has_view = view is not None and episode.turns and episode.failure is None
    return json_values(
        {
            "member": episode.member,
            "stop": episode.stop.value,
            "failure": episode.failure and asdict(episode.failure),
            "return": episode.env_return,
            "metrics": episode.metrics,
            "reward": episode.reward and _graded(episode.reward),
            "view": _pictures(view(episode)) if view and has_view else None,
            "turns": [_turn(episode, turn, pieces) for turn in episode.turns],
            "final": episode.final and episode.final.text,
            "results": _results(episode.final.messages) if episode.final else [],
        }
    )


def _graded(reward: Reward) -> JsonDict:
    names = ("grader", "value", "components", "error")
    return {name: getattr(reward, name) for name in names}


def _pictures(view: EpisodeView) -> JsonDict:
    """An episode's pictures as JSON values; fields that a panel leaves empty are left out."""
    panels: list[JsonDict] = []
    for panel in view.panels:
        fields = asdict(panel)
        panels.append({name: value for name, value in fields.items() if value})
    return {"title": view.title, "facts": view.facts, "panels": panels}


def _turn(episode: Episode, turn: Turn, pieces: Pieces | None) -> JsonDict:
    """What was read and answered, its reward terms and spans; the rest only where there is any."""
    terms = dict(enumerate(episode.reward.terms)) if episode.reward else {}
    stored: JsonDict = {
        "observation": turn.observation,
        "action": turn.action,
        "env_reward": turn.env_reward,
        "terms": [[term.component, term.value, term.span] for term in terms.get(turn.index, ())],
        "spans": [[span.name, span.start, span.end] for span in turn.spans],
    }
    if turn.calls:
        stored["calls"] = [[call.name, call.arguments, call.fault, call.error] for call in turn.calls]
    results = _results(turn.messages)
    if results:  # the page shows them under the names of their tools, and not in the observation once more
        stored["results"] = results
        stored["observation"] = "\n".join(message.content for message in turn.messages if message.role != "tool")
    if not turn.valid:
        stored["error"] = turn.error or "not understood"
    if turn.restart:
        stored["restart"] = True
    if turn.cut:
        stored["cut"] = True
    if turn.tokens is not None:
        ids = turn.tokens.action_ids
        texts = pieces(ids) if pieces else [f"#{token}" for token in ids]
        stored["tokens"] = list(zip(texts, turn.tokens.logprobs, strict=True))
    return stored


def _results(messages: Sequence[Message]) -> list[list[str]]:
    """Names of tools and what they gave."""
    return [[message.name, message.content] for message in messages if message.role == "tool"]
