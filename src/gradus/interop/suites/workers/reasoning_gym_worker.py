"""Runs in a process of its own: makes reasoning-gym's items and scores answers. Nothing of Gradus is imported."""

import base64
import pickle
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
    """All data sets but ``composite``, which mixes others and takes them as objects."""
    known = {name: cls for name, (cls, _) in sorted(DATASETS.items()) if name != "composite"}
    return {name: (cls.__doc__ or "").strip().split("\n")[0] for name, cls in known.items()}


def item(name, options, number):
    started = time.process_time()
    entry = _entry(name, _frozen(options), number)
    seconds = time.process_time() - started
    try:
        whole = base64.b64encode(pickle.dumps(entry)).decode()
    except Exception:  # some sets may put what cannot be stored into an entry
        whole = None
    return {"question": entry["question"], "answer": entry["answer"], "seconds": seconds, "whole": whole}


def score(name, options, number, answer, whole=None):
    """``whole``: the entry as ``item`` gave it, so that another process need not make it again."""
    entry = pickle.loads(base64.b64decode(whole)) if whole else _entry(name, _frozen(options), number)
    return float(_dataset(name, _frozen(options), number // BLOCK).score_answer(answer, entry))


HANDLERS = {"names": names, "item": item, "score": score}
