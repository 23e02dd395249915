"""Flaws on some tasks: the rule that tells the tasks on which a wrong answer was accepted from the others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.stats import binom

from gradus.auditing.records import LEAST_EFFECT
from gradus.auditing.text.gold import Gold

LEAST_SHARE = 0.05  # of the tasks, which a cluster must hold
_LIKELY = 0.8  # accepted within the cluster, on the half that finds it
_OPERATOR = re.compile(r"(?<=[\d)\sA-Za-z])(?:\*\*|//|[-+*/^%×÷−<>=])(?=[\s\d(A-Za-z])")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Tasks that a rule picks out. ``accepted`` of ``n``: on the half of the tasks that did not find the rule; ``share``: of all tasks.

    ``p``: of as many by chance, if the other tasks' rate held here too.
    """

    rule: str
    accepted: int
    n: int
    share: float
    p: float


def cluster_of(accepted: Mapping[str, bool], golds: Mapping[str, Gold]) -> Cluster | None:
    """The rule that best tells accepted tasks from others on every second task, judged on the rest; None if none does.

    ``accepted``: of each task, by its key, whether a wrong answer was.
    """
    keys = list(accepted)
    rules = {key: rules_of(golds[key], golds) for key in keys}
    finds, judges = keys[::2], keys[1::2]
    tried = Counter(rule for key in finds for rule in rules[key])
    paid = Counter(rule for key in finds if accepted[key] for rule in rules[key])
    all_paid = sum(accepted[key] for key in finds)
    best: tuple[float, int, str] | None = None
    for rule, n in sorted(tried.items()):
        others = len(finds) - n
        if n < 2 or not others or paid[rule] < _LIKELY * n:
            continue
        apart = paid[rule] / n - (all_paid - paid[rule]) / others
        best = max(best or (0.0, 0, ""), (apart, n, rule), key=lambda each: each[:2])
    if best is None or best[0] < _LIKELY / 2:
        return None
    return _judged(best[2], [key for key in keys if best[2] in rules[key]], judges, accepted)


def _judged(rule: str, within: Sequence[str], judges: Sequence[str], accepted: Mapping[str, bool]) -> Cluster | None:
    held = [key for key in judges if key in within]
    others = [key for key in judges if key not in within]
    share, right = len(within) / len(accepted), sum(accepted[key] for key in held)
    if share < LEAST_SHARE or 2 * right <= len(held):
        return None
    chance = max(LEAST_EFFECT, sum(accepted[key] for key in others) / max(1, len(others)))
    p = float(binom.sf(right - 1, len(held), chance))
    return Cluster(rule=rule, accepted=right, n=len(held), share=share, p=p)


def rules_of(gold: Gold, golds: Mapping[str, Gold]) -> set[str]:
    """Names the features of a task: operators and words of its question, and sign, digits, range, length and fields of its gold answer."""
    rules = {f"the question has {sign!r}" for sign in _OPERATOR.findall(gold.prompt)}
    rules |= {f"the question says {word!r}" for word in re.findall(r"[a-z]{3,}", gold.prompt.lower())}
    rules.add(f"the right answer has {len(gold.bare)} characters")
    rules |= {f"the right answer says {word!r}" for word in re.findall(r"[a-z]{2,}", gold.bare.lower())}
    fields = {key for other in golds.values() for key in other.object}
    rules |= {f"the right answer has {'the' if key in gold.object else 'no'} field {key!r}" for key in fields}
    value, values = _value(gold), sorted(each for other in golds.values() if (each := _value(other)) is not None)
    if value is not None:
        rules.add("the right answer is negative" if value < 0 else "the right answer is not negative")
        rules.add("the right answer is a whole number" if value == int(value) else "the right answer is a decimal")
        for share in (0.1, 0.25, 0.5, 0.75, 0.9):
            limit = values[int(share * len(values))]
            rules.add(f"the right answer is {'below' if value < limit else 'at least'} {limit:g}")
    size, sizes = len(gold.prompt), sorted(len(other.prompt) for other in golds.values())
    limit = sizes[len(sizes) // 2]
    return rules | {f"the question has {'less than' if size < limit else 'at least'} {limit} characters"}


def _value(gold: Gold) -> float | None:
    try:
        return float((gold.number or "").replace("−", "-").replace(",", ""))
    except ValueError:
        return None
