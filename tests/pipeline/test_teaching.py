"""Teacher episodes do not depend on how many processes play them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gradus.core import ConfigError
from gradus.environments import load
from gradus.pipeline import make_policy, teach


def test_workers_write_the_same_file(tmp_path: Path):
    """Eighty tasks of arithmetic are too few for workers, 320 are enough; a file is also finished by another number of them."""
    spec = load("arithmetic")
    told: list[tuple[int, int]] = []
    for name, workers in (("alone", 1), ("three", 3)):
        path = tmp_path / name
        teach(spec, make_policy(spec, "gold"), episodes=70, path=path, grader=spec.grader(), workers=workers)
        summary = teach(
            spec,
            make_policy(spec, "gold"),
            episodes=390,
            path=path,
            grader=spec.grader(),
            workers=workers,
            progress=lambda done, total: told.append((done, total)),
        )
        assert summary.played == 320
        assert summary.failed == 0
    assert (tmp_path / "alone").read_bytes() == (tmp_path / "three").read_bytes()
    assert told[-5:] == [(done, 390) for done in (134, 198, 262, 326, 390)]


def test_no_worker_at_all_is_refused(tmp_path: Path):
    spec = load("arithmetic")
    with pytest.raises(ConfigError, match="workers must be at least 1, got 0"):
        teach(spec, make_policy(spec, "gold"), episodes=2, path=tmp_path / "x", grader=spec.grader(), workers=0)
    assert not (tmp_path / "x").exists()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to find a process's children")
def test_workers_end_with_the_process_that_is_killed(tmp_path: Path):
    path = tmp_path / "t.jsonl"
    command = ["-m", "gradus", "teach", "rhythm", "-n", "5000", "--workers", "2", "--out", str(path)]
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL) as parent:
        wait_until(path.exists)
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        parent.kill()
    assert len(children) >= 2
    wait_until(lambda: not any(alive(child) for child in children))


def alive(process: str) -> bool:
    """Whether it runs; what has ended may wait to be collected."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(true: Callable[[], bool]) -> None:
    """Within a minute."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)
