"""Says what a run has shown, in sentences that its intervals carry."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gradus.evidence.reports.results import (
    ALPHA,
    BEFORE,
    FEWEST,
    Difference,
    Figure,
    differences,
    figure,
    headline_condition,
    is_held_out,
    main_condition,
    ranked,
)
from gradus.stats import format_interval, format_number, format_p, format_signed

Json = Mapping[str, Any]
STUDENTS = ("grpo", "distill", "sft")  # a run's own checkpoints, the one to be judged first
HEADLINES = {  # by what is shown of the reward and of the true reward
    ("shown", "shown"): "GRPO made the student better",
    ("shown", "none"): "GRPO raised the reward; no true reward was measured",
    ("shown", "open"): "GRPO raised the reward, and is not proven to have changed {aim}",
    ("shown", "refuted"): "GRPO raised the reward and lowered {aim}, which looks like a hack of the grader",
    ("open", "shown"): "GRPO raised {aim}, and is not proven to have changed the reward",
    ("open", "refuted"): "GRPO made the student worse in {aim}",
    ("refuted", "shown"): "GRPO lowered the reward and raised {aim}",
    ("refuted", "open"): "GRPO made the student worse",
    ("refuted", "refuted"): "GRPO made the student worse",
    ("refuted", "none"): "GRPO made the student worse",
}
OPEN = "GRPO is not proven to have changed the student"
_FEW = 20  # tasks
_MOST_NAMES = 6
_GREEDY = "-greedy"  # ends the name of a checkpoint that takes its likeliest tokens
VERBS = {"shown": "is above", "refuted": "is below", "open": "is not told apart from"}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """``state`` is ``shown`` (interval above 0), ``refuted`` (below 0) or ``open`` (holds 0, or undefined)."""

    state: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A headline, the claims of each condition under it, and what must be kept in mind while reading them."""

    headline: str
    claims: Mapping[str, Sequence[Claim]]
    cautions: Sequence[str] = ()

    @property
    def title(self) -> str:
        """The headline without its figures."""
        return self.headline.partition(": ")[0].removesuffix(".") + "."

    @property
    def figures(self) -> str:
        """The rest of the headline after its title; empty if it has no figures."""
        told = self.headline.partition(": ")[2]
        return told[:1].upper() + told[1:]


def verdict_on(results: Json | None, *, quick: bool = False) -> Verdict:
    """The verdict on an evaluation (the document of results.json)."""
    cautions: list[str] = []
    if quick:
        cautions.append("A quick run: every stage at toy size. Its figures say nothing of the whole recipe.")
    condition = main_condition(results) if results else None
    if results is None or condition is None:
        return Verdict(headline="Nothing was evaluated yet, so nothing is proven.", claims={}, cautions=cautions)
    student = any(name in results["conditions"][condition].get("policies", {}) for name in STUDENTS)
    if student:
        condition = headline_condition(results) or condition
    pairs = [pair.episodes for pair in differences(results["conditions"], condition) if pair.episodes is not None]
    if pairs and max(pairs) < FEWEST:
        cautions.append(f"Only {max(pairs)} pairs of episodes: nothing can be proven with fewer than {FEWEST}.")
    if starts := results.get("best_is_the_start"):
        seeds = starts if isinstance(starts, list) else []
        where = f" in seed{'s' * (len(seeds) > 1)} {named([*map(str, seeds)])}" if seeds else ""
        cautions.append(f"grpo is the student that GRPO began with{where}: no later step was better in validation.")
    if single := results.get("one_checkpoint"):
        cautions.append(_single(single))
    if of_runs := results.get("quick_runs"):
        cautions.append(f"At toy size, so that its figures prove nothing: {named(of_runs)}.")
    if student or len(results.get("seeds") or ()) > 1:
        cautions.append(_reach(results))
    headline = _student_headline(results, condition) or _ranking_headline(results, condition)
    order = dict.fromkeys([condition, *results["conditions"]])
    claims = {name: _claims(results, name) for name in order}
    return Verdict(
        headline=headline, claims={name: listed for name, listed in claims.items() if listed}, cautions=cautions
    )


def named(names: Sequence[str]) -> str:
    """``a, b and c``; of many names the first three and how many more.

    >>> named(["a"]), named("abc"), named("abcdefg")
    ('a', 'a, b and c', 'a, b, c and 4 more')
    """
    if len(names) > _MOST_NAMES:
        return f"{', '.join(names[:3])} and {len(names) - 3} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _reach(results: Json) -> str:
    seeds = results.get("fewest_seeds") or len(results.get("seeds") or ())
    if seeds < 2:
        return "All of it holds for this checkpoint. A claim about the method needs at least five training seeds."
    wide = "" if seeds > 4 else " So few seeds say little of how seeds differ, so the intervals are wide."
    each = " of each run, or more," if "fewest_seeds" in results else ""
    return f"Intervals are over {seeds} training seeds{each} and the tasks, both taken as drawn.{wide}"


def _single(names: Sequence[str]) -> str:
    """Says what runs of one training seed leave open."""
    if len(names) == 1:
        return (
            f"{names[0]} is one checkpoint: its own training seed is not taken into account. A difference from it holds for this "
            "checkpoint, and says little of its settings."
        )
    return (
        f"{named(names)} are one checkpoint each: their own training seeds are not taken into account. "
        "Differences hold for these checkpoints, and say little of their settings."
    )


def state_of(difference: Figure) -> str:
    """``shown``, ``refuted`` or ``open``."""
    if not difference.certain:
        return "open"
    return "shown" if difference.mean > 0 else "refuted"


def _student_headline(results: Json, condition: str) -> str | None:
    """GRPO against the student before it. Better is said only if the reward and the true reward rose, each beyond doubt.

    If the recipe compares it with no such student: against the first policy that it names.
    """
    against = _against(results, condition, "grpo")
    before = next((name for name in (*BEFORE, *against) if name in against), None)
    pair = against[before] if before else None
    reward = pair.figures.get("reward") if pair else None
    if pair is None or reward is None:
        return None
    true, aim = pair.figures.get("true_reward"), _aim(results)
    amount = f"reward {_change(results, condition, pair, 'reward')}"
    if true is not None and not _said_already(pair):
        amount += f"; {aim} {_change(results, condition, pair, 'true_reward')}"
    states = (state_of(reward), state_of(true) if true is not None else "none")
    headline = HEADLINES.get(states, OPEN).format(aim=aim)
    if before not in BEFORE:
        headline = f"grpo {VERBS[state_of(reward)]} {before}"
    if _is_little(reward):
        seen = _seen(reward, one_seed=len(results.get("seeds") or ()) < 2)
        headline += f" ({seen} are too few to tell)" if headline == OPEN else f", as far as {seen} tell,"
    return f"{headline} on {_where(condition)}: {amount}.{_greedy_sentence(results, condition, before)}"


def _where(condition: str) -> str:
    """The tasks of a condition in words; a condition of held-out tasks is known by its name."""
    return "tasks that it never saw" if is_held_out(condition) else condition


def _greedy_sentence(results: Json, condition: str, before: str | None) -> str:
    """A sentence on the likeliest answers, which people use: a sampled gain may only sharpen what greedy answers had before."""
    pair = _against(results, condition, f"grpo{_GREEDY}").get(f"{before}{_GREEDY}")
    reward = pair.figures.get("reward") if pair else None
    if pair is None or reward is None:
        return ""
    return f" Likeliest answers (greedy): {_change(results, condition, pair, 'reward')}."


def _change(results: Json, condition: str, pair: Difference, measure: str) -> str:
    """``0.73 to 0.78, surely up by more than 0.03``: before, after, and the near end of the 95 % interval of the paired difference."""
    policies = results["conditions"][condition].get("policies") or {}
    before, after = (figure((policies.get(name) or {}).get(measure)) for name in (pair.second, pair.first))
    change, state = pair.figures.get(measure), "open"
    if change is None or change.low is None or change.high is None:
        seen = f" (the change is {format_signed(change.mean, 2)})" if change else ""
        told = f"not proven, without an interval{seen}"
    elif (state := state_of(change)) == "open":
        low, high = (format_signed(bound, 2) for bound in (change.low, change.high))
        told = f"not proven (the change is between {low} and {high}{_corrected(change)})"
    else:
        way, bound = ("up", change.low) if state == "shown" else ("down", -change.high)
        told = f"surely {way} by more than {format_number(bound, 2)}"
    if before is None or after is None:
        return told
    return f"{format_number(before.mean, 2)} to {format_number(after.mean, 2)}, {told}"


def _with_doubt(difference: Figure | None, digits: int = 3) -> str:
    """A difference; if its interval leaves out 0 and p does not follow, because it is corrected over the conditions, p too."""
    return format_interval(difference, signed=True, digits=digits) + (_corrected(difference) if difference else "")


def _corrected(difference: Figure) -> str:
    """The p over all conditions if the interval of one leaves out 0 and that p does not follow."""
    if difference.p is None or difference.p < ALPHA or difference.low is None:
        return ""
    apart = difference.low > 0 or (difference.high or 0.0) < 0
    return f", p = {format_p(difference.p)} over all conditions" if apart else ""


def _ranking_headline(results: Json, condition: str) -> str:
    policies = results["conditions"][condition].get("policies") or {}
    known = [name for name in ranked(results["conditions"], condition) if figure(policies[name].get("reward"))]
    if not known:
        return f"No policy could be graded on {condition}."
    best = known[-1]
    amount = f"{format_interval(figure(policies[best].get('reward')))} in {_grader(results)}"
    if len(policies) == 1:
        return f"{best} on {condition}: {amount}."
    text = f"{best} is graded highest on {condition}: {amount}"
    if len(known) == 1:
        return f"{text}."
    lead = _against(results, condition, best).get(known[-2])
    gap = lead.figures.get("reward") if lead else None
    if gap is None:
        return f"{text}; {known[-2]} follows."
    seen = _seen(gap, one_seed=bool(results.get("one_checkpoint")))
    if state_of(gap) != "shown":
        proven = "is not proven"
    elif _is_little(gap):
        proven = f"is above 0 on {seen}, which are too few to prove it"
    else:
        proven = f"is proven on {seen}" if seen else "is proven"
    return f"{text}. Its lead over {known[-2]}, {format_interval(gap, signed=True)}, {proven}."


def _is_little(difference: Figure) -> bool:
    """Says if so few tasks were seen that an interval without 0 is a hint, not a proof."""
    return difference.n is not None and difference.n < _FEW


def _seen(difference: Figure, *, one_seed: bool) -> str:
    """``8 tasks and one training seed``: what a difference was seen on; empty if that was not stored."""
    return "" if difference.n is None else f"{difference.n} tasks" + (" and one training seed" if one_seed else "")


def _claims(results: Json, condition: str) -> list[Claim]:
    """The student against every other policy it is paired with, and its greedy answers against those of others.

    If there is no student: the pairs that were chosen, or each policy against the next one below if all pairs are there.
    """
    order = ranked(results["conditions"], condition)
    student = next((name for name in STUDENTS if name in order), None)
    stored = differences(results["conditions"], condition)
    if student is not None:
        against, greedy = (_against(results, condition, name) for name in (student, f"{student}{_GREEDY}"))
        pairs = [greedy[name] for name in order if name in greedy and name.endswith(_GREEDY)]
        pairs += [against[name] for name in order if name in against]
    elif len(stored) < math.comb(len(order), 2):
        pairs = stored
    else:
        steps = [(_against(results, condition, upper), lower) for lower, upper in pairwise(order)]
        pairs = [against[lower] for against, lower in steps if lower in against]
    return [claim for pair in reversed(pairs) if (claim := _claim(results, pair)) is not None]


def _claim(results: Json, pair: Difference) -> Claim | None:
    reward, true = pair.figures.get("reward"), pair.figures.get("true_reward")
    if reward is None:
        return None
    state = state_of(reward)
    wins = "" if pair.wins is None else f", won on {pair.wins} of {pair.episodes} tasks"
    amount = f"{_with_doubt(reward)}{wins}"
    text = f"{pair.first} {VERBS[state]} {pair.second} in {_grader(results)} ({amount})"
    if true is not None and not _said_already(pair):
        aim = f"{_aim(results)} ({_with_doubt(true, 2)})"
        same = state_of(true) == state
        text += f", and in {aim}" if same else f", but {VERBS[state_of(true)]} it in {aim}"
    return Claim(state=state, text=text)


def _against(results: Json, condition: str, subject: str) -> dict[str, Difference]:
    """Other policy -> subject minus it, whichever way round the pair was stored."""
    against: dict[str, Difference] = {}
    for pair in differences(results["conditions"], condition):
        if pair.first == subject:
            against[pair.second] = pair
        elif pair.second == subject:
            against.setdefault(pair.first, pair.reversed())
    return against


def _said_already(pair: Difference) -> bool:
    """Says if reward and true reward are one figure."""
    return pair.figures.get("true_reward") == pair.figures.get("reward")


def _grader(results: Json) -> str:
    return str(results.get("grader") or "the reward")


def _aim(results: Json) -> str:
    return str(results.get("true_reward_name") or "the true reward")
