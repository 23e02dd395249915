"""Training on a Tinker server as on this machine: one update, GRPO on small sums, and kills of both sides."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import gradus
from tinker_servers import HERE, Python, environment, program, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
FORMS = [
    "What is {} + {}?",
    "Add {} and {}.",
    "{} + {} = ?",
    "Sum of {} and {}?",
    "Compute {} + {}.",
    "{} plus {} is what?",
]
SETTINGS = ["grpo.groups=16", "grpo.lora.rank=8", "grpo.lr=2e-3", "grpo.validation_every=0", "grpo.checkpoint_every=3"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("rows") / "sums.jsonl"
    sums = [(form.format(a, b), str(a + b)) for form in FORMS for a in range(6) for b in range(6)]
    file.write_text("".join(json.dumps({"question": question, "answer": answer}) + "\n" for question, answer in sums))
    return file


@pytest.fixture(scope="module")
def base(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A nano model that gets some of the sums right. It is saved as a Llama, which other servers load too."""
    out = tmp_path_factory.mktemp("base")
    gradus("sft", rows, "--out", out, "--set", "sft.max_steps=130")
    return out / "sft" / "final"


def command(rows: Path, base: Path, url: str, out: Path, steps: int, *settings: str) -> list[str]:
    options = [word for setting in (*SETTINGS, *settings, f"grpo.max_steps={steps}") for word in ("--set", setting)]
    words = ["grpo", rows, "--model", base, "--trainer", f"tinker:{url}", "--out", out, *options]
    return ["-m", "gradus", *map(str, words)]


def steps_of(out: Path) -> list[dict[str, Any]]:
    file = out / "grpo" / "metrics.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    return [record for record in records if record["kind"] == "step"]


def test_an_update_is_the_local_one_from_the_same_adapter(sdk_python: Python, base: Path, tmp_path: Path) -> None:
    python = sdk_python("0.24.1")
    with serving(python, base, tmp_path) as (url, _):
        ran = program(python, HERE / "tinker_update.py", base, url, tmp_path)
    assert ran.returncode == 0, ran.stderr[-2000:]
    check_update(json.loads(ran.stdout.splitlines()[-1]))


def check_update(figures: dict[str, Any]) -> None:
    assert figures["same_start"] < 1e-4
    assert figures["moved"] > 0.05
    assert figures["difference"] < 1e-4


@pytest.mark.skipif("GRADUS_SKYRL_URL" not in os.environ, reason="needs SkyRL's server, which keeps its files here")
def test_an_update_on_skyrl_is_the_local_one(sdk_python: Python) -> None:
    """GRADUS_SKYRL_URL, _MODEL and _CHECKPOINTS name the server, its base model and its ``--checkpoints-base``."""
    url, model, checkpoints = (os.environ[f"GRADUS_SKYRL_{name}"] for name in ("URL", "MODEL", "CHECKPOINTS"))
    ran = program(sdk_python("0.24.1"), HERE / "tinker_update.py", model, url, checkpoints)
    assert ran.returncode == 0, ran.stderr[-2000:]
    figures = json.loads(ran.stdout.splitlines()[-1])
    assert figures["reduction"] == "mean over tokens, then sequences"
    check_update(figures)


def test_grpo_learns_small_sums(sdk_python: Python, rows: Path, base: Path, tmp_path: Path) -> None:
    python, out = sdk_python("0.24.1"), tmp_path / "run"
    with serving(python, base, tmp_path / "served") as (url, _):
        ran = program(python, *command(rows, base, url, out, 60))
    assert ran.returncode == 0, ran.stderr[-2000:]
    rewards = [step["reward_mean"] for step in steps_of(out)]
    early, late = np.array(rewards[:15]), np.array(rewards[-15:])
    error = np.sqrt(early.var(ddof=1) / 15 + late.var(ddof=1) / 15)
    assert late.mean() - early.mean() > 2 * error


def test_a_run_goes_on_after_kills_of_either_side(sdk_python: Python, rows: Path, base: Path, tmp_path: Path) -> None:
    python, out = sdk_python("0.24.1"), tmp_path / "run"
    for end in ("client", "server"):
        with serving(python, base, tmp_path / "served") as (url, process):
            words = [str(python), *command(rows, base, url, out, 14, "grpo.groups=4")]
            client = subprocess.Popen(words, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            done = len(steps_of(out))
            while len(steps_of(out)) < done + 5 and client.poll() is None:
                time.sleep(0.1)
            (client if end == "client" else process).kill()
            said = client.communicate(timeout=200)[1].decode()
            assert "Traceback" not in said
    assert "was lost" in said
    with serving(python, base, tmp_path / "served") as (url, _):
        ran = program(python, *command(rows, base, url, out, 14, "grpo.groups=4"))
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert [step["step"] for step in steps_of(out)] == list(range(1, 15))


REFUSALS: Sequence[tuple[str, str]] = [
    ("grpo.sampling.temperature=0.7", "temperature = 1"),
    ("grpo.entropy_coef=0.1", "entropy_coef = 0"),
]


@pytest.mark.parametrize(("setting", "words"), REFUSALS)
def test_a_setting_that_the_server_cannot_keep_is_refused(
    sdk_python: Python, rows: Path, base: Path, tmp_path: Path, setting: str, words: str
) -> None:
    ran = program(sdk_python("0.24.1"), *command(rows, base, "http://127.0.0.1:9", tmp_path / "run", 1, setting))
    assert ran.returncode != 0
    assert words in ran.stderr + ran.stdout
    assert "Traceback" not in ran.stderr
