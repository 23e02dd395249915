"""Bad input for the commands: environment names, numbers, settings, and stored documents with damage. All of it comes from a seed."""

from __future__ import annotations

import copy
import gzip
import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradus.core.files import read_text

__all__ = ["Case", "damaged_documents", "odd_names", "odd_numbers", "odd_settings"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Words of a command line. ``prepare`` makes files in the case's own folder, which is also where the command runs."""

    name: str
    words: tuple[str, ...]
    prepare: Callable[[Path], None] = lambda folder: None
    sound: bool = (
        False  # nothing is wrong with it, so it must end well: a case whose options do not exist shows nothing
    )


NAMES = [
    "", " ", ":", "::", ":x", "..:x", "...:x", "x:", "x.y:z", "a b", "rhythm:", "rhythm:x", "rhythm ", "Rhythm", "ryhthm", "memory:..",
    "memory:LoCoMo?", "jsonl:", "jsonl:?", "jsonl:nope.jsonl", "jsonl:.", "jsonl:x?question", "jsonl:x?=1", "csv:nope.csv?answer=",
    "gsm8k:", "gsm8k:nope/nope/nope", "openenv:", "openenv:http://127.0.0.1:1", "openenv:ftp://x", "openenv:http://[", "nope.py",
    "nope.py:", "nope.py:x", "/:x", "/dev/null", "/dev/null:x", "~", "~nope:x", "json:loads", "os:path", "os:nope", "builtins:print",
    "sys:exit", "-", "\x00", "a\x00b", "\ud800", "é", "🙂:🙂", "x" * 5000, "reasoning-gym:", "reasoning-gym:nope", "textarena:nope", "gymnasium:nope",
    "verifiers:", "http://", "file:///etc/passwd", "../../etc/passwd", "*", "%s", "{}", "[red]", "[/]", "C:\\x",
]  # fmt: skip
WITH_ENVIRONMENT = {
    "envs": (),
    "audit": ("--episodes", "8", "--budget", "100"),
    "sft": ("--episodes", "2", "--out", "sft"),
    "eval": ("--episodes", "2", "--policy", "random"),
    "check": (),
    "run": (
        "--quick",
        "--out",
        "run",
        "--set",
        "audit.enabled=false",
        "--set",
        "sft.max_steps=2",
        "--set",
        "grpo.max_steps=2",
        "--set",
        "grpo.groups=2",
        "--set",
        "eval.episodes=2",
    ),
    "grpo": ("--model", "nope", "--out", "grpo"),
    "init": ("--out", "recipe.toml"),
}
NUMBERS = ["", "-", "-0", "-1", "0", "0.0", "1e400", "1e24", "1000000000000000000000000", "nan", "inf", "-inf", "1_0", "٣", "0x10", "1,5",
           "true", "2026-11-21", "1e-400", " 1", "9" * 5000]  # fmt: skip
NUMERIC = {
    ("sft", "arithmetic", "--out", "sft"): ("--episodes", "--seed"),
    ("eval", "arithmetic", "--policy", "random", "--condition", "held-out"): ("--episodes", "--seed", "--power", "--temperature",
                                                                                 "--max-new-tokens"),
    ("audit", "arithmetic"): ("--episodes", "--budget", "--seed"),
    ("check", "arithmetic"): ("--memory",),
}  # fmt: skip
KEYS = [
    "seed", "quick", "grader", "environment", "model", "model.path", "model.nano", "model.nano.layers", "model.nano.heads", "audit.budget",
    "teach.episodes", "teach.policy", "sft.lr", "sft.threads", "sft.max_steps", "sft.betas", "sft.lora", "sft.optimizer",
    "sft.token_budget", "grpo.lr", "grpo.groups", "grpo.group_size", "grpo.algorithm", "grpo.sampling", "grpo.sampling.temperature",
    "grpo.sampling.top_p", "grpo.on_alert", "grpo.device", "grpo.dtype", "eval.policies", "eval.episodes", "eval.pairs", "rewards", "stage",
    "stage.0.weights", "stage.9.steps", "adaptive", "promises", "promises.0.figure", "trackers", "nope", "grpo.nope", "grpo..lr", ".", "grpo",
]  # fmt: skip
VALUES = ["", "-1", "0", "1e400", "nan", "2026-11-21", "12:00:00", "[]", "{}", "[[[[[1]]]]]", '"x"', "x", "true", "null", "{ a = 1 }", "[", '"',
          "'''", "\\", "\x00", "1" * 4400, "[" * 2000,
          "1" + "0" * 24]  # fmt: skip


def odd_names() -> Iterator[Case]:
    """Each name with each command that takes an environment."""
    for command, rest in WITH_ENVIRONMENT.items():
        if "nope" not in rest:
            yield Case(name=f"sound {command}", words=(command, "arithmetic", *rest), sound=True)
        for place, name in enumerate(NAMES):
            if (command, name) == ("run", "rhythm:"):
                continue  # it means Rhythm, whose run takes minutes
            yield Case(name=f"name {place} {command}", words=(command, name, *rest))


def odd_numbers() -> Iterator[Case]:
    """Each number with each numeric option."""
    for (command, *rest), options in NUMERIC.items():
        for option in options:
            good = "8GB" if option == "--memory" else "200" if option in ("--episodes", "--budget") else "1"
            yield Case(name=f"sound {command} {option}", words=(command, *rest, f"{option}={good}"), sound=True)
            for number in NUMBERS:
                yield Case(
                    name=f"number {command} {option} {number[:20]}", words=(command, *rest, f"{option}={number}")
                )


def odd_settings() -> Iterator[Case]:
    """Each key of a recipe with each value. ``check`` reads a recipe whole."""
    for key in KEYS:
        for value in VALUES:
            yield Case(name=f"set {key}={value[:20]}", words=("check", "arithmetic", "--set", f"{key}={value}"))


DOCUMENTS = {
    "results.json": (("report", "RUN"), ("compare", "a=RUN", "b=RUN"), ("run", "--recipe", "RUN/recipe.toml", "--out", "RUN")),
    "doctor.json": (("report", "RUN"), ("doctor", "RUN")),
    "costs.json": (("report", "RUN"), ("compare", "a=RUN", "b=RUN")),
    "manifest.json": (("run", "--recipe", "RUN/recipe.toml", "--out", "RUN"), ("report", "RUN")),
    "recipe.toml": (("report", "RUN"), ("check", "--recipe", "RUN/recipe.toml"), ("compare", "a=RUN", "b=RUN")),
    "report/about.json": (("report", "RUN"),),
    "report/episodes.json.gz": (("report", "RUN"),),
    "eval/episodes.jsonl.gz": (("show", "RUN/eval/episodes.jsonl.gz"), ("report", "RUN")),
    "teach/episodes.jsonl.gz": (("show", "RUN/teach/episodes.jsonl.gz"),),
    "grpo/metrics.jsonl": (("doctor", "RUN"), ("report", "RUN")),
    "sft/metrics.jsonl": (("doctor", "RUN"), ("report", "RUN")),
    "grpo/config.json": (("doctor", "RUN"), ("report", "RUN")),
    "grpo/splits.json": (("eval", "arithmetic", "--policy", "RUN", "--episodes", "2", "--condition", "held-out"),),
    "grpo/best/gradus.json": (("eval", "arithmetic", "--policy", "RUN/grpo/best", "--episodes", "2", "--condition", "held-out"),),
    "grpo/best/config.json": (("check", "arithmetic", "--model", "RUN/grpo/best"),),
    "grpo/best/generation_config.json": (("check", "arithmetic", "--model", "RUN/grpo/best"),),
    "grpo/best/tokenizer_config.json": (("check", "arithmetic", "--model", "RUN/grpo/best"),),
}  # fmt: skip
BYTES: dict[str, bytes] = {
    "empty": b"",
    "binary": bytes(range(256)),
    "latin": b'{"a": "\xe9"}',
    "cut": b'{"a": [1, ',
    "deep": b"[" * 100_000,
    "deep object": b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
    "list": b"[]",
    "object": b"{}",
    "number": b"7",
    "text": b'"x"',
    "null": b"null",
    "nan": b'{"a": NaN}',
    "digits": b"1" * 5000,
    "surrogate": b'{"a": "\\ud800"}',
    "newer": b'{"schema": 99}',
}
ODD: list[Any] = [None, -1, 1e308, "x", [], {}, [[]], {"mean": "x"}, True, "<script>", "\x00"]


def damaged_documents(run: Path, *, nodes: int, seed: int = 0) -> Iterator[Case]:
    """Every document of a finished run, damaged as a whole and at ``nodes`` places of its tree, with each command that reads it."""
    for words in dict.fromkeys(words for commands in DOCUMENTS.values() for words in commands):
        yield Case(
            name=f"sound {' '.join(words)}",
            words=tuple(word.replace("RUN", "run") for word in words),
            prepare=lambda folder: shutil.copytree(run, folder / "run") and None,
            sound=True,
        )
    for document, commands in DOCUMENTS.items():
        damages: dict[str, bytes] = dict(BYTES)
        if document.endswith((".json", ".jsonl", ".gz")):
            damages |= dict(_damaged_nodes(run / document, nodes, random.Random(f"{seed} {document}")))
        for damage, content in damages.items():
            if document.endswith(".gz") and damage != "binary":
                content = gzip.compress(content)
            for words in commands:
                yield Case(
                    name=f"{document}: {damage}: {words[0]}",
                    words=tuple(word.replace("RUN", "run") for word in words),
                    prepare=_with(run, document, content),
                )


def _with(run: Path, document: str, content: bytes) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        shutil.copytree(run, folder / "run")
        (folder / "run" / document).write_bytes(content)

    return prepare


def _damaged_nodes(path: Path, nodes: int, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    text = read_text(path)
    lines = text.splitlines() if ".jsonl" in path.suffixes else [text]
    for place in range(nodes):
        number = rng.randrange(len(lines))
        changed, where = _changed(json.loads(lines[number]), rng)
        whole = [*lines[:number], json.dumps(changed), *lines[number + 1 :]]
        yield f"{place} at {where}", "\n".join(whole).encode() + b"\n"


def _changed(value: Any, rng: random.Random) -> tuple[Any, str]:
    """A copy with one place replaced or taken away, and which."""
    places = list(_places(value))
    path = rng.choice(places)
    whole = copy.deepcopy(value)
    inside = whole
    for key in path[:-1]:
        inside = inside[key]
    odd = rng.choice([*ODD, ...])
    if odd is ...:
        del inside[path[-1]]
    else:
        inside[path[-1]] = odd
    return whole, f"{'.'.join(map(str, path))} {'gone' if odd is ... else repr(odd)}"


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        yield from _places(each, (*path, key))
