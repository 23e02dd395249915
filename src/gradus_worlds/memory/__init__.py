"""Building a memory from a stream of dialogue; the reward is how many questions it can answer.

``load`` is the environment; :class:`Memory` is of use without it.
"""

from gradus_worlds.memory.environment import MemoryEnvironment
from gradus_worlds.memory.readers.reading import read_generous, read_strict
from gradus_worlds.memory.spec import load
from gradus_worlds.memory.store.memory import NINE_BANKS, PAPER, Memory, RefusedCall
from gradus_worlds.memory.tools.running import run_calls

__all__ = [
    "NINE_BANKS",
    "PAPER",
    "Memory",
    "MemoryEnvironment",
    "RefusedCall",
    "load",
    "read_generous",
    "read_strict",
    "run_calls",
]
