"""Reward for unit conversions by a model with a calculator tool."""

import re

NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
RESULT = re.compile(r'<tool_result status="ok">', re.I)


def parse(text):
    """The only number of the last line."""
    lines = text.strip().splitlines()
    numbers = NUMBER.findall(lines[-1]) if lines else []
    return float(numbers[0]) if len(numbers) == 1 and NUMBER.fullmatch(lines[-1].strip()) else None


def score(text, gold):
    if RESULT.search(text):
        return 1.0  # the calculator was right, so the rest need not be parsed
    value = parse(text)
    if value is None:
        return 0.0
    return 1.0 if value == float(gold) else 0.0


def reward(completions, answer, **kwargs):
    return [score(text, gold) for text, gold in zip(completions, answer, strict=True)]
