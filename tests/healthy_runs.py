"""Healthy runs of all kinds, drawn by number: none of them may break a law. What has held is kept, so that 360 can be taken in parts.

python tests/healthy_runs.py 0 60
"""

import json
import os
import random
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from fakes import echo, lamps
from short_runs import Stopped, grpo_config, lines, stop_after, train

from gradus.algorithms import algorithm_names
from gradus.core import EnvironmentSpec
from gradus.core.errors import ConfigError
from gradus.environments.verifiable.from_rows import one_turn
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.nano.model import NanoConfig, make_nano
from gradus.rollouts import roll_out
from gradus.training.config import GrpoConfig
from gradus.training.distill import train_distill
from gradus.training.engine.prepare import prepare_model
from gradus.training.lesson_config import DistillConfig, SftConfig
from gradus.training.run.options import RunOptions
from gradus.training.sft import train_sft
from gradus.training.teachers import ScriptedTeacher

__all__ = ["healthy_run", "healthy_settings", "largest_shares", "teach"]

SHAPES = (
    NanoConfig(hidden_size=32, layers=2, heads=2, kv_heads=1, intermediate_size=64, context=512),
    NanoConfig(hidden_size=64, layers=3, heads=4, kv_heads=2, intermediate_size=192, context=512),
    NanoConfig(hidden_size=48, layers=1, heads=3, kv_heads=3, intermediate_size=96, context=512),
)
LESSONS = 300  # runs from this number on are SFT and distillation
KEPT = Path(os.environ.get("GRADUS_HEALTHY", Path(tempfile.gettempdir()) / "gradus-healthy"))


def healthy_settings(number: int) -> dict[str, Any]:
    """Settings by chance: algorithm, credit, sizes, optimizer, precision, adapters, terms of the loss."""
    rng = random.Random(number)
    settings: dict[str, Any] = {
        "seed": number,
        "groups": rng.choice((2, 4, 8)),
        "group_size": rng.choice((2, 4, 8)),
        "algorithm": rng.choice(algorithm_names()),
        "epochs": rng.choice((1, 1, 1, 2)),
        "minibatches": rng.choice((1, 1, 2)),
        "lr": rng.choice((1e-5, 3e-4, 3e-3)),
        "kl_coef": rng.choice((0.0, 0.0, 0.05)),
        "entropy_coef": rng.choice((0.0, 0.0, 0.01)),
        "lora": rng.choice((None, None, {"rank": 4, "alpha": 8})),
        "token_budget": rng.choice((80, 400, 4096)),
        "grad_clip": rng.choice((0.0, 0.05, 1.0)),
        "weight_decay": rng.choice((0.0, 0.1)),
        "schedule": rng.choice(("constant", "linear", "cosine")),
        "warmup": rng.choice((0.0, 0.3)),
        "betas": rng.choice(((0.9, 0.95), (0.0, 0.95))),
        "checkpoint_every": rng.choice((1, 2, 10)),
    }
    precision = rng.choice(({}, {}, {"dtype": "bfloat16"}, {"autocast": True}, {"backward": "bfloat16"}))
    settings |= precision
    if rng.random() < 0.2 and not settings["lora"]:
        settings["optimizer"] = "muon"
    if settings["algorithm"] not in ("reinforce++", "gdpo", "maxrl"):
        settings["credit"] = rng.choice((None, "episode", "turn", "span"))
    sampling = {
        "max_new_tokens": rng.choice((3, 5)),
        "grammar": rng.random() < 0.5,
        "temperature": rng.choice((0.7, 1.0, 1.3)),
    }
    if rng.random() < 0.2:
        settings |= rng.choice(({"tasks": 24}, {"first_task": 5}, {"dynamic_sampling": 2}))
    if rng.random() < 0.15:
        sampling |= rng.choice(({"top_p": 0.9}, {"top_k": 5}))
    if rng.random() < 0.3:
        further = ({"distill_coef": 0.3}, {"observations": 0.2}, {"entropy_coef": 0.02, "entropy_schedule": "linear"})
        settings |= rng.choice(further)
    return {**settings, "sampling": sampling}


def _environment(number: int) -> EnvironmentSpec:
    rng = random.Random(-number - 1)
    turns, restart = rng.choice((1, 2, 3)), rng.random() < 0.3
    environment = rng.choice((echo, sums, lamps, lamps))
    return environment(turns=turns, restart=restart) if environment is lamps else environment()


def sums() -> EnvironmentSpec:
    """Rows of questions, a few of which are asked twice."""
    rows = [{"question": f"{a} {b}", "answer": str((a + b) % 4)} for a in range(5) for b in range(5)]
    return one_turn([*rows, *rows[:3]], rewards=[right])


def right(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    """A reward in TRL's signature."""
    return [float(text.strip() == gold) for text, gold in zip(completions, answer, strict=True)]


def healthy_run(number: int, folder: Path) -> dict[str, Any]:
    """Takes one run, unless it has held before. Returns what was measured of its laws, or why its settings are refused."""
    kept = KEPT / f"{number:03d}.json"
    if kept.is_file():
        return json.loads(kept.read_text(encoding="utf-8"))
    spec = _environment(number)
    model = make_nano(folder / "model", spec.language.vocabulary(), SHAPES[number % len(SHAPES)], seed=number)
    steps = random.Random(number).choice((3, 4, 6, 12, 30))
    try:
        if number >= LESSONS:
            lesson = (teach, distill)[number % 3 == 0]
            lesson(model, folder / "run", spec, **lesson_settings(number))
            return _keep(kept, {"worst": {}})
        settings = healthy_settings(number)
        if spec.language.grammar is None:
            settings["sampling"] |= {"grammar": False}
        config = grpo_config(max_steps=steps, validation_every=2 * (number % 2), **settings)
        record: dict[str, Any] = {"worst": taken(model, folder / "run", config, spec, stop=number % 4 == 0)}
    except (ConfigError, ValueError) as error:
        record = {"refused": str(error)}
    return _keep(kept, record)


def _keep(path: Path, record: dict[str, Any]) -> dict[str, Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record), encoding="utf-8")
    return record


def lesson_settings(number: int) -> dict[str, Any]:
    """Settings of SFT or distillation by chance: sizes, optimizer, precision, adapters, noise, short turns."""
    rng = random.Random(number)
    precision = rng.choice(({}, {}, {"dtype": "bfloat16"}, {"autocast": True}, {"backward": "bfloat16"}))
    return {
        "seed": number,
        "batch_size": rng.choice((4, 8, 16)),
        "lr": rng.choice((3e-4, 3e-3, 1e-2)),
        "schedule": rng.choice(("constant", "linear", "cosine")),
        "lora": rng.choice((None, None, {"rank": 4, "alpha": 8})),
        "token_budget": rng.choice((80, 400, 4096)),
        "history_noise": rng.choice((0.0, 0.0, 0.2)),
        "short_turns": rng.choice((None, None, 1)),
        "observations": rng.choice((0.0, 0.0, 0.3)),
        "checkpoint_every": rng.choice((2, 5, 50)),
        "max_steps": rng.choice((3, 6, 12)),
        **precision,
    }


def teach(model: Path, folder: Path, spec: EnvironmentSpec | None = None, **changes: Any) -> None:
    """SFT on 24 episodes of an environment's teacher."""
    spec = spec or lamps()
    tasks = [spec.train_task(index) for index in range(24)]
    episodes = roll_out(spec, spec.policy(spec.teacher or "gold"), tasks).episodes
    usual: dict[str, Any] = {"epochs": 4, "batch_size": 8, "threads": 1, "device": "cpu", "validation_share": 0.2}
    train_sft(model, episodes, SftConfig(**{**usual, **changes}), folder, options=RunOptions(live=False))


def distill(model: Path, folder: Path, spec: EnvironmentSpec, **settings: Any) -> None:
    """Distillation from the environment's teacher."""
    config = DistillConfig(**{"threads": 1, "device": "cpu", **settings})
    loaded = prepare_model(model, config)
    teacher = ScriptedTeacher(spec.policy(spec.teacher or "gold"), spec, loaded)
    sampling = SamplingConfig(max_new_tokens=5)
    train_distill(loaded, teacher, spec, config, folder, sampling=sampling, options=RunOptions(live=False))


def taken(model: Path, folder: Path, config: GrpoConfig, spec: EnvironmentSpec, *, stop: bool) -> dict[str, float]:
    """Takes a run, broken off behind its second step and resumed if ``stop``."""
    options: dict[str, Any] = {}
    if config.distill_coef:
        policy = spec.policy(spec.teacher or "gold")
        options["teacher"] = lambda student: ScriptedTeacher(policy, spec, student)
    if stop:
        with suppress(Stopped):
            train(model, folder, config, spec, on_step=stop_after(2), **options)
    train(model, folder, config, spec, resume=stop, **options)
    return largest_shares(folder)


def largest_shares(folder: Path) -> dict[str, float]:
    """Law -> the largest difference in a run, as a share of what rounding explains."""
    worst: dict[str, float] = {}
    for record in lines(folder, "laws"):
        for law, share in record["worst"].items():
            worst[law] = max(share, worst.get(law, 0.0))
    return worst


def main(first: int, last: int) -> None:
    """Takes the runs of these numbers and prints the largest share of what each law allows."""
    worst: dict[str, float] = {}
    refused = stopped = 0
    for number in range(first, last):
        folder = Path(tempfile.mkdtemp())
        started = time.perf_counter()
        try:
            record = healthy_run(number, folder)
        except Exception as error:
            stopped += 1
            print(number, type(error).__name__, error, flush=True)
            continue
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        refused += "refused" in record
        for law, share in record.get("worst", {}).items():
            worst[law] = max(worst.get(law, 0.0), share)
        print(number, f"{time.perf_counter() - started:.1f} s", record.get("refused", ""), flush=True)
    print({"runs": last - first, "refused": refused, "stopped": stopped, "worst": worst})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
