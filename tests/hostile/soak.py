"""Keeps ``gradus serve`` under a mixed load, and shows the memory that its process holds.

    python -m tests.hostile.soak RUN_FOLDER [--minutes 30] [--per-second 4]

Ordinary requests, wrong ones, and clients that leave take turns. At the end the server gets SIGTERM with requests under way. It ends
with 1 if memory grew, a request was answered by a 5xx, or the end was not clean.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import httpx

__all__ = ["LOAD", "soak"]

GROWTH = 4 * 2**20, 1.01  # bytes and share that memory may grow after the first fifth of the time
CHAT = {"model": "run", "messages": [{"role": "user", "content": "What is 1 + 2?"}], "max_tokens": 12}
PROMPT = {"model": "run", "prompt": "1 + 2", "max_tokens": 12}


# Nothing is encrypted here, and loading certificates for each request would cost ten times what the server does.
def _post(path: str, body: object) -> Callable[[str], int]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return lambda url: httpx.post(f"{url}{path}", content=content, timeout=60, verify=False).status_code


def _get(path: str, **headers: str) -> Callable[[str], int]:
    return lambda url: httpx.get(f"{url}{path}", headers=headers, timeout=60, verify=False).status_code


def _leaving(path: str, body: object) -> Callable[[str], int]:
    """A client that reads the first piece of a stream and leaves."""

    def ask(url: str) -> int:
        with httpx.stream("POST", f"{url}{path}", json=body, timeout=60, verify=False) as answer:
            next(answer.iter_raw(), b"")
            return answer.status_code

    return ask


def _vanished(url: str) -> int:
    """A client that promises a body and goes away."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    return 0


LOAD: Sequence[Callable[[str], int]] = (
    _post("/v1/chat/completions", CHAT),
    _leaving("/v1/chat/completions", {**CHAT, "stream": True, "max_tokens": 60}),
    _post("/v1/completions", {**PROMPT, "return_token_ids": True}),
    _post("/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": "1 " * 5000}]}),
    _post("/v1/completions", b'{"prompt": [[[[['),
    _post("/v1/completions", {**PROMPT, "temperature": -1}),
    _get("/v1/models"),
    _get("/v1/nothing", Host="evil.example"),
    _vanished,
)


def soak(run: Path, *, minutes: float, per_second: float) -> bool:
    """Start the server, keep it under load, and end it with requests under way. Says whether all went well."""
    memory: list[int] = []
    statuses: Counter[int] = Counter()
    with tempfile.TemporaryFile("w+") as said:
        command = [sys.executable, "-u", "-m", "gradus", "serve", str(run), "--port", "0"]
        with subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, text=True) as process:
            url = _address(process, said)
            until, sent, next_look = time.monotonic() + minutes * 60, 0, 0.0
            while time.monotonic() < until and process.poll() is None:
                asked = time.monotonic()
                statuses[_status(LOAD[sent % len(LOAD)], url)] += 1
                sent += 1
                if sent > len(LOAD) and time.monotonic() > next_look:
                    memory.append(_held(process.pid))
                    next_look = time.monotonic() + minutes * 60 / 200
                time.sleep(max(0.0, asked + 1 / per_second - time.monotonic()))
            under_way = [threading.Thread(target=_status, args=(each, url)) for each in LOAD * 2]
            for thread in under_way:
                thread.start()
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
            for thread in under_way:
                thread.join()
        said.seek(0)
        text = said.read()
    fifth, tenth = len(memory) // 5, max(3, len(memory) // 10)
    warm, end = statistics.median(memory[fifth : fifth + tenth]), statistics.median(memory[-tenth:])
    flat = end < warm * GROWTH[1] or end - warm < GROWTH[0]
    right = statuses[200] > sum(statuses.values()) / 4 and not any(status >= 500 for status in statuses)
    print(
        f"{sent} requests in {minutes:g} min, {dict(statuses)}; {warm / 2**20:.1f} MiB warm, {end / 2**20:.1f} at the end; code {code}"
    )
    print("" if code == 0 else text[-3000:])
    return flat and right and code == 0 and "Traceback" not in text


def _held(process: int) -> int:
    """Bytes of memory that a process and its children hold."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * 4096 + sum(_held(int(child)) for child in children)


def _address(process: subprocess.Popen[str], said: IO[str]) -> str:
    """The address that the server names, once it answers there."""
    until = time.monotonic() + 300
    while time.monotonic() < until:
        text = Path(f"/proc/self/fd/{said.fileno()}").read_text()
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
    given = arguments.parse_args()
    sys.exit(not soak(given.run, minutes=given.minutes, per_second=given.per_second))


if __name__ == "__main__":
    main()
