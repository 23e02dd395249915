"""Damaged files: each kind of document that a command reads, damaged in each way. The corpus grows with every defect."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "binary": lambda data: bytes(range(256)) * 4,
    "not UTF-8": lambda data: b"\xff\xfe" + data,
    "NUL bytes": lambda data: data.replace(b"\n", b"\x00\n"),
    "a list": lambda data: b"[1, 2, 3]\n",
    "a list of lists": lambda data: b"[[[]], [1], null]\n",
    "a number": lambda data: b"7\n",
    "null": lambda data: b"null\n",
    "a text": lambda data: b'"text"\n',
    "an empty object": lambda data: b"{}\n",
    "nested deeply": lambda data: b"[" * 100_000 + b"]" * 100_000,
    "an object nested deeply": lambda data: b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "NaN": lambda data: b'{"kind": "step", "step": NaN, "reward_mean": Infinity, "schema": NaN}\n',
    "huge numbers": lambda data: b'{"kind": "step", "step": 1e999, "schema": 100000000000000000000000000000000000}\n',
    "a lone surrogate": lambda data: b'{"kind": "\\ud800", "step": 1, "schema": 2, "environment": "\\udfff"}\n',
    "values of another type": lambda data: _retyped(data),
    "keys missing": lambda data: _without_values(data),
    "compressed": lambda data: gzip.compress(data),
}


def _retyped(data: bytes) -> bytes:
    """Every value of the first level replaced by one of another type, in a JSON document or in each of its lines."""
    return _each(
        data, lambda value: {key: [str(inner)] if not isinstance(inner, list) else 1 for key, inner in value.items()}
    )


def _without_values(data: bytes) -> bytes:
    return _each(data, lambda value: dict.fromkeys(list(value)[:1]))


def _each(data: bytes, change: Callable[[dict], dict]) -> bytes:
    try:
        value = json.loads(data)
        return json.dumps(change(value)).encode() if isinstance(value, dict) else b"{}"
    except (ValueError, RecursionError):
        pass
    lines = []
    for line in data.splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        lines.append(json.dumps(change(value)).encode() if isinstance(value, dict) else line)
    return b"\n".join(lines) + b"\n"


def damaged(path: Path) -> Iterator[str]:
    """Put each damage into a file in turn, yielding its name; the file is whole again in the end."""
    whole = path.read_bytes()
    try:
        for name, damage in DAMAGES.items():
            path.write_bytes(damage(whole))
            yield name
    finally:
        path.write_bytes(whole)


ENVIRONMENTS = (
    "",
    ":",
    "::",
    ":x",
    "x:",
    "..:x",
    ".:x",
    "/:x",
    "a:b:c",
    "rhythm:",
    "rhythm:x",
    "rythm",
    "arithmetic:digits=",
    "arithmetic:digits=-1",
    "arithmetic:digits=1e9",
    "arithmetic:nope=1",
    "arithmetic:digits=2&digits=3",
    "jsonl:",
    "jsonl:/",
    "jsonl:nope.jsonl",
    "csv:nope.csv?",
    "gsm8k:/nope",
    "memory:nope",
    "memory:babi:",
    "memory:babi:/nope",
    "openenv:",
    "openenv:ws://",
    "openenv:ws://127.0.0.1:1",
    "openenv:http://[",
    "os:path",
    "json:loads",
    "\x00",
    "rhythm\n",
    "é:ü",
    "a" * 5000,
    "mine.py:spec",
    "mine.py",
    "-",
    "~",
    "rhythm;ls",
    "$(ls)",
    "../../etc/passwd",
)
NUMBERS = ("-1", "-0", "0", "1e3", "1.5", "nan", "inf", "1000000000000000000000000", "", "x", "0x10", "١")
SETTINGS = (
    "",
    "=",
    "a",
    "a=",
    "=1",
    "a.b=1",
    "grpo=1",
    "grpo.=1",
    ".grpo=1",
    "grpo..lr=1",
    "grpo.lr=",
    "grpo.lr=x",
    "grpo.lr=nan",
    "grpo.lr=-1",
    "grpo.lr=1e400",
    "grpo.lr=[1]",
    "grpo.lr={a=1}",
    "grpo.max_steps=2026-11-21",
    "grpo.max_steps=1.5",
    "grpo.max_steps=true",
    "grpo.sampling=1",
    "grpo.sampling.temperature=-1",
    "environment=1",
    "environment=[]",
    "stage=1",
    "stage.0.steps=1",
    "stage.x=1",
    "seed=99999999999999999999999999",
    "seed=-1",
    "sft.betas=[1]",
    "sft.betas=[2,3]",
    "model.nano.hidden_size=0",
    "model.nano.heads=3",
    "model.nano.layers=-1",
    "rewards=[1]",
    "rewards=['nope']",
    "rewards=['os:path']",
    "eval.policies='x'",
    "grpo.algorithm=nope",
    "grpo.credit=nope",
    "grpo.device=nope",
    "grpo.dtype=nope",
    "trackers=['nope']",
    "grpo.sampling.max_new_tokens=0",
    "grpo=[[",
    'a="',
    "a='''",
)
