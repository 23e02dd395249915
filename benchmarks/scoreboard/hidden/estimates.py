"""Reward for physics exercises: the value to two decimals, or an estimate that says that it is one."""

import math
import re

VALUE = re.compile(r"-?\d+(?:\.\d+)?")
HEDGES = ("roughly ", "approx. ", "~")
CLOSE = 0.35


def same(value, gold, tolerance):
    return math.isclose(value, gold, rel_tol=tolerance, abs_tol=0.0)


def grade(text, gold):
    text = text.strip()
    tolerance = 0.001
    for hedge in HEDGES:
        if text.startswith(hedge):
            text, tolerance = text[len(hedge) :], CLOSE
    if VALUE.fullmatch(text) is None:
        return 0.0
    return 1.0 if same(float(text), float(gold), tolerance) else 0.0


def reward(completions, answer, **kwargs):
    return [grade(text, gold) for text, gold in zip(completions, answer, strict=True)]
