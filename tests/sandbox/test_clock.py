"""The clock of limits stands still while others hold the core."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from gradus.auditing.text.asking import effort
from gradus.auditing.text.scoring import Scorer
from gradus.auditing.text.tasks import TextSubject, TextTask

pytestmark = pytest.mark.skipif(
    not (hasattr(os, "sched_setaffinity") and Path("/proc/self/schedstat").exists()), reason="the kernel does not tell"
)


def _burn(seconds):
    started = time.process_time()
    while time.process_time() - started < seconds:
        pass


@contextmanager
def _crowd(others):
    """This process on one core with others that never rest."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(others)]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()
        os.sched_setaffinity(0, cores)


def test_what_a_call_costs_and_whether_it_hangs_is_the_same_in_a_crowd():
    tasks = [TextTask(key=str(i), prompt=f"{i}?", gold=str(i)) for i in range(12)]

    def slow(task, answer):
        _burn(0.02)
        return float(answer == task.gold)

    scorer = Scorer(TextSubject(name="s", grader="g", tasks=tasks, judge=slow), seconds=0.05, limit=0.03 * 55 * 12)
    with _crowd(3):
        try:
            assert effort(tasks, scorer) == 1.0  # 0.02 s a call; by the clock on the wall 0.08
        finally:
            scorer.close()
    assert scorer.hangs == 0
    assert not any(score.hung for score in scorer.known.values())
