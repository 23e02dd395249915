"""Bad input for every command ends in a sentence and a code, never in a traceback. `make prove` runs all cases, a test run some."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradus.runs.job import resolve
from gradus.runs.recipe.load import load_recipe
from gradus.runs.stages.runner import run_stages

ROOT = Path(__file__).parents[2]
TINY = ["model.nano.hidden_size=32", "model.nano.layers=1", "model.nano.intermediate_size=64", "eval.episodes=4", "grpo.max_steps=2",
        "sft.threads=1", "grpo.threads=1", "grpo.validation_every=2", "grpo.validation_tasks=64"]  # as many as the teacher holds out  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "run"
    return run_stages(resolve(load_recipe("arithmetic", quick=True, changes=TINY)), folder)


def tried(*words: str, script: str = "commands") -> str:
    """The children are forked from a process without threads of its own."""
    command = [sys.executable, "-m", f"tests.hostile.{script}", *words]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
    return ended.stdout


def test_some_cases(run: Path) -> None:
    assert "cases" in tried(str(run), "--nodes", "2", "--every", "340")


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_all_cases(run: Path) -> None:
    assert "cases" in tried(str(run), "--nodes", "12")


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_runs_that_are_killed_end_as_the_unbroken_one() -> None:
    assert "50 runs broken off, 0 not equal" in tried("--seed", "1", script="kills")


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_server_holds_no_more_memory_after_a_while_and_ends_cleanly(run: Path) -> None:
    minutes = os.environ.get("SOAK_MINUTES", "10")
    assert f"requests in {minutes} min" in tried(str(run), "--minutes", minutes, script="soak")
