"""Runs in a process of its own: makes reasoning-gym's items and scores answers. Nothing of Gradus is imported."""

import time
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
    return {name: (cls.__doc__ or "").strip().split("\n")[0] for name, (cls, _) in sorted(DATASETS.items())}


def item(name, options, number):
    started = time.process_time()
    entry = _entry(name, _frozen(options), number)
    return {"question": entry["question"], "answer": entry["answer"], "seconds": time.process_time() - started}


def score(name, options, number, answer):
    entry = _entry(name, _frozen(options), number)
    return float(_dataset(name, _frozen(options), number // BLOCK).score_answer(answer, entry))


HANDLERS = {"names": names, "item": item, "score": score}
