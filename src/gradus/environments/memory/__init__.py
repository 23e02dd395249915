"""Building a memory from a stream of dialogue; the reward is how many questions it can answer.

``load`` is the environment; :class:`Memory` and :class:`DurableMemory` are of use without it.
"""

from gradus.environments.memory.environment import MemoryEnvironment
from gradus.environments.memory.readers.reading import RemoteReader, read_generous, read_strict
from gradus.environments.memory.spec import load, make_spec
from gradus.environments.memory.store.durable import DurableMemory
from gradus.environments.memory.store.entries import Entry, Operation, RefusedCall
from gradus.environments.memory.store.memory import Hit, Memory
from gradus.environments.memory.store.schema import NINE_BANKS, PAPER, Schema, find_schema
from gradus.environments.memory.store.transfer import ImportSummary, import_file
from gradus.environments.memory.tools.running import CallResult, run_calls

__all__ = [
    "NINE_BANKS",
    "PAPER",
    "CallResult",
    "DurableMemory",
    "Entry",
    "Hit",
    "ImportSummary",
    "Memory",
    "MemoryEnvironment",
    "Operation",
    "RefusedCall",
    "RemoteReader",
    "Schema",
    "find_schema",
    "import_file",
    "load",
    "make_spec",
    "read_generous",
    "read_strict",
    "run_calls",
]
