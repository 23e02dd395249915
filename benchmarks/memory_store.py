"""A durable memory of 100,000 entries on one core: how long an insert and a two-layer search take.

The baseline rebuilds one bm25s index over all entries, which is what an index that cannot grow needs at every insert.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import json
import statistics
import tempfile
import time
from pathlib import Path

import bm25s

from gradus.core import child_rng
from gradus.environments.memory import NINE_BANKS, DurableMemory
from gradus.environments.memory.text import index_tokens

ENTRIES, PROBES = 100_000, 2_500  # probes cross the sealing of at least one segment of 1,024


def main() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rng = child_rng(0, "memory-store-benchmark")
    words = [f"{a}{b}{c}" for a in "bdgklmnprs" for b in ("ana", "eli", "oro", "ubi") for c in range(500)]
    names = words[:5000]
    banks = list(NINE_BANKS.banks)

    def content() -> str:
        return " ".join((rng.choice(names), *(rng.choice(words) for _ in range(rng.randint(4, 16)))))

    with tempfile.TemporaryDirectory() as folder, DurableMemory(Path(folder) / "memory") as memory:
        began = time.perf_counter()
        with memory.batch():
            for _ in range(ENTRIES):
                memory.insert(rng.choice(banks), content())
        filled = time.perf_counter() - began
        inserts = [timed(lambda: memory.insert(rng.choice(banks), content())) for _ in range(PROBES)]
        live = list(memory.entries)
        changes = [timed(lambda: change(memory, rng.choice(live), content())) for _ in range(200)]
        queries = [
            f"What is {rng.choice(names)} {rng.choice(words)} with {rng.choice(words)} and {rng.choice(words)}?"
            for _ in range(300)
        ]
        searches = [timed(lambda query=query: memory.search(query)) for query in queries]
        rebuild = timed(lambda: rebuilt([entry.content for entry in memory.entries.values()]))
    print(
        f"{ENTRIES:,} entries filled in one batch in {filled:.1f} s; times in ms, on one core, every insert flushed to disk"
    )
    print(f"{'':12}{'median':>10}{'99 %':>10}{'worst':>10}")
    for name, seconds in (("insert", inserts), ("update", changes), ("search", searches)):
        print(f"{name:12}{at(seconds, 0.5):10.2f}{at(seconds, 0.99):10.2f}{at(seconds, 1):10.2f}")
    print(f"{'rebuild':12}{1000 * rebuild:10.0f}   one bm25s index over everything, once")
    ours = at(inserts, 0.5) / 1000
    print(
        json.dumps(
            {
                "name": "memory_store",
                "ratio": rebuild / ours,
                "ours": ours,
                "other": rebuild,
                "unit": "s",
                "runs": PROBES,
            }
        )
    )


def change(memory: DurableMemory, entry_id: int, content: str) -> None:
    memory.update(memory.entries[entry_id].bank, entry_id, content)


def rebuilt(contents: list[str]) -> None:
    bm25s.BM25(method="lucene").index([index_tokens(content) for content in contents], show_progress=False)


def timed(work) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def at(seconds: list[float], share: float) -> float:
    """A quantile in milliseconds."""
    return 1000 * (max(seconds) if share == 1 else statistics.quantiles(seconds, n=100)[round(100 * share) - 1])


if __name__ == "__main__":
    main()
