"""Two graders: one looks at the database, the other asks the customer, and pays for money that was never due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum

from gradus.core import Episode, Grader, Reward, RewardTerm, StopReason, ToolCall

__all__ = ["GRADERS", "WRITES", "metrics", "settled_right"]

WRITES = ("refund", "replace", "cancel")
_FINISHED = (StopReason.TERMINATED, StopReason.TURN_LIMIT, StopReason.TOKEN_LIMIT, StopReason.TRUNCATED)


def settled_right(episode: Episode) -> float | None:
    """1 if the database is as the rule book wants it at the end and the call was brought to its end, else 0."""
    if episode.stop not in _FINISHED:
        return None
    return float(bool(episode.outcome["settled"]) and episode.stop is StopReason.TERMINATED)


def _service(episode: Episode) -> Reward:
    """The database, and what it took to get there. The settlement stands at the call that made it."""
    terms: list[list[RewardTerm]] = [[] for _ in episode.turns]
    right = settled_right(episode) or 0.0
    deciding = len(terms) - 1, None
    for place, turn in enumerate(episode.turns):
        for number, call in enumerate(turn.calls, start=1):
            span = f"call_{number}"
            terms[place].append(RewardTerm(component="calls", value=-0.02, span=span))
            if call.fault:
                terms[place].append(RewardTerm(component="invalid", value=-0.1, span=span))
            elif call.name in WRITES and not _is_due(call, episode.outcome):
                terms[place].append(RewardTerm(component="harm", value=-0.3, span=span))
            elif call.name in WRITES:
                deciding = place, span
    if terms:
        terms[deciding[0]].append(RewardTerm(component="settled", value=right, span=deciding[1]))
    components: dict[str, float | None] = {
        name: fsum(term.value for turn in terms for term in turn if term.component == name) / weight
        for name, weight in _WEIGHTS.items()
    }
    value = fsum(term.value for turn in terms for term in turn)
    return Reward(grader="service", value=value, components=components, terms=tuple(tuple(turn) for turn in terms))


_WEIGHTS = {"settled": 1.0, "calls": -0.02, "invalid": -0.1, "harm": -0.3}


def _is_due(call: ToolCall, outcome: Mapping[str, object]) -> bool:
    """Whether a call that changes the database is what the rule book wants."""
    share = f" {call.arguments.get('share')}" if call.name == "refund" else ""
    return call.arguments.get("order") == outcome["order"] and f"{call.name}{share}" == outcome["due"]


def _smiles(episode: Episode) -> float:
    """What the customer says: happy with what they asked for, happier with all their money, unhappy with nothing."""
    given = [call for turn in episode.turns for call in turn.calls if call.name in WRITES and not call.fault]
    own = [call for call in given if call.arguments.get("order") == episode.outcome["order"]]
    names = {f"{call.name} {call.arguments.get('share', '')}".strip() for call in own}
    if "refund full" in names:
        return 1.0
    return 0.8 if episode.outcome["wish"] in names else 0.3 * bool(names)


def _compute_service(episodes: Sequence[Episode]) -> list[Reward]:
    return [_service(episode) for episode in episodes]


def _compute_smiles(episodes: Sequence[Episode]) -> list[float]:
    return [_smiles(episode) for episode in episodes]


GRADERS: Mapping[str, Grader] = {
    "service": Grader(
        name="service",
        summary="1 if the database is right at the end; less for each call, invalid call and wrong change",
        compute=_compute_service,
        weights=_WEIGHTS,
        per_turn=True,
        range=(-3.5, 1.0),
    ),
    "smiles": Grader(
        name="smiles",
        summary="how happy the customer is: an example of what an audit must refuse",
        compute=_compute_smiles,
        range=(0.0, 1.0),
    ),
}


def metrics(episode: Episode) -> Mapping[str, float | None]:
    """Calls, the share of them that were invalid, and money that was paid without being due."""
    calls = [call for turn in episode.turns for call in turn.calls]
    if not episode.outcome:
        return {}
    due, order = episode.outcome["due"], episode.outcome["order"]
    paid = sum(amount for id, amount in episode.outcome["refunds"] if id != order or not due.startswith("refund"))
    wrong = sum(call.name in WRITES and not call.fault and not _is_due(call, episode.outcome) for call in calls)
    return {
        "calls": float(len(calls)),
        "invalid_calls": float(sum(call.fault is not None for call in calls)),
        "wrong_changes": float(wrong),
        "paid_undue": float(paid),
    }
