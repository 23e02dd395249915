"""A durable memory of 100,000 entries on one core: how long an insert and a two-layer search take.

Two clocks are shown: wall time, which counts the flush to disk and whatever else the machine is doing, and the process's own CPU
time. The baseline rebuilds one bm25s index over all entries, which is what an index that cannot grow needs at every insert.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import bm25s

from gradus.core import child_rng
from gradus_worlds.memory import NINE_BANKS, DurableMemory
from gradus_worlds.memory.text import index_tokens

ENTRIES, PROBES = 100_000, 2_500
WORDS = [f"{a}{b}{c}" for a in "bdgklmnprs" for b in ("ana", "eli", "oro", "ubi") for c in range(500)]
NAMES = WORDS[:5000]
BANKS = list(NINE_BANKS.banks)
Times = list[tuple[float, float]]  # wall and CPU seconds


def main() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rng = child_rng(0, "memory-store-benchmark")
    with tempfile.TemporaryDirectory() as folder, DurableMemory(Path(folder) / "memory") as memory:
        fill = timed(lambda: filled(memory, rng))
        measured = {
            "insert": [timed(lambda: memory.insert(rng.choice(BANKS), content(rng))) for _ in range(PROBES)],
            "update": updates(memory, rng),
            "search": searches(memory, rng),
        }
        rebuild = timed(lambda: rebuilt([entry.content for entry in memory.entries.values()]))
    show(fill, measured, rebuild)


def content(rng: Random) -> str:
    return " ".join((rng.choice(NAMES), *(rng.choice(WORDS) for _ in range(rng.randint(4, 16)))))


def filled(memory: DurableMemory, rng: Random) -> None:
    with memory.batch():
        for _ in range(ENTRIES):
            memory.insert(rng.choice(BANKS), content(rng))


def updates(memory: DurableMemory, rng: Random) -> Times:
    entries = rng.sample(list(memory.entries.values()), 200)
    return [timed(lambda entry=entry: memory.update(entry.bank, entry.id, content(rng))) for entry in entries]


def searches(memory: DurableMemory, rng: Random) -> Times:
    queries = [f"What is {rng.choice(NAMES)} {' '.join(rng.sample(WORDS, 3))}?" for _ in range(300)]
    return [timed(lambda query=query: memory.search(query)) for query in queries]


def rebuilt(contents: list[str]) -> None:
    bm25s.BM25(method="lucene").index([list(index_tokens(text)) for text in contents], show_progress=False)


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds."""
    began, spent = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - spent


def show(fill: tuple[float, float], measured: dict[str, Times], rebuild: tuple[float, float]) -> None:
    print(
        f"{ENTRIES:,} entries filled in one batch in {fill[1]:.1f} CPU s; ms on one core, every insert flushed to disk"
    )
    print(f"{'':12}" + "".join(f"{clock + ': median':>14}{'99 %':>10}{'worst':>10}" for clock in ("wall", "CPU")))
    for name, times in measured.items():
        print(f"{name:12}" + "".join(row([one[clock] for one in times]) for clock in (0, 1)))
    print(f"{'rebuild':12}{1000 * rebuild[0]:14.0f}{1000 * rebuild[1]:34.0f}   one bm25s index over everything, once")
    ours, other = statistics.median(one[1] for one in measured["insert"]), rebuild[1]
    print(
        json.dumps(
            {
                "name": "memory_store",
                "ratio": other / ours,
                "ours": ours,
                "other": other,
                "unit": "CPU s",
                "runs": PROBES,
            }
        )
    )


def row(seconds: list[float]) -> str:
    """Median, 99 % and worst in milliseconds."""
    cuts = statistics.quantiles(seconds, n=100)
    return f"{1000 * cuts[49]:14.2f}{1000 * cuts[98]:10.2f}{1000 * max(seconds):10.2f}"


if __name__ == "__main__":
    main()
