"""Two hundred bad command lines, drawn once with a seed over commands, options and kinds of values: each ends soon, in a sentence, with a code."""

from __future__ import annotations

import json
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradus.commands.app import app, main
from gradus.commands.entries import COMMANDS

pytestmark = pytest.mark.slow
CASES, SEED, LIMIT = 200, 20261129, 60
NO_NUMBER = ("x", "", "nan", "1e400", "1,5", "٣x", "--", "0x1g")
NO_COUNT = ("-1", "0", "-1000000000")
COUNTS = {"--episodes", "--max-new-tokens", "--rows", "--sessions", "--time"}
SOURCES = {"--model", "--recipe", "--reward", "--set", "--grader", "--data", "--policy", "--env", "--condition"}
NO_SOURCE = (
    "nowhere",
    "",
    ".",
    "/",
    "a\x00b",
    "x" * 5000,
    "jsonl:",
    "openenv:",
    "remote:",
    "🦜:🦜",
    "nowhere.py:f",
    "../..",
    "%s%n",
)
FILES: dict[str, bytes] = {
    "empty.jsonl": b"",
    "blank.csv": b"\n\n\n",
    "no-unicode.jsonl": b'{"question": "\xff", "answer": "1"}\n' * 8,
    "half.jsonl": b'{"question": "\\ud83d", "answer": "1"}\n' * 8,
    "list.jsonl": b"[1, 2]\n" * 8,
    "numbers.jsonl": b"1\n2\n",
    "cut.jsonl": b'{"question": "1 + 1", "ans',
    "deep.jsonl": b"[" * 100_000,
    "long.jsonl": json.dumps({"question": "a" * 5_000_000, "answer": "1"}).encode(),
    "quote.csv": b'question,answer\n"1 + 1,2\n',
    "one.csv": b"question\n1\n2\n",
    "zero.bin": bytes(4096),
    "bad.toml": b"= 1",
    "unknown.toml": b'environment = "rhythm"\nfoo = 3\n',
    "types.toml": b'environment = "rhythm"\n[grpo]\nmax_steps = "many"\nlr = -1\n',
    "layers.toml": b'environment = "rhythm"\n[model.nano]\nlayers = 1000000000\n',
    "less.toml": b'environment = "rhythm"\n[model.nano]\nlayers = -1\n',
    "loop.py": b"def f(",
    "exit.py": b"import os\nos._exit(0)\n",
    "quits.py": b"raise SystemExit(0)\n",
    "nothing.py": b"x = 1\n",
}


class Endless(BaseException):
    """A command did not end."""


def options_of(name: str) -> list[Any]:
    """The options of a command, as its own parser has them."""
    _, apps, _ = app.parse_commands(name.split())
    arguments = [argument for argument in apps[-1].assemble_argument_collection() if argument.names]
    return [argument for argument in arguments if argument.name.startswith("--")]


def lines(folder: Path) -> Iterator[list[str]]:
    """Bad lines without end: a source that is none, or an option with a value that it cannot have."""
    rng = random.Random(SEED)
    names = sorted(set(COMMANDS) - {"envs", "rewards list", "init"})
    good = folder / "good.jsonl"
    good.write_text("".join(f'{{"question": "{a} + 1", "answer": "{a + 1}"}}\n' for a in range(30)))
    for file, content in FILES.items():
        (folder / file).write_bytes(content)
    while True:
        name = rng.choice(names)
        options = options_of(name)
        numbers = [each for each in options if each.hint in (int, float, int | None, float | None)]
        sources = [each for each in options if each.name in SOURCES]
        kind = rng.choice(("source", "number", "option"))
        if kind == "source":
            source = rng.choice([*NO_SOURCE, *(str(folder / file) for file in FILES)])
            yield [*name.split(), source, *(["--reward", "exact_match"] if source.endswith(("l", "v")) else [])]
        elif kind == "number" and numbers:
            option = rng.choice(numbers)
            values = [*NO_NUMBER, *(NO_COUNT if option.name in COUNTS else ())]
            yield [*name.split(), str(good), option.name, rng.choice(values)]
        elif kind == "option" and sources:
            option = rng.choice(sources)
            yield [
                *name.split(),
                str(good),
                option.name,
                rng.choice([*NO_SOURCE, *(str(folder / each) for each in FILES)]),
            ]


def outcome(line: list[str], capture: pytest.CaptureFixture[str]) -> str:
    """What is wrong with how a line ended; empty if nothing is."""
    capture.readouterr()
    sys.argv = ["gradus", *line]
    signal.signal(signal.SIGALRM, _ring)
    signal.alarm(LIMIT)
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    except Endless:
        return "no end"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:300]
    finally:
        signal.alarm(0)
    shown = capture.readouterr()
    said = shown.err or shown.out  # a verdict against is a table
    if not code:
        return "accepted"
    return (
        "" if said.strip() and "Traceback" not in said and len(said) < 10_000 else f"code {code}, said {said[-200:]!r}"
    )


def _ring(signum: int, frame: object) -> None:
    raise Endless


def test_bad_lines_end_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    drawn = lines(tmp_path)
    wrong: list[str] = []
    for _ in range(CASES):
        line = next(drawn)
        problem = outcome(line, capsys)
        if problem:
            wrong.append(f"{' '.join(word[:60] for word in line)!r}: {problem}")
    assert not wrong, f"{len(wrong)} of {CASES}:\n" + "\n".join(wrong)
