"""A small healthy GRPO run for the benchmark of silent faults: its worlds, its model, and what is said of it while it trains."""

from __future__ import annotations

import copy
import random
import shutil
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gradus
from gradus.algorithms import algorithm_names
from gradus.core import EnvironmentSpec, child_rng
from gradus.core.errors import GradusError
from gradus.evidence.health import Monitor
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.nano.model import NanoConfig, make_nano
from gradus.training import grpo
from gradus.training.config import GrpoConfig
from gradus.training.lesson_config import SftConfig
from gradus.training.run.options import GrpoOptions, RunOptions
from gradus.training.sft import train_sft

STEPS = 6
SHAPES = (
    NanoConfig(hidden_size=32, layers=2, heads=2, kv_heads=1, intermediate_size=64, context=512),
    NanoConfig(hidden_size=64, layers=3, heads=4, kv_heads=2, intermediate_size=192, context=512),
)
LORA = {"rank": 8, "alpha": 16.0}
COLORS = ("red", "green", "blue", "white")


class Lamps:
    """Three lamps: say the color that is shown, and the number that the turn before has shown."""

    system_prompt = "name the number and the color"
    actions = tuple(f"{number} {color}" for number in (1, 2, 3) for color in COLORS)
    max_turns = 3

    def reset(self, seed: int) -> str:
        """Draws three colors and a number."""
        rng = child_rng(seed, "lamps")
        self.colors, self.number, self.turn = [rng.choice(COLORS) for _ in range(3)], rng.choice("123"), 0
        return f"lamp {self.colors[0]}"

    def step(self, action: str) -> tuple[str, float, bool]:
        """Half a point for each of the two."""
        number, color = action.split()
        reward = 0.5 * (number == self.number) + 0.5 * (color == self.colors[self.turn])
        self.turn += 1
        done = self.turn == 3
        return ("done" if done else f"lamp {self.colors[self.turn]} number {self.number}"), reward, done

    def expert(self) -> str:
        """Half of the answers are right, so that GRPO has something to learn."""
        if random.random() < 0.5:
            return f"{self.number} {self.colors[self.turn]}"
        return random.choice(self.actions)


@dataclass
class Case:
    """A run before it begins; a fault changes what it will be."""

    folder: Path
    model: Path
    spec: EnvironmentSpec
    settings: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def config(self) -> GrpoConfig:
        """Returns the settings of a healthy run with those of this case."""
        base = {"max_steps": STEPS, "groups": 8, "group_size": 8, "lr": 5e-4, "validation_every": 0, "threads": 1}
        sampling = {"max_new_tokens": 8, "temperature": 0.8}
        return GrpoConfig(**{**base, "device": "cpu", "sampling": sampling, "store_every": 0, **self.settings})

    def train(self, **options: Any) -> None:
        """Trains."""
        given = GrpoOptions(live=False, **self.options)
        grpo.train_grpo(self.model, self.spec, self.config(), self.folder, options=given, **options)


ROWS = [{"question": f"{a} + {b}", "answer": str(a + b)} for a in range(9) for b in range(9)]


def right(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """A reward in TRL's signature."""
    said = [each if isinstance(each, str) else each[-1]["content"] for each in completions]
    return [float(each.strip() == gold) for each, gold in zip(said, answer, strict=True)]


def shifted(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """Each row gets the next one's reward."""
    given = right(completions, answer)
    return given[1:] + given[:1]


def cached() -> Callable[..., list[float]]:
    """Returns a reward that is kept by prompt: all members of a group get that of the first."""
    known: dict[str, float] = {}

    def reward(prompts: Sequence[Any], completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
        given = right(completions, answer)
        return [known.setdefault(str(prompt), value) for prompt, value in zip(prompts, given, strict=True)]

    return reward


def sampler_beside(case: Case, late: int | None) -> None:
    """A sampler with a model of its own, as a server has, whose weights come ``late`` steps too late; None for never."""
    loaded, sent = load_model(case.model, device="cpu"), []
    own = replace(loaded, model=copy.deepcopy(loaded.model))
    case.settings |= {"sampler": "http", "sampler_url": "http://localhost:1/v1", "correction": "truncate"}

    def push(trained: LoadedModel, step: int) -> None:
        if late is not None:
            sent.append({name: value.clone() for name, value in trained.model.state_dict().items()})
            own.model.load_state_dict(sent[max(0, step - late)])

    case.options |= {"sampler": LocalPolicy(own, case.config().sampling, name="server"), "push_weights": push}


def taught(folder: Path, spec: EnvironmentSpec, shape: NanoConfig) -> Path:
    """A model that knows the form of an answer, and half of the answers."""
    random.seed(0)
    assert spec.language.vocabulary is not None
    assert spec.teacher is not None
    model = make_nano(folder / "nano", spec.language.vocabulary(), shape, seed=1)
    lessons = [spec.train_task(10_000 + index) for index in range(256)]
    shown = gradus.roll_out(spec, spec.policy(spec.teacher), tasks=lessons).episodes
    config = SftConfig(epochs=25, batch_size=32, lr=5e-3, threads=1, device="cpu", validation_share=0)
    return train_sft(model, shown, config, folder / "sft", options=RunOptions(live=False)).final


def watch(case: Case, run: Callable[[Case], None]) -> list[tuple[int, str, str]]:
    """What was said of a run: (step, how, text), first things first. An error before the first step has step 0."""
    told: list[tuple[int, str, str]] = []
    seen, monitor = [0], Monitor()

    def look(records: Sequence[Any]) -> Sequence[Any]:
        seen[0] = sum(each["kind"] == "step" for each in records)
        alerts = monitor(records)
        told.extend(
            (seen[0], each["rule"], f"{each['evidence']}. {each['remedy']}")
            for each in alerts
            if each["severity"] != "info"
        )
        return alerts

    case.options["monitor"] = look
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run(case)
        except GradusError as error:
            told.append((seen[0] + 1 if (case.folder / "config.json").is_file() else 0, "error", str(error)))
    return told


def healthy_settings(number: int) -> dict[str, Any]:
    """The settings of a healthy run: sizes, algorithm, passes and learning rate by chance."""
    rng = random.Random(number)
    groups = rng.choice((4, 8, 16))
    return {
        "seed": number,
        "groups": groups,
        "group_size": rng.choice((4, 8, 16)),
        "algorithm": rng.choice([name for name in algorithm_names() if name != "dapo"]),  # which samples many rounds
        "epochs": rng.choice((1, 1, 2, 3)),
        "minibatches": rng.choice((1, 1, 2)),
        "lr": rng.choice((5e-5, 1e-4, 3e-4)),
        "kl_coef": rng.choice((0.0, 0.02)),
        "lora": rng.choice((None, LORA)),
    }


def false_alarms(folder: Path, spec: EnvironmentSpec, models: Sequence[Path], count: int) -> list[str]:
    """Takes ``count`` healthy runs, every fifth of them with a sampler beside that gets its weights in time; returns the alarms."""
    alarms: list[str] = []
    for number in range(count):
        model = models[number % len(models)]
        case = Case(folder=folder / f"healthy-{number}", model=model, spec=spec, settings=healthy_settings(number))
        if number % 5 == 4:
            case.settings["lora"] = None
            sampler_beside(case, late=0)
        told = watch(case, Case.train)
        shutil.rmtree(case.folder, ignore_errors=True)
        if told:
            alarms.append(told[0][1])
            print(f"false alarm: {case.settings}: {told[0]}", file=sys.stderr, flush=True)
    return alarms
