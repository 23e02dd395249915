"""Steps per second that the OpenEnv server gives one client over one socket, the server on one core.

The client waits for every answer (a round trip a step), as all stock clients do. Shown too: the same with client and server on
one and the same core, and the environment alone, without any wire. The aim is 3,000 round trips per second.

    python benchmarks/openenv_server.py [--seconds 3] [--runs 3]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager

AIM = 3_000  # steps per second
ACTIONS = ("deep_work", "sleep", "exercise", "family_time")


def serve(port: int) -> None:
    """Serve Rhythm until the process is ended."""
    import uvicorn

    from gradus import environments
    from gradus.interop.openenv.server import create_app, server_config

    uvicorn.Server(server_config(create_app(environments.load("rhythm")), port=port)).run()


@contextmanager
def server(core: int):
    """A server process bound to one core; yields its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, __file__, "--serve", str(port)], env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    os.sched_setaffinity(process.pid, {core})
    try:
        for _ in range(400):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(timeout=20)


def messages(seed: int) -> list[str]:
    """A whole week: a reset and 28 steps."""
    steps = [{"text": f"1 5 9 {ACTIONS[step % 4]}"} for step in range(28)]
    return [json.dumps({"type": "reset", "data": {"seed": seed}})] + [
        json.dumps({"type": "step", "data": step}) for step in steps
    ]


def over_the_wire(port: int, seconds: float, core: int) -> float:
    """Round trips per second of one client on ``core``; every answer is read and looked at."""
    from websockets.sync.client import connect

    os.sched_setaffinity(0, {core})
    with connect(f"ws://127.0.0.1:{port}/ws", proxy=None, compression=None) as client:
        steps, seed, started = 0, 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            for message in messages(seed):
                client.send(message)
                answer = json.loads(client.recv())
                assert answer["type"] == "observation", answer
            steps += 28
            seed += 1
        return steps / (time.perf_counter() - started)


def in_process(seconds: float) -> float:
    """The same work without a wire: messages in, messages out."""
    from gradus import environments
    from gradus.interop.openenv.server import EnvironmentSession, SessionSlots

    session = EnvironmentSession(environments.load("rhythm"), SessionSlots(1))
    steps, seed, started = 0, 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        for message in messages(seed):
            session.handle(message)
        steps += 28
        seed += 1
    return steps / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--serve", type=int, metavar="PORT", help="(what this script calls itself with)")
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve)
    cores = sorted(os.sched_getaffinity(0))
    first, last = cores[0], cores[-1]
    with server(first) as port:
        apart = [over_the_wire(port, options.seconds, last) for _ in range(options.runs)]
        together = [over_the_wire(port, options.seconds, first) for _ in range(options.runs)]
    alone = [in_process(options.seconds) for _ in range(options.runs)]
    print(f"one socket, server on one core, client on another: {statistics.median(apart):7.0f} steps/s  (aim {AIM})")
    print(f"one socket, both on the same core:                 {statistics.median(together):7.0f} steps/s")
    print(f"no wire, messages in and out in one process:       {statistics.median(alone):7.0f} steps/s")
    ours = statistics.median(apart)
    record = {
        "name": "openenv_server",
        "ratio": ours / AIM,
        "ours": ours,
        "other": AIM,
        "unit": "steps/s",
        "runs": apart,
    }
    print(json.dumps(record))
    return None


if __name__ == "__main__":
    main()
