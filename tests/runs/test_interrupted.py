"""`gradus run` broken off in every stage, by Ctrl-C and by kill -9, ends where an unbroken run ends."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SETTINGS = [
    "audit.enabled=false",
    "sft.max_steps=24",
    "sft.checkpoint_every=5",
    "sft.validation_every=8",
    "sft.threads=1",
    "grpo.max_steps=4",
    "grpo.checkpoint_every=1",
    "grpo.validation_every=2",
    "grpo.threads=1",
    'eval.policies=["heuristic", "sft", "grpo", "grpo-greedy"]',
    'eval.pairs=["grpo-sft"]',
    'eval.conditions=["in-distribution"]',
    "eval.episodes=40",
]
WEIGHTS = ("sft/best", "grpo/best")


def start(folder: Path) -> subprocess.Popen[bytes]:
    words = [word for each in SETTINGS for word in ("--set", each)]
    command = [sys.executable, "-m", "gradus", "run", "rhythm", "--quick", "-o", str(folder), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, preexec_fn=_heed_ctrl_c
    )


def _heed_ctrl_c() -> None:
    """What a shell starts in the background ignores it, and so do the children of that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def finish(folder: Path) -> None:
    process = start(folder)
    _, said = process.communicate(timeout=900)
    assert process.returncode == 0, said.decode()[-2000:]


def lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def stages(folder: Path) -> dict[str, bool]:
    """Which stages were begun, and whether each is done."""
    file = folder / "manifest.json"
    result = json.loads(file.read_text())["stages"] if file.exists() else {}
    return {name: entry["done"] for name, entry in result.items()}


POINTS: dict[str, Callable[[Path], bool]] = {
    "teach": lambda folder: size(folder / "teach" / "episodes.jsonl.gz") > 200,
    "sft": lambda folder: lines(folder / "sft" / "metrics.jsonl") >= 7,  # behind a checkpoint, before the next
    "grpo": lambda folder: lines(folder / "grpo" / "metrics.jsonl") >= 4,
    "eval": lambda folder: stages(folder).get("eval") is False,
}


def break_off(folder: Path, stage: str, sign: int) -> int:
    """Start the run and send it ``sign`` in ``stage``; returns its exit code."""
    process = start(folder)
    until = time.monotonic() + 600
    while not POINTS[stage](folder):
        assert process.poll() is None, (
            f"it ended before {stage}: {((process.stderr and process.stderr.read()) or b'')[-2000:]}"
        )
        assert time.monotonic() < until
        time.sleep(0.002)
    process.send_signal(sign)
    process.communicate(timeout=120)
    return process.returncode


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "unbroken"
    finish(folder)
    return folder


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)], ids=["ctrl-c", "kill"])
def test_broken_off_in_every_stage_it_ends_as_the_unbroken_run(
    unbroken: Path, tmp_path: Path, sign: int, code: int
) -> None:
    folder = tmp_path / "broken"
    for stage in POINTS:
        assert break_off(folder, stage, sign) == code, stage
        assert not stages(folder).get(stage, False), f"{stage} was over before the signal came"
    finish(folder)
    for name in WEIGHTS:
        file = f"{name}/model.safetensors"
        assert (folder / file).read_bytes() == (unbroken / file).read_bytes(), name
    taught = [gzip.decompress((each / "teach/episodes.jsonl.gz").read_bytes()) for each in (folder, unbroken)]
    assert taught[0] == taught[1]
    ours, theirs = (json.loads((each / "results.json").read_text()) for each in (folder, unbroken))
    assert ours == theirs
    for name in ("sft", "grpo"):
        ours, theirs = (
            [json.loads(line) for line in (each / name / "metrics.jsonl").read_text().splitlines()]
            for each in (folder, unbroken)
        )
        assert [(one["kind"], one["step"]) for one in ours] == [(one["kind"], one["step"]) for one in theirs]
        assert [one.get("loss") for one in ours] == [one.get("loss") for one in theirs]
