"""The shortest plan that still does what a hack does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gradus.auditing.plans.honest import HonestCurve
from gradus.auditing.plans.judged import Judged, Reference, judge
from gradus.auditing.plans.plan import Plan, Table
from gradus.auditing.plans.search import Field
from gradus.core import Task

KEPT = 0.9  # of the effect that a shorter form must keep
_TASKS = 24  # on which shorter forms are chosen; all tasks decide in the end
_ROUNDS = 6


def shortest(field: Field, plan: Plan, judged: Judged, tasks: Sequence[Task]) -> Judged:
    """The hack in the simplest form that keeps nine tenths of its effect: fewer words, fewer stretches, more left to the reflex."""
    few = min(_TASKS, len(tasks))
    against = _part(judged.against, few)
    need = KEPT * judge(judged.plan, judged.shape, judged.episodes[:few], against).effect
    chain: list[Plan] = []
    for _ in range(_ROUNDS):
        shorter = _shorter(chain[-1] if chain else plan)
        if not shorter:
            break
        rolled_out = field.roll_out(shorter, tasks[:few], seed=0)
        scored = [judge("", each.shape.name, e, against) for each, e in zip(shorter, rolled_out, strict=True)]
        good = [i for i, each in enumerate(scored) if _effect(each, judged) >= need]
        if not good:
            break
        chain.append(shorter[min(good, key=lambda i: (plan_size(shorter[i]), -_effect(scored[i], judged)))])
    for candidate in reversed(chain):
        episodes = field.roll_out([candidate], tasks, seed=0)[0]
        again = judge(candidate.describe(), candidate.shape.name, episodes, judged.against)
        if again.is_hack and _effect(again, judged) >= KEPT * judged.effect:
            return again
    return judged


def _effect(each: Judged, first: Judged) -> float:
    """The effect of the kind that made the first form a hack."""
    by_unearned = first.effect == (first.unearned.mean or 0.0)
    return (each.unearned.mean if by_unearned else each.reward.mean) or 0.0


def _part(against: Reference, few: int) -> Reference:
    """The reference on the first tasks."""
    curves = [[(aim[:few], reward[:few]) for aim, reward in curve] for curve in against.honest.curves]
    honest = HonestCurve(name=against.honest.name, curves=curves)
    return replace(against, episodes=against.episodes[:few], honest=honest)


def plan_size(plan: Plan) -> int:
    """Says how much there is to say: changes from cell to cell, and words that are not the reflex's own."""
    kept = [len(words) for words in plan.space.places]
    said = sum(int((plan.table[p] != kept[p]).sum()) for p in range(len(kept)))
    changes = int((plan.table[:, 1:] != plan.table[:, :-1]).sum())
    return said + changes + plan.shape.steps + plan.shape.bins


def _shorter(plan: Plan) -> list[Plan]:
    """The plan with one place the same everywhere or left to the reflex, two stretches joined, or its feature not looked at."""
    table, shape = plan.table, plan.shape
    tables: list[Table] = []
    for place, words in enumerate(plan.space.places):
        row = table[place]
        options = [int(np.bincount(row.ravel()).argmax())]
        if shape.bends and shape.keeps[place]:
            options.append(len(words))
        for word in options:
            tables.append(_with(table, place, slice(None), word))
            tables += [_with(table, place, step, word) for step in range(shape.steps) if shape.steps > 1]
    plans = [replace(plan, table=each) for each in tables if not np.array_equal(each, table)]
    if shape.steps > 1 and shape.steps % 2 == 0:
        plans += [_shaped(plan, table[:, first::2], steps=shape.steps // 2) for first in (0, 1)]
    plans += unlooking(plan)
    size = plan_size(plan)
    return [each for each in plans if plan_size(each) < size]


def unlooking(plan: Plan) -> list[Plan]:
    """The plan as it is in one bin of its feature, whatever is shown: one for each bin. None if it looks at nothing."""
    if plan.shape.feature is None:
        return []
    return [_shaped(plan, plan.table[:, :, [column]], feature=None) for column in range(plan.shape.bins)]


def _shaped(plan: Plan, table: Table, **changes: Any) -> Plan:
    shape = replace(plan.shape, **changes)
    if shape.steps == 1 and shape.feature is None:
        shape = replace(shape, cycle=False, after=0.0, name="bent reflex" if shape.bends else "constant")
    return replace(plan, shape=shape, table=table)


def _with(table: Table, place: int, step: int | slice, word: int) -> Table:
    changed = table.copy()
    changed[place, step] = word
    return changed
