"""Damages every kind of file in a run folder, and shows what the commands that read it say.

    python -m tests.hostile.damage [--only PATTERN]

makes a small run, damages one file at a time, runs each command that reads it in a forked child, and prints a table. It ends with 1 if
a command ended in a traceback, or used what was damaged without a word.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.hostile.cases import Case
from tests.hostile.commands import load_everything, run_case

__all__ = ["FILES", "Outcome", "small_run"]

TINY = ["model.nano.hidden_size=32", "model.nano.layers=1", "model.nano.intermediate_size=64", "eval.episodes=6", "sft.threads=1",
        "sft.checkpoint_every=1", "grpo.threads=1", "grpo.max_steps=4", "grpo.validation_every=2", "grpo.checkpoint_every=1",
        "grpo.store_every=2", "stage=[]",
        'eval.policies=["sft", "grpo"]', 'eval.pairs=["grpo-sft"]', 'eval.conditions=["held-out"]', "promises=[]"]  # fmt: skip
AGAIN = ("run", "--recipe", "recipe.toml", "--out", "run")
EVAL = ("eval", "arithmetic", "--policy", "run", "--episodes", "2", "--condition", "held-out")
MODEL = (AGAIN, EVAL, ("check", "arithmetic", "--model", "run"))

# File -> (the stage that is done once more, or None for a finished run; the commands).
FILES: Mapping[str, tuple[str | None, tuple[tuple[str, ...], ...]]] = {
    "state.json": (None, (AGAIN, ("report", "run"))),
    "recipe.toml": (None, (("report", "run"), ("compare", "a=run", "b=run"))),
    "audit.json": (None, (AGAIN, ("report", "run"))),
    "teach/episodes.jsonl.gz": (None, (AGAIN, ("show", "run/teach/episodes.jsonl.gz"),
        ("sft", "arithmetic", "--data", "run/teach/episodes.jsonl.gz", "--out", "again", "--set", "sft.max_steps=2", "--set", "model.nano.layers=1"))),
    "sft/metrics.jsonl": (None, (AGAIN, ("doctor", "run"), ("report", "run"))),
    "sft/config.json": ("sft", (AGAIN,)),
    "sft/splits.json": (None, (AGAIN,)),
    "sft/checkpoints/step-000002/state.json": ("sft", (AGAIN,)),
    "sft/checkpoints/step-000002/optimizer.pt": ("sft", (AGAIN,)),
    "sft/best/model.safetensors": ("grpo", (AGAIN,)),
    "grpo/config.json": ("grpo", (AGAIN,)),
    "grpo/splits.json": (None, (AGAIN, EVAL)),
    "grpo/metrics.jsonl": (None, (AGAIN, ("doctor", "run"), ("report", "run"), ("watch", "run"))),
    "grpo/episodes/step-000004.jsonl.gz": (None, (AGAIN, ("show", "run", "--last"))),
    "grpo/checkpoints/step-000004/state.json": ("grpo", (AGAIN,)),
    "grpo/checkpoints/step-000004/weights.safetensors": ("grpo", (AGAIN,)),
    "grpo/checkpoints/step-000004/SHA256SUMS": ("grpo", (AGAIN,)),
    "grpo/best/model.safetensors": (None, MODEL),
    "grpo/best/config.json": (None, MODEL),
    "grpo/best/gradus.json": (None, MODEL),
    "grpo/best/tokenizer.json": (None, MODEL),
    "grpo/best/SHA256SUMS": (None, (AGAIN, EVAL)),
    "results.json": (None, (AGAIN, ("report", "run"), ("compare", "a=run", "b=run"), ("doctor", "run"))),
    "eval/episodes.jsonl.gz": (None, (AGAIN, ("compare", "a=run", "b=run"))),
    "report/about.json": (None, (AGAIN, ("report", "run"))),
    "report/episodes.json.gz": (None, (AGAIN, ("report", "run"))),
    "doctor.json": (None, (AGAIN, ("report", "run"))),
    "costs.json": (None, (AGAIN, ("report", "run"))),
}  # fmt: skip
UNNOTICED = "NOT NOTICED"
LATER = {"sft": ("sft", "grpo", "eval", "doctor"), "grpo": ("grpo", "eval", "doctor")}
RESULTS = ("*.json", "teach/*", "eval/*", "*/best/*.safetensors", "*/final/*.safetensors")


def _gone(file: Path) -> None:
    file.unlink()


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _byte(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) * 3 // 5] ^= 1
    file.write_bytes(bytes(raw))


def _figure(file: Path) -> None:
    """The last digit of a number, so that JSON stays JSON; in weights, a byte near the end."""
    raw = file.read_bytes()
    digits = list(re.finditer(rb"\d(?=[,}\]\s])", raw))
    binary = file.suffix in (".safetensors", ".pt") or not digits
    place = len(raw) - 9 if binary else digits[len(digits) // 2].start()
    file.write_bytes(raw[:place] + (b"1" if raw[place : place + 1] != b"1" else b"2") + raw[place + 1 :])


def _shape(file: Path) -> None:
    file.write_bytes(b"[[1]]\n" if file.suffix.startswith(".json") else b"x = [")


DAMAGES: Mapping[str, Callable[[Path], None]] = {
    "gone": _gone, "cut in half": _cut, "a bit": _byte, "a figure": _figure, "another shape": _shape,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a command ended: its code, what it said, and the checksums of what it left (of the page, for a report)."""

    code: int
    said: str
    left: Mapping[str, str]
    wrong: bool
    by_files: bool  # it is judged by the files that it leaves: what it says holds a clock's figures

    def against(self, whole: Outcome, file: str, original: str) -> tuple[str, str]:
        """What the command made of the damage in a word, and its sentence. ``whole``: how it ends without damage."""
        lines = [line for line in self.said.splitlines() if re.match(r"(error|warning):|fail ", line)]
        sentence = re.sub(r"\s+", " ", lines[0]) if lines else ""
        if self.wrong:
            return UNNOTICED, self.said[-300:].replace("\n", " / ")
        if sentence and (self.code in (2, 3) or (self.code, whole.code) == (1, 0)):
            return "refused", sentence
        same = {**self.left, file: ""} == {**whole.left, file: ""}
        if same and self.left.get(file) == original:
            return f"{'named and ' if sentence else ''}made again", sentence
        if sentence:
            return "named, same result" if same and self.by_files else "named", sentence
        alike = same and self.code == whole.code and (self.by_files or self.said == whole.said)
        return ("no effect", "") if alike else (UNNOTICED, f"code {self.code}")


def small_run(folder: Path) -> Path:
    """A finished run of a few seconds that holds every kind of file."""
    from rich.console import Console

    from gradus.runs.recipe.load import load_recipe
    from gradus.runs.stages.runner import run_recipe

    audit = ["audit.enabled=true", "audit.episodes=8", "audit.budget=40"]
    recipe = load_recipe("arithmetic", quick=True, changes=[*TINY, *audit])
    return run_recipe(recipe, out=folder / "run", anyway=True, console=Console(quiet=True))


def _prepared(run: Path, stage: str | None, damage: Callable[[], None] | None, folder: Path) -> None:
    shutil.copytree(run, folder / "run")
    (folder / "work").mkdir()
    shutil.copy(run / "recipe.toml", folder / "work" / "recipe.toml")
    if stage is not None:
        state = json.loads((folder / "run" / "state.json").read_text())
        state["stages"][stage] = {**state["stages"][stage], "done": False, "files": {}}
        for later in LATER[stage][1:]:
            state["stages"].pop(later)
            shutil.rmtree(folder / "run" / later, ignore_errors=True)
        (folder / "run" / "state.json").write_text(json.dumps(state, indent=1) + "\n")
    if damage is not None:
        damage()


def _tried(
    run: Path, file: str, stage: str | None, words: tuple[str, ...], damage: Callable[[Path], None] | None
) -> Outcome:
    left: dict[str, str] = {}

    def prepare(folder: Path) -> None:
        _prepared(run, stage, None if damage is None else partial(damage, folder / "run" / file), folder)

    def after(work: Path) -> None:
        patterns = ("report.html",) if "report" in words else RESULTS
        files = [
            each
            for pattern in patterns
            for each in (work / "run").glob(pattern)
            if each.name not in ("state.json", "costs.json")
        ]
        files += [work / "run" / file] if (work / "run" / file).is_file() else []
        left.update(
            {str(each.relative_to(work / "run")): hashlib.sha256(each.read_bytes()).hexdigest() for each in files}
        )

    ended = run_case(Case(name=file, words=words, prepare=prepare), after=after)
    return Outcome(
        code=ended.code,
        said=re.sub(r"\b\d+(\.\d+)? s\b", "", ended.said),
        left=left,
        wrong=ended.wrong,
        by_files="--recipe" in words,
    )


def _command(words: tuple[str, ...], stage: str | None) -> str:
    return f"{words[0]}{f' from {stage} on' if stage else ''}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", default="")
    only = arguments.parse_args().only
    load_everything()
    rows: list[str] = []
    kinds: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        run = small_run(Path(name))
        for file, (stage, commands) in FILES.items():
            original = hashlib.sha256((run / file).read_bytes()).hexdigest()
            for words in commands if re.search(only, file) else ():
                whole = _tried(run, file, stage, words, None)
                assert whole.code in (0, 1), whole.said
                cells: list[str] = []
                for damage, do in DAMAGES.items():
                    kind, sentence = _tried(run, file, stage, words, do).against(whole, file, original)
                    cells.append(kind)
                    kinds[kind] += 1
                    print(f"{file} | {damage} | {_command(words, stage)}: {kind}: {sentence}", flush=True)
                rows.append(f"| {file} | {_command(words, stage)} | {' | '.join(cells)} |")
    print(f"\n| file | command | {' | '.join(DAMAGES)} |\n|---|---|{'---|' * len(DAMAGES)}", *rows, sep="\n")
    print(f"\n{sum(kinds.values())} damages, {kinds[UNNOTICED]} of them not noticed; {dict(kinds)}")
    sys.exit(bool(kinds[UNNOTICED]))


if __name__ == "__main__":
    main()
