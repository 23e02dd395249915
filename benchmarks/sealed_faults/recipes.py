"""One short training of a nano model, in a process of its own, and what was said of it: what the benchmark of sealed faults runs.

python recipes.py RECIPE SETTINGS MODELS FOLDER      RECIPE is rows, turns, sft or distill; SETTINGS are JSON; MODELS holds the models
python recipes.py models MODELS
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from _silent_run import COLORS, SHAPES, Case, Lamps, taught, watch
from safetensors import safe_open

import gradus
from gradus.core import EnvironmentSpec, Vocabulary
from gradus.core.metrics import read_records
from gradus.evidence.health import diagnose
from gradus.policies.nano.model import make_nano
from gradus.training.lesson_config import DistillConfig, SftConfig
from gradus.training.run.options import RunOptions
from gradus.training.sft import train_sft

STEPS = 12
ROWS = [{"question": f"{a} {b}", "answer": COLORS[(a + b) % 4]} for a in range(9) for b in range(9)]
CLOCK = {"seconds", "tokens_per_second"}


def right(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """A reward in TRL's signature."""
    return [float(text.strip() == gold) for text, gold in zip(completions, answer, strict=True)]


def raising(completions: list[str], answer: list[str], **more: Any) -> list[float]:
    """The same, but it cannot read one of the answers."""
    if "blue" in [text.strip() for text in completions]:
        raise ValueError("no rule for blue")
    return right(completions, answer, **more)


def warm(completions: list[str], **_: Any) -> list[float]:
    """A second reward: for a warm color, whatever the question."""
    return [float(text.strip() in ("red", "white")) for text in completions]


def half_right(observation: Any, script: Any) -> str:
    """Answers a row rightly half of the time."""
    a, b = observation.text.split()[-2:]
    return script.rng.choice([COLORS[(int(a) + int(b)) % 4], script.rng.choice(COLORS)])


def environment(recipe: str, settings: dict[str, Any]) -> EnvironmentSpec:
    """The environment of a recipe."""
    if recipe == "rows":
        rewards: list[Any] = [raising if settings.pop("raising", False) else right]
        if settings.pop("warm", False):
            rewards.append((warm, 0.25))
        return gradus.one_turn(ROWS, rewards=rewards)
    return gradus.load_environment(Lamps)


def expert(spec: EnvironmentSpec) -> Any:
    """The teacher that Lamps brings."""
    assert spec.teacher is not None
    return spec.policy(spec.teacher)


def make_models(folder: Path) -> None:
    """Writes the models that the recipes begin with."""
    taught(folder / "lamps", gradus.load_environment(Lamps), SHAPES[0])
    spec = environment("rows", {})
    words = Vocabulary(words=(*COLORS, *map(str, range(9))))
    model = make_nano(folder / "rows" / "nano", words, SHAPES[0], seed=3)
    tasks = [spec.train_task(index) for index in range(48)]
    shown = gradus.roll_out(spec, gradus.FunctionPolicy("half", half_right), tasks=tasks, group_size=4).episodes
    config = SftConfig(epochs=20, batch_size=32, lr=5e-3, threads=1, device="cpu", validation_share=0)
    train_sft(model, shown, config, folder / "rows" / "sft", options=RunOptions(live=False))


def train_grpo(case: Case) -> None:
    """Trains by GRPO. With ``resume`` the run is broken off behind its first checkpoint and goes on."""
    if case.settings.pop("resume", False):
        with suppress(KeyboardInterrupt):
            case.options["on_record"] = break_off
            case.train()
        del case.options["on_record"]
        return case.train(resume=True)
    return case.train()


def break_off(record: Any) -> None:
    """Ends a run in its seventh step."""
    if record["kind"] == "step" and record["step"] == STEPS // 2 + 1:
        raise KeyboardInterrupt


def train_lesson(case: Case, recipe: str) -> None:
    """Trains by SFT or by distillation."""
    common = {"lr": 3e-3, "threads": 1, "device": "cpu", "max_steps": STEPS, "checkpoint_every": 6, "batch_size": 8}
    options = RunOptions(live=False)
    tasks = [case.spec.train_task(index) for index in range(128)]
    if recipe == "distill":
        from gradus.policies.local.sampling import SamplingConfig
        from gradus.training.distill import train_distill
        from gradus.training.engine.prepare import prepare_model
        from gradus.training.teachers import ScriptedTeacher

        config = DistillConfig(**{**common, **case.settings})
        loaded = prepare_model(case.model, config)
        teacher = ScriptedTeacher(expert(case.spec), case.spec, loaded)
        sampling = SamplingConfig(max_new_tokens=8)
        train_distill(loaded, teacher, case.spec, config, case.folder, sampling=sampling, options=options)
        return
    shown = gradus.roll_out(case.spec, expert(case.spec), tasks=tasks).episodes
    train_sft(case.model, shown, SftConfig(**{**common, **case.settings}), case.folder, options=options)


def run(recipe: str, settings: dict[str, Any], models: Path, folder: Path) -> list[tuple[str, str]]:
    """Runs a recipe; returns what was said of it: (rule, words), an error included."""
    spec = environment(recipe, settings)
    model = models / ("rows" if recipe == "rows" else "lamps") / "sft" / "final"
    usual = {"max_steps": STEPS, "checkpoint_every": 6, "store_every": 5}
    case = Case(folder=folder / "run", model=model, spec=spec, settings={**usual, **settings})
    case.folder.mkdir(parents=True)
    if recipe in ("sft", "distill"):
        case.settings = settings
        findings = watch(case, lambda case: train_lesson(case, recipe))
    else:
        if settings.get("distill_coef"):
            from gradus.training.teachers import ScriptedTeacher

            case.options["teacher"] = lambda student: ScriptedTeacher(expert(spec), spec, student)
        findings = watch(case, train_grpo)
    said = [(rule, text) for _, rule, text in findings]
    metrics = case.folder / "metrics.jsonl"
    records = read_records(metrics) if metrics.is_file() else []
    said += [
        (str(each["rule"]), f"{each['evidence']}. {each['remedy']}")
        for each in records
        if each["kind"] == "alert" and each["severity"] != "info"
    ]
    said += [(each.rule, f"{each.evidence}. {each.remedy}") for each in diagnose(records) if each.severity != "info"]
    return list(dict.fromkeys(said))


def weights(folder: Path) -> str:
    """A digest of the weights of a model folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in sorted(file.keys()):
                digest.update(name.encode() + file.get_tensor(name).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def without_clock(value: Any) -> Any:
    """A record without what a clock measured."""
    return {name: entry for name, entry in value.items() if name not in CLOCK}


def artefacts(folder: Path) -> str:
    """A digest of what a run keeps besides its final weights: the best ones, episodes, metrics."""
    digest = hashlib.sha256(weights(folder / "best").encode() + weights(folder / "final").encode())
    for path in sorted((folder / "episodes").glob("*.gz")):
        digest.update(gzip.decompress(path.read_bytes()))
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        digest.update(json.dumps(without_clock(json.loads(line))).encode())
    return digest.hexdigest()


def files(folder: Path) -> str:
    """A digest of the names of all files of a run, and of what its splits and the settings of its models say."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    digest = hashlib.sha256("\n".join(names).encode())
    for name in ("splits.json", "final/gradus.json", "final/generation_config.json"):
        if (folder / name).is_file():
            digest.update((folder / name).read_bytes())
    return digest.hexdigest()


def main() -> None:
    torch.set_num_threads(1)
    random.seed(0)  # the expert of Lamps draws from it
    if sys.argv[1] == "models":
        make_models(Path(sys.argv[2]))
        return
    recipe, settings, models, folder = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])
    said = run(recipe, settings, models, folder)
    trained = folder / "run"
    figures = {"findings": said, "weights": weights(trained / "final"), "artefacts": "", "files": ""}
    if (trained / "final").is_dir():
        figures["artefacts"] = artefacts(trained)
        figures["files"] = files(trained)
    (folder / "outcome.json").write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
