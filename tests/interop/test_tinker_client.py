"""Training on a Tinker server as on this machine: one update, GRPO on small sums, and kills of both sides."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import gradus
from tinker_servers import HERE, Python, environment, program, serving, serving_skyrl

from gradus.rollouts import read_episodes
from gradus.stats import crossed_difference

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
FORMS = [
    "What is {} + {}?",
    "Add {} and {}.",
    "{} + {} = ?",
    "Sum of {} and {}?",
    "Compute {} + {}.",
    "{} plus {} is what?",
    "What is {} plus {}?",
    "Compute the sum of {} and {}.",
    "Add {} + {}.",
    "{} and {} is what?",
    "What is the sum of {} and {}?",
    "{} plus {} = ?",
    "{} + {} is what?",
    "Add {} plus {}.",
    "The sum of {} and {} is what?",
    "Compute {} plus {}.",
    "Sum of {} plus {}?",
    "Add {} and {} = ?",
    "What is {} and {}?",
    "The sum of {} + {}?",
    "Compute {} and {}.",
    "{} and {} = ?",
]
SEEDS = 3
SETTINGS = [
    "grpo.groups=16",
    "grpo.lora.rank=8",
    "grpo.lora.alpha=32",
    "grpo.lr=1e-3",
    "grpo.grad_clip=0",
    "grpo.validation_every=0",
    "grpo.checkpoint_every=20",
]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("rows") / "sums.jsonl"
    sums = [(form.format(a, b), str(a + b)) for form in FORMS for a in range(3) for b in range(3)]
    file.write_text("".join(json.dumps({"question": question, "answer": answer}) + "\n" for question, answer in sums))
    return file


@pytest.fixture(scope="module")
def base(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A nano model that gets some of the sums right. It is saved as a Llama, which other servers load too."""
    out = tmp_path_factory.mktemp("base")
    gradus("sft", rows, "--reward", "correctness", "--out", out, "--set", "sft.max_steps=70")
    return out / "sft" / "final"


def command(
    source: Path | str, model: Path, trainer: str, out: Path, steps: int, *settings: str, seed: int = 0
) -> list[str]:
    """GRPO of rows, which are graded by their answers, or of an environment by its name."""
    graded = ["--reward", "correctness"] if isinstance(source, Path) else []
    options = [word for setting in (*SETTINGS, *settings, f"grpo.max_steps={steps}") for word in ("--set", setting)]
    words = ["grpo", source, *graded, "--model", model, "--trainer", trainer]
    return ["-m", "gradus", *map(str, words), "--out", str(out), "--seed", str(seed), *options]


def steps_of(out: Path) -> list[dict[str, Any]]:
    file = out / "grpo" / "metrics.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    return [record for record in records if record["kind"] == "step"]


@contextmanager
def server_of(kind: str, python: Python, model: Path, out: Path) -> Iterator[str]:
    """A server of ours or of SkyRL's; yields its address."""
    if kind == "skyrl":
        with serving_skyrl(model, out) as url:
            yield url
    else:
        with serving(python("0.24.1"), model, out) as (url, _):
            yield url


@pytest.mark.parametrize("server", ["gradus", "skyrl"])
def test_updates_are_the_local_ones_from_the_same_adapter(
    sdk_python: Python, base: Path, tmp_path: Path, server: str
) -> None:
    with server_of(server, sdk_python, base, tmp_path) as url:
        ran = program(sdk_python("0.24.1"), HERE / "tinker_update.py", base, url, tmp_path)
    assert ran.returncode == 0, ran.stderr[-2000:]
    figures = json.loads(ran.stdout.splitlines()[-1])
    assert figures["reduction"] == {"gradus": "sum", "skyrl": "mean over tokens, then sequences"}[server]
    assert figures["same_start"] < 1e-4
    assert figures["moved"] > 0.05
    print(json.dumps(figures))
    assert max(figures["differences"]) < 1e-4


@pytest.fixture(scope="module")
def here(rows: Path, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """What forty steps in this process give, a run a seed."""
    folders = [tmp_path_factory.mktemp("here") / f"seed{seed}" for seed in range(SEEDS)]
    for seed, out in enumerate(folders):
        ran = program(Path(sys.executable), *command(rows, base, "local", out, 40, seed=seed), timeout=1500)
        assert ran.returncode == 0, ran.stderr[-2000:]
    return folders


@pytest.mark.parametrize("server", ["gradus", "skyrl"])
@pytest.mark.timeout(7200)
def test_forty_steps_on_a_server_teach_what_forty_steps_here_do(
    sdk_python: Python, rows: Path, base: Path, here: Sequence[Path], tmp_path: Path, server: str
) -> None:
    python = sdk_python("0.24.1")
    tables: list[list[list[float]]] = [[], [], []]
    for seed, local in enumerate(here):
        out, file = tmp_path / f"run{seed}", tmp_path / f"episodes{seed}.jsonl"
        with server_of(server, sdk_python, base, tmp_path / f"served{seed}") as url:
            ran = program(python, *command(rows, base, f"tinker:{url}", out, 40, seed=seed), timeout=1500)
            assert ran.returncode == 0, ran.stderr[-2000:]
            words = ["eval", rows, "--reward", "correctness", "--policy", f"{base},{local},{out}", "--samples", "8"]
            words += ["--condition", "held-out", "--out", file]
            ran = program(python, "-m", "gradus", *map(str, words), timeout=1500)
        assert ran.returncode == 0, ran.stderr[-2000:]
        for table, policy in zip(tables, (base, local, out), strict=True):
            table.append(rewards_by_task(file, policy))
    before, expected, trained = tables
    gain = crossed_difference(trained, before, matched=True)
    difference = crossed_difference(trained, expected, matched=True)
    print(gain, difference)
    assert gain.low > 0
    assert abs(difference.mean) < 0.1


def rewards_by_task(file: Path, policy: Path) -> list[float]:
    """The mean reward of each task, in the order of their names."""
    rewards: dict[str, list[float]] = {}
    for episode in read_episodes(file).episodes:
        if episode.policy == str(policy):
            rewards.setdefault(episode.task.id, []).append(episode.reward_value or 0.0)
    return [float(np.mean(rewards[task])) for task in sorted(rewards)]


AGENT = """
import json, re

SYSTEM = "Answer the question. Think inside <reasoning> and </reasoning>, then write only the final answer inside <answer> and </answer>. Write nothing else."
tasks = [json.loads(line) for line in open(ROWS)]


def agent(task, client):
    said = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task["question"]}]
    return client.chat.completions.create(model="policy", messages=said).choices[0].message.content


def right(result, answer, **_):
    pairs = zip(result, answer, strict=True)
    return [float(re.findall(r"<answer> *(\\d+) *</answer>", each or "") == [wanted]) for each, wanted in pairs]


rewards = [right]
"""


def test_an_agent_is_trained_by_changing_one_key(sdk_python: Python, rows: Path, base: Path, tmp_path: Path) -> None:
    python, source = sdk_python("0.24.1"), tmp_path / "agent.py"
    source.write_text(AGENT.replace("ROWS", repr(str(rows))))
    gains: list[float] = []
    with serving(python, base, tmp_path / "served") as (url, _):
        for trainer in ("local", f"tinker:{url}"):
            out = tmp_path / trainer.partition(":")[0]
            ran = program(python, *command(f"{source}:agent", base, trainer, out, 20), timeout=1500)
            assert ran.returncode == 0, ran.stderr[-2000:]
            rewards = [step["reward_mean"] for step in steps_of(out)]
            gains.append(float(np.mean(rewards[-5:]) - np.mean(rewards[:5])))
    print(gains)
    assert min(gains) > 0.05


@pytest.mark.timeout(3600)
def test_a_run_goes_on_after_kills_of_either_side(sdk_python: Python, rows: Path, base: Path, tmp_path: Path) -> None:
    """Ten kills of each side. What a checkpoint had is there afterwards, and whoever was not killed says what happened."""
    python, out = sdk_python("0.24.1"), tmp_path / "run"
    settings = ["grpo.groups=2", "grpo.checkpoint_every=1"]
    draw = np.random.default_rng(0)
    victims = draw.permutation(["client", "server"] * 10)
    for victim, moment in zip(victims, draw.uniform(0.0, 4.0, 20), strict=True):
        saved = checkpoint_of(out)
        with serving(python, base, tmp_path / "served") as (url, process):
            words = [str(python), *command(rows, base, f"tinker:{url}", out, 400, *settings)]
            client = subprocess.Popen(words, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            while checkpoint_of(out) == saved and client.poll() is None:
                time.sleep(0.1)
            time.sleep(moment)
            (client if victim == "client" else process).kill()
            errors = client.communicate(timeout=300)[1].decode()
        assert "Traceback" not in errors
        assert victim == "client" or "was lost" in errors or "gave no result" in errors
        steps = [step["step"] for step in steps_of(out)]
        assert steps == list(range(1, len(steps) + 1))
        assert len(steps) >= checkpoint_of(out) > saved


def checkpoint_of(out: Path) -> int:
    """The step of the newest checkpoint; 0 if there is none."""
    folders = (out / "grpo" / "checkpoints").glob("*")
    return max((int(match[0]) for folder in folders if (match := re.search(r"\d+$", folder.name))), default=0)


REFUSALS: Sequence[tuple[str, str]] = [
    ("grpo.sampling.temperature=0.7", "temperature = 1"),
    ("grpo.entropy_coef=0.1", "entropy_coef = 0"),
]


@pytest.mark.parametrize(("setting", "words"), REFUSALS)
def test_a_setting_that_the_server_cannot_keep_is_refused(
    sdk_python: Python, rows: Path, base: Path, tmp_path: Path, setting: str, words: str
) -> None:
    ran = program(sdk_python("0.24.1"), *command(rows, base, "tinker:http://127.0.0.1:9", tmp_path / "run", 1, setting))
    assert ran.returncode != 0
    assert words in ran.stderr + ran.stdout
    assert "Traceback" not in ran.stderr


LACKING = [
    (
        "gradus.interop.tinker.losses.LOSSES_SERVED = ('cross_entropy',)",
        "grpo.kl_coef=0",
        "train with the loss importance_sampling",
    ),
    ("gradus.interop.tinker.settings._UNSERVED = ('prompt_logprobs',)", "grpo.kl_coef=0.1", "grpo.kl_coef"),
]


@pytest.mark.parametrize(("lacking", "setting", "words"), LACKING)
def test_what_a_server_lacks_is_one_sentence_before_anything_is_spent(
    sdk_python: Python, rows: Path, base: Path, tmp_path: Path, lacking: str, setting: str, words: str
) -> None:
    python, out = sdk_python("0.24.1"), tmp_path / "run"
    with serving(python, base, tmp_path / "served", lacking=lacking) as (url, _):
        ran = program(python, *command(rows, base, f"tinker:{url}", out, 1, setting))
    check_refused(ran, out, words)


def test_a_later_package_than_the_server_has_is_refused(
    sdk_python: Python, rows: Path, base: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with serving(sdk_python("0.24.1"), base, tmp_path / "served") as (url, _):
        ran = program(sdk_python("0.38.0"), *command(rows, base, f"tinker:{url}", out, 1))
    check_refused(ran, out, "has the package tinker 0.24.1, you 0.38.0")


def check_refused(ran: subprocess.CompletedProcess[str], out: Path, words: str) -> None:
    errors = [line for line in ran.stderr.splitlines() if line.startswith("error: ")]
    assert ran.returncode == 2
    assert len(errors) == 1
    assert words in errors[0]
    assert "Traceback" not in ran.stderr
    assert not (out / "grpo").exists()
