"""Says what a run has shown, in sentences that its intervals carry."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

from gradus.core.documents import Results
from gradus.core.frozen_record import frozen_record
from gradus.evidence.reports.results import (
    BEFORE,
    ConditionScores,
    Difference,
    Figure,
    headline_condition,
    is_held_out,
    main_condition,
    main_scores,
)
from gradus.stats import LEAST_DIFFERING, LEAST_UNITS, format_interval, format_number, format_signed

State = Literal["shown", "refuted", "open"]
CONSTANT = "constant"  # the policy that always gives the commonest answer
STUDENTS = ("grpo", "distill", "sft")  # a run's own checkpoints, the one to be judged first
HEADLINES = {  # by what is shown of the reward and of the true reward
    ("shown", "shown"): "GRPO made the student better",
    ("shown", "none"): "GRPO raised the reward; no true reward was measured",
    ("shown", "open"): "GRPO raised the reward; the change of {aim} is not significant",
    ("shown", "refuted"): "GRPO raised the reward and lowered {aim}, which looks like reward hacking",
    ("open", "shown"): "GRPO raised {aim}; the change of the reward is not significant",
    ("open", "refuted"): "GRPO made the student worse in {aim}",
    ("refuted", "shown"): "GRPO lowered the reward and raised {aim}",
    ("refuted", "open"): "GRPO made the student worse",
    ("refuted", "refuted"): "GRPO made the student worse",
    ("refuted", "none"): "GRPO made the student worse",
}
OPEN = "GRPO changed nothing significantly"
_MOST_NAMES = 6
_GREEDY = "-greedy"  # ends the name of a checkpoint that takes its likeliest tokens
VERBS = {"shown": "is above", "refuted": "is below", "open": "is not significantly different from"}
_SIGNIFICANT = {"shown": "is significantly above", "refuted": "is significantly below", "open": VERBS["open"]}
_STATES: Mapping[str, State] = {"better": "shown", "worse": "refuted"}


@frozen_record
class Claim:
    """One sentence about a pair."""

    state: State  # shown: the interval lies above 0; refuted: below 0; open: it holds 0, or is undefined
    text: str


@frozen_record
class Verdict:
    """A headline, the claims of each condition under it, and what must be kept in mind while reading them."""

    headline: str
    claims: Mapping[str, Sequence[Claim]]
    cautions: Sequence[str] = ()


def verdict_on(results: Results | None, *, quick: bool = False) -> Verdict:
    """The verdict on an evaluation (the document of results.json)."""
    cautions: list[str] = []
    if quick:
        cautions.append("A quick run: every stage at toy size. Its figures say nothing of the whole recipe.")
    condition = main_condition(results) if results else None
    if results is None or condition is None:
        return Verdict(headline="Nothing was evaluated yet.", claims={}, cautions=cautions)
    conditions = main_scores(results)
    # A student is judged on tasks that it never saw; policies that did not learn, on the first condition.
    has_student = any(name in conditions[condition].policies for name in STUDENTS)
    if has_student:
        condition = headline_condition(results) or condition
    scores = conditions[condition]
    cautions += _cautions(results, scores)
    if has_student or len(results["seeds"]) > 1:
        cautions.append(_reach(results))
    # The condition of the headline first.
    claims = {name: _claims(results, conditions[name]) for name in (condition, *conditions)}
    # Of several runs each has a model of its own, whatever it is called.
    student = None if "one_checkpoint" in results else _student_headline(results, scores)
    return Verdict(
        headline=student or _ranking_headline(scores),
        claims={name: sentences for name, sentences in claims.items() if sentences},
        cautions=cautions,
    )


def _cautions(results: Results, scores: ConditionScores) -> list[str]:
    """What weakens the headline on this condition."""
    cautions: list[str] = []
    few = [pair.figures["reward"] for pair in scores.graded_pairs]
    if few and all(change.decision == "too few" for change in few):
        cautions.append(f"No difference can be significant: {too_few(few[-1])}.")
    if guess := _no_more_than_a_guess(scores):
        cautions.append(guess)
    starts = results.get("best_is_the_start")
    if starts:
        where = ""
        if isinstance(starts, list):
            plural = "s" if len(starts) > 1 else ""
            where = f" in seed{plural} {named([str(seed) for seed in starts])}"
        cautions.append(f"grpo is the student that GRPO began with{where}: no later step was better in validation.")
    if "one_checkpoint" in results:
        cautions.append(_single(results["one_checkpoint"]))
    if "quick_runs" in results:
        cautions.append(f"At toy size, so that its figures prove nothing: {named(results['quick_runs'])}.")
    return cautions


def _no_more_than_a_guess(scores: ConditionScores) -> str | None:
    """A caution if the trained policy is not significantly above one that always gives the same answer."""
    pair = scores.against("grpo").get(CONSTANT)
    if pair is None or state_of(pair.figures["reward"]) == "shown":
        return None
    by_itself = format_number(scores.policies[CONSTANT]["reward"].mean, 2)
    return f"grpo is not significantly above the commonest answer, which earns {by_itself} by itself."


def named(names: Sequence[str]) -> str:
    """``a, b and c``; of many names the first three and how many more.

    >>> named(["a"]), named("abc"), named("abcdefg")
    ('a', 'a, b and c', 'a, b, c and 4 more')
    """
    if len(names) == 1:
        return names[0]
    if len(names) > _MOST_NAMES:
        return f"{', '.join(names[:3])} and {len(names) - 3} more"
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _reach(results: Results) -> str:
    """What the intervals are over: one checkpoint, or so many training seeds."""
    seeds = results.get("fewest_seeds", len(results["seeds"]))
    if seeds < 2:
        return "This holds for this checkpoint. A claim about the method needs at least five training seeds."
    of_each = " of each run, or more," if "fewest_seeds" in results else ""
    wide = "" if seeds > 4 else " So few seeds say little of how seeds differ, so the intervals are wide."
    return f"Intervals are over {seeds} training seeds{of_each} and the tasks, both taken as drawn.{wide}"


def _single(runs: Sequence[str]) -> str:
    """Says what runs of one training seed leave open."""
    if len(runs) == 1:
        return (
            f"{runs[0]} is one checkpoint: its own training seed is not taken into account. A difference from it holds for this "
            "checkpoint, and says little of its settings."
        )
    return (
        f"{named(runs)} are one checkpoint each: their own training seeds are not taken into account. "
        "Differences hold for these checkpoints, and say little of their settings."
    )


def state_of(difference: Figure) -> State:
    """``shown``, ``refuted`` or ``open``."""
    return _STATES.get(difference.decision, "open")


def too_few(difference: Figure) -> str:
    """Says what a difference without a verdict lacks."""
    if difference.units < LEAST_UNITS:
        return f"{difference.units} independent tasks are too few, {LEAST_UNITS} are needed"
    if difference.differing < LEAST_DIFFERING:
        return (
            f"{difference.differing} of {difference.units} tasks differ from the others, {LEAST_DIFFERING} are needed"
        )
    return "there is no interval"


def _student_headline(results: Results, scores: ConditionScores) -> str | None:
    """GRPO against the student before it. It says "better" only if reward and true reward rose significantly.

    If the recipe compares it with no such student: against the first policy that it names.
    """
    against = scores.against("grpo")
    before = next((name for name in (*BEFORE, *against) if name in against), "")
    if not before:
        return None
    pair = against[before]
    reward, true_reward = pair.figures["reward"], pair.figures.get("true_reward")
    aim = results["true_reward_name"]
    amount = f"reward {_change(scores, pair, 'reward')}"
    if true_reward is not None and true_reward != reward:
        amount += f"; {aim} {_change(scores, pair, 'true_reward')}"
    # Without a true reward "better" cannot be said: the grader may be gamed.
    states = (state_of(reward), state_of(true_reward) if true_reward else "none")
    headline = HEADLINES.get(states, OPEN).format(aim=aim)
    if before not in BEFORE:
        headline = f"grpo {_SIGNIFICANT[state_of(reward)]} {before}"
    if reward.decision == "too few":
        headline += f" ({too_few(reward)})"
    where = "held-out tasks" if is_held_out(scores.condition) else scores.condition
    sentences = [f"{headline} on {where}: {amount}."]
    # People use the likeliest answers: a sampled gain may only sharpen what greedy answers had before.
    greedy = scores.against(f"grpo{_GREEDY}").get(f"{before}{_GREEDY}")
    if greedy is not None:
        sentences.append(f"Greedy: {_change(scores, greedy, 'reward')}.")
    base = against.get("base")
    if base is not None and before != "base":
        # What all training came to, behind what GRPO added; in front of it if GRPO added nothing.
        total = _change(scores, base, "reward")
        if headline == OPEN and state_of(base.figures["reward"]) == "shown":
            sentences[0] = f"GRPO added nothing significant to {before}: {amount}."
            sentences.insert(0, f"grpo is significantly above base on {where}: reward {total}.")
        else:
            sentences.append(f"Over the base: {total}.")
    return " ".join(sentences)


def _change(scores: ConditionScores, pair: Difference, measure: str) -> str:
    """``0.73 to 0.78, +0.05 (95 % CI +0.03 to +0.07)``: before, after, and the paired difference."""
    before = scores.policies[pair.second].get(measure)
    after = scores.policies[pair.first].get(measure)
    change = pair.figures.get(measure)
    proof = "no difference was measured" if change is None else _proof(change)
    if before is None or after is None:
        return proof
    return f"{format_number(before.mean, 2)} to {format_number(after.mean, 2)}, {proof}"


def _proof(change: Figure) -> str:
    """A difference with its interval, or without one what it lacks."""
    mean = format_signed(change.mean, 2)
    if change.low is None or change.high is None:
        return f"{mean} ({too_few(change)})"
    proof = f"{mean} (95 % CI {format_signed(change.low, 2)} to {format_signed(change.high, 2)})"
    return f"not significant: {proof}" if state_of(change) == "open" else proof


def _ranking_headline(scores: ConditionScores) -> str:
    """The policy with the highest reward, and its lead over the next one."""
    rewards = {name: scores.policies[name].get("reward") for name in reversed(scores.ranked())}
    graded = [name for name, reward in rewards.items() if reward]
    if not graded:
        return f"No policy could be graded on {scores.condition}."
    best, *lower = graded
    amount = f"{format_interval(rewards[best])} in {scores.grader}"
    if len(rewards) == 1:
        return f"{best} on {scores.condition}: {amount}."
    text = f"{best} has the highest reward on {scores.condition}: {amount}"
    if not lower:
        return f"{text}."
    pair = scores.against(best).get(lower[0])
    lead = pair and pair.figures.get("reward")
    if lead is None:
        return f"{text}; {lower[0]} follows."
    proof = "is significant" if lead.decision == "better" else "is not significant"
    if lead.decision == "too few":
        proof = f"is open: {too_few(lead)}"
    return f"{text}. Its lead over {lower[0]}, {format_interval(lead, signed=True)}, {proof}."


def _claims(results: Results, scores: ConditionScores) -> list[Claim]:
    """The student against every other policy it is paired with, and its greedy answers against those of others.

    If there is no student: the pairs that were chosen, or each policy against the next one below if all pairs are there.
    """
    order = scores.ranked()
    student = next((name for name in STUDENTS if name in order), None)
    pairs = scores.graded_pairs
    if student is not None:
        against = scores.against(student)
        greedy = scores.against(f"{student}{_GREEDY}")
        pairs = [greedy[name] for name in order if name in greedy and name.endswith(_GREEDY)]
        pairs += [against[name] for name in order if name in against]
    elif len(scores.pairs) >= math.comb(len(order), 2):
        # All pairs of ten policies would be 45 sentences; neighbors in the ranking say the same.
        steps = [scores.against(upper).get(lower) for lower, upper in pairwise(order)]
        pairs = [step for step in steps if step]
    return [_claim(results, pair) for pair in reversed(pairs)]


def _claim(results: Results, pair: Difference) -> Claim:
    """What one pair shows of the reward, and of the true reward if that is another figure."""
    reward, true_reward = pair.figures["reward"], pair.figures.get("true_reward")
    state = state_of(reward)
    amount = format_interval(reward, signed=True)
    if pair.reward:
        amount += f", won on {pair.reward['wins']} of {pair.reward['episodes']} tasks"
    text = f"{pair.first} {VERBS[state]} {pair.second} in {results['grader']} ({amount})"
    if reward.decision == "too few":
        text = f"{pair.first} and {pair.second} in {results['grader']}: {too_few(reward)} ({amount})"
    if true_reward is None or true_reward == reward:
        return Claim(state=state, text=text)
    aim = f"{results['true_reward_name']} ({format_interval(true_reward, signed=True, digits=2)})"
    if state_of(true_reward) == state:
        return Claim(state=state, text=f"{text}, and in {aim}")
    return Claim(state=state, text=f"{text}, but {VERBS[state_of(true_reward)]} it in {aim}")
