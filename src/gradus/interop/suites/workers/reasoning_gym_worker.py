"""Runs in a process of its own: makes reasoning-gym's items and scores answers. Nothing of Gradus is imported."""

from functools import lru_cache

import reasoning_gym
from reasoning_gym.factory import DATASETS

BLOCK = 1000  # items of one data set object; item n is number n % BLOCK of the data set with seed n - n % BLOCK


@lru_cache(maxsize=32)
def _dataset(name, options, block):
    return reasoning_gym.create_dataset(name, seed=block * BLOCK, size=BLOCK, **dict(options))


@lru_cache(maxsize=4096)
def _entry(name, options, number):
    return _dataset(name, options, number // BLOCK)[number % BLOCK]


def _frozen(options):
    return tuple(sorted((key, tuple(value) if isinstance(value, list) else value) for key, value in options.items()))


def names():
    """All data sets but ``composite``, which mixes others and takes them as objects."""
    classes = {name: cls for name, (cls, _) in sorted(DATASETS.items()) if name != "composite"}
    return {name: (cls.__doc__ or "").strip().split("\n")[0] for name, cls in classes.items()}


def item(name, options, number):
    entry = _entry(name, _frozen(options), number)
    return {"question": entry["question"], "answer": entry["answer"]}


def score(name, options, number, answer):
    options = _frozen(options)
    return float(_dataset(name, options, number // BLOCK).score_answer(answer, _entry(name, options, number)))


HANDLERS = {"names": names, "item": item, "score": score}
