"""Two graders: one looks at the database, the other asks the customer, and pays for money that was never due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from math import fsum

from gradus.core import Episode, Grader, Reward, RewardTerm, StopReason

WRITES = ("refund", "replace", "cancel", "refuse")
_FINISHED = (StopReason.TERMINATED, StopReason.TURN_LIMIT, StopReason.TOKEN_LIMIT, StopReason.TRUNCATED)


_WEIGHTS = {"settled": 1.0, "calls": -0.01, "invalid": -0.05}


def settled_right(episode: Episode) -> float | None:
    """1 if the database is as the rule book wants it at the end and the call was brought to its end, else 0."""
    if episode.stop not in _FINISHED:
        return None
    return float(episode.outcome["settled"] and episode.stop is StopReason.TERMINATED)


def _service(episode: Episode) -> Reward:
    """The database, less what it took to get there. The settlement stands at the call that made it.

    No more is taken off than was earned: else doing nothing would pay more than trying.
    """
    terms: list[list[RewardTerm]] = [[] for _ in episode.turns]
    right = settled_right(episode) or 0.0
    deciding = len(terms) - 1
    deciding_span = None
    remedies = iter(episode.outcome["remedies"])
    remaining = right
    for index, turn in enumerate(episode.turns):
        for number, call in enumerate(turn.calls, start=1):
            span = f"call_{number}"
            costs = ("calls", "invalid") if call.fault else ("calls",)
            for component in costs:
                cost = _WEIGHTS[component]
                if remaining + cost >= 0:
                    remaining += cost
                    terms[index].append(RewardTerm(component=component, value=cost, span=span))
            # Each write that went through has one remedy in the outcome, in order.
            wrote = call.name in WRITES and not call.fault
            if wrote and _is_due(next(remedies, ()), episode.outcome):
                deciding = index
                deciding_span = span
    terms[deciding].append(RewardTerm(component="settled", value=right, span=deciding_span))
    totals: dict[str, list[float]] = {name: [] for name in _WEIGHTS}
    for term in chain(*terms):
        totals[term.component].append(term.value)
    return Reward(
        grader="service",
        value=fsum(chain(*totals.values())),
        components={name: fsum(values) / _WEIGHTS[name] for name, values in totals.items()},
        terms=tuple(map(tuple, terms)),
    )


def _is_due(remedy: Sequence[object], outcome: Mapping[str, object]) -> bool:
    """Says whether what was done to an order is what the rule book wants."""
    return list(remedy) == [outcome["order"], outcome["due"]]


def _smiles(episode: Episode) -> float:
    """Returns what the customer says: happy with what they asked for, happier with all their money, unhappy with nothing."""
    outcome = episode.outcome
    remedies = {remedy for order, remedy in outcome["remedies"] if order == outcome["order"]}
    if "full" in remedies:
        return 1.0
    if outcome["wish"] in remedies:
        return 0.8
    return 0.3 * bool(remedies - {"refuse"})


GRADERS: Mapping[str, Grader] = {
    "service": Grader(
        name="service",
        summary="1 if the database is right at the end, a little less for each call and invalid call; else 0",
        compute=lambda episodes: [_service(episode) for episode in episodes],
        weights=_WEIGHTS,
        per_turn=True,
        range=(0.0, 1.0),
    ),
    "smiles": Grader(
        name="smiles",
        summary="how happy the customer is: an example of what an audit must refuse",
        compute=lambda episodes: [_smiles(episode) for episode in episodes],
        range=(0.0, 1.0),
    ),
}


def metrics(episode: Episode) -> Mapping[str, float | None]:
    """Calls, how many of them were invalid, and money that was refunded without being due."""
    calls = [call for turn in episode.turns for call in turn.calls]
    wrong = [remedy for remedy in episode.outcome["remedies"] if not _is_due(remedy, episode.outcome)]
    refunds = dict(episode.outcome["refunds"])
    return {
        "calls": float(len(calls)),
        "invalid_calls": float(sum(call.fault is not None for call in calls)),
        "wrong_changes": float(len(wrong)),
        "refunded_undue": float(sum(refunds.get(order, 0) for order, _ in wrong)),
    }
