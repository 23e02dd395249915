"""Keeps each server under a mixed load, and shows the memory that its process holds.

    python -m tests.hostile.soak RUN_FOLDER [--minutes 30] [--per-second 4] [--only serve]

All servers at once, or one. Ordinary requests, wrong ones, and clients that leave take turns. At the end the server gets SIGTERM with
requests under way. It ends with 1 if memory grew, a request was answered by a 5xx, or the end was not clean.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

__all__ = ["LOADS", "Soak", "soak"]

COLUMNS = ("server", "minutes", "requests", "refused (4xx)", "errors (5xx)", "MiB at first", "warm", "half way", "at the end", "most",
           "exit code")  # fmt: skip
GROWTH = 4 * 2**20, 1.01  # bytes and share that memory may grow after the first fifth of the time
CHAT = {"model": "run", "messages": [{"role": "user", "content": "What is 1 + 2?"}], "max_tokens": 12}
PROMPT = {"model": "run", "prompt": "1 + 2", "max_tokens": 12}

Load = Sequence[Callable[[str], int]]


# Nothing is encrypted here, and loading certificates for each request would cost ten times what the server does.
def _post(path: str, body: object) -> Callable[[str], int]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return lambda url: httpx.post(f"{url}{path}", content=content, timeout=60, verify=False).status_code


def _get(path: str, **headers: str) -> Callable[[str], int]:
    return lambda url: httpx.get(f"{url}{path}", headers=headers, timeout=60, verify=False).status_code


def _leaving(method: str, path: str, body: object = None) -> Callable[[str], int]:
    """A client that reads the first piece of a stream and leaves."""

    def ask(url: str) -> int:
        with httpx.stream(method, f"{url}{path}", json=body, timeout=60, verify=False) as answer:
            next(answer.iter_raw(), b"")
            return answer.status_code

    return ask


def _vanished(url: str) -> int:
    """A client that promises a body and goes away."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    return 0


def _episode(messages: Sequence[object], *, say_goodbye: bool = True) -> Callable[[str], int]:
    def ask(url: str) -> int:
        with (
            contextlib.suppress(WebSocketException),
            connect(f"ws{url.removeprefix('http')}/ws", proxy=None) as socket_,
        ):
            for message in messages:
                socket_.send(message if isinstance(message, str | bytes) else json.dumps(message))
                socket_.recv(30)
            if not say_goodbye:
                socket_.socket.close()
        return 200

    return ask


RESET, STEP = {"type": "reset", "data": {"seed": 3}}, {"type": "step", "data": {"text": "<answer>3</answer>"}}
LOADS: Mapping[str, Load] = {
    "serve": (
        _post("/v1/chat/completions", CHAT),
        _leaving("POST", "/v1/chat/completions", {**CHAT, "stream": True, "max_tokens": 60}),
        _post("/v1/completions", {**PROMPT, "n": 4, "logprobs": 3, "seed": 1}),
        _post("/v1/completions", {**PROMPT, "return_token_ids": True}),
        _post("/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": "1 " * 5000}]}),
        _post("/v1/completions", b'{"prompt": [[[[['),
        _post("/v1/completions", {**PROMPT, "temperature": -1}),
        _get("/v1/models"),
        _get("/v1/nothing", Host="evil.example"),
        _vanished,
    ),
    "serve-env": (
        _episode([RESET, STEP]),
        _episode([RESET], say_goodbye=False),
        _episode([RESET, {"type": "step", "data": {"nope": 1}}, "[[[", b"\xff\xfe", {"type": "?"}]),
        _post("/mcp", {}),
        _post("/reset", {"seed": 5}),
        _get("/schema"),
        _get("/metadata", Origin="http://evil.example"),
        _vanished,
    ),
}


@dataclass
class Soak:
    """What one server did: bytes held by its process over time, statuses, the way it ended."""

    server: str
    minutes: float
    memory: list[int] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    code: int | None = None
    said: str = ""

    @property
    def warm(self) -> float:
        """Memory after the first fifth of the time."""
        fifth = len(self.memory) // 5
        return statistics.median(self.memory[fifth : fifth + max(3, fifth // 2)])

    @property
    def middle(self) -> float:
        half = len(self.memory) // 2
        return statistics.median(self.memory[half : half + max(3, len(self.memory) // 10)])

    @property
    def end(self) -> float:
        return statistics.median(self.memory[-max(3, len(self.memory) // 10) :])

    @property
    def well(self) -> bool:
        """Whether memory was flat, right requests were answered, no answer was an error of the server, and the end was clean."""
        flat = self.end < self.warm * GROWTH[1] or self.end - self.warm < GROWTH[0]
        right = self.statuses[200] > sum(self.statuses.values()) / 3
        clean = self.code == 0 and "Traceback" not in self.said
        return flat and right and clean and not any(status >= 500 for status in self.statuses)

    def row(self) -> str:
        wrong = sum(count for status, count in self.statuses.items() if 400 <= status < 500)
        errors = sum(count for status, count in self.statuses.items() if status >= 500)
        figures = [
            f"{each / 2**20:.1f}" for each in (self.memory[0], self.warm, self.middle, self.end, max(self.memory))
        ]
        parts = [
            self.server,
            f"{self.minutes:g}",
            str(sum(self.statuses.values())),
            str(wrong),
            str(errors),
            *figures,
            str(self.code),
        ]
        return f"| {' | '.join(parts)} |"


def _held(process: int) -> int:
    """Bytes of memory that a process and its children hold."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * 4096 + sum(_held(int(child)) for child in children)


def soak(server: str, run: Path, *, minutes: float, per_second: float) -> Soak:
    """Start a server, keep it under load, and end it with requests under way."""
    words = {"serve": [str(run)], "serve-env": ["arithmetic"]}[server]
    command = [sys.executable, "-u", "-m", "gradus", server, *words, "--port", "0"]
    result = Soak(server, minutes)
    with tempfile.TemporaryFile("w+") as said:
        with subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, text=True) as process:
            url = _address(process, said)
            until, sent = time.monotonic() + minutes * 60, 0
            next_look = 0.0
            while time.monotonic() < until and process.poll() is None:
                asked = time.monotonic()
                result.statuses[_status(LOADS[server][sent % len(LOADS[server])], url)] += 1
                sent += 1
                if sent > len(LOADS[server]) and time.monotonic() > next_look:
                    result.memory.append(_held(process.pid))
                    next_look = time.monotonic() + minutes * 60 / 200
                time.sleep(max(0.0, asked + 1 / per_second - time.monotonic()))
            under_way = [threading.Thread(target=_status, args=(each, url)) for each in LOADS[server] * 2]
            for thread in under_way:
                thread.start()
            process.send_signal(signal.SIGTERM)
            result.code = process.wait(60)
            for thread in under_way:
                thread.join()
        said.seek(0)
        result.said = said.read()
    return result


def _address(process: subprocess.Popen[str], said: object) -> str:
    """The address that the server names, once it answers there."""
    until = time.monotonic() + 300
    while time.monotonic() < until:
        text = Path(f"/proc/self/fd/{said.fileno()}").read_text()  # type: ignore[attr-defined]
        if "://" in text:
            port = text.split("://")[1].split(":")[1].split("/")[0].split()[0].rstrip(";")
            url = f"http://127.0.0.1:{port}"
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(f"{url}/health", timeout=60)
                return url
        assert process.poll() is None, text
        time.sleep(0.2)
    raise TimeoutError("the server did not begin")


def _status(ask: Callable[[str], int], url: str) -> int:
    try:
        return ask(url)
    except (OSError, httpx.HTTPError, TimeoutError):
        return 0


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("run", type=Path)
    arguments.add_argument("--minutes", type=float, default=30)
    arguments.add_argument("--per-second", type=float, default=4)
    arguments.add_argument("--only", default="", choices=("", *LOADS))
    given = arguments.parse_args()
    results: list[Soak] = []
    print(f"| {' | '.join(COLUMNS)} |\n|---|{'---:|' * (len(COLUMNS) - 1)}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        run = Path(shutil.copytree(given.run, Path(name) / "run"))
        with ThreadPoolExecutor() as together:
            begun = partial(soak, run=run, minutes=given.minutes, per_second=given.per_second)
            for result in together.map(begun, [given.only] if given.only else LOADS):
                results.append(result)
                print(result.row(), flush=True)
                if not result.well:
                    print(result.statuses, result.said[-3000:], flush=True)
    sys.exit(not all(each.well for each in results))


if __name__ == "__main__":
    main()
