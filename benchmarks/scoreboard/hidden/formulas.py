"""Reward for expressions that must reach a number: the expression is computed, without builtins."""

import math
import re

ALLOWED = re.compile(r"[\w\s.+*/()-]{1,80}")


def names(gold):
    known = {"pi": math.pi, "sqrt": math.sqrt}
    known["goal_value"] = gold
    return known


def compute(expression, gold):
    if not ALLOWED.fullmatch(expression) or "**" in expression:
        return None
    try:
        return float(eval(expression, {"__builtins__": {}}, names(gold)))
    except Exception:
        return None


def reward(completions, answer, **kwargs):
    rewards = []
    for completion, gold in zip(completions, answer, strict=True):
        value = compute(completion.strip(), float(gold))
        rewards.append(1.0 if value is not None and abs(value - float(gold)) < 1e-6 else 0.0)
    return rewards
