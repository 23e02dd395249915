"""Both directions against the real package openenv, in a virtual environment of its own, which is kept in the temporary directory."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gradus import environments
from gradus.core import StopReason
from gradus.interop.openenv.client import load
from gradus.interop.openenv.server import create_app, server_config
from gradus.rollouts import roll_out

pytestmark = pytest.mark.slow

STOCK = "openenv==0.10.0"
CLIENT = Path(__file__).parent / "stock_client.py"


@pytest.fixture(scope="module")
def stock(stock_python: Callable[[str], Path]) -> Path:
    """The ``bin`` folder of a virtual environment that holds the stock package."""
    return stock_python(STOCK).parent


def played_by(stock: Path, address: str, kind: str, sessions: int, steps: int) -> list[list[float]]:
    command = [stock / "python", CLIENT, f"ws://{address}", kind, str(sessions), str(steps)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout.splitlines()[-1])


def in_process(kind: str, sessions: int, steps: int) -> list[list[float]]:
    """The same weeks without a wire. What the client does is read from its file, OpenEnv's names left out."""
    source = CLIENT.read_text()
    start, end = source.index("def action("), source.index("async def generic")
    names = source[source.index("NAMES =") : source.index("class WeekAction")]
    space: dict[str, Any] = {"Any": Any}
    exec(names + source[start:end], space)
    by_session: list[list[float]] = []
    for session in range(sessions):
        environment = environments.load("rhythm").make()
        rewards: list[float] = []
        for step in range(steps):
            if step % 28 == 0:
                environment.reset(seed=session * 1_000 + step // 28)
            chosen = space["action"](session, step)
            if kind == "typed":
                chosen = {
                    "action_type": space["NAMES"][(session + step) % len(space["NAMES"])],
                    "belief": [0.25, 0.5, 1.0],
                }
            text = chosen.get("text")
            taken = environment.step(text) if text is not None else environment.step_typed(chosen)  # type: ignore[attr-defined]
            assert taken.reward is not None
            rewards.append(taken.reward)
        by_session.append(rewards)
    return by_session


@pytest.mark.parametrize("kind", ["generic", "typed"])
def test_a_stock_client_plays_whole_weeks(stock: Path, kind: str, serve: Callable[..., Any]) -> None:
    with serve(server_config(create_app(environments.load("rhythm")))) as address:
        sessions = played_by(stock, address, kind, 4, 28 * 5)
    for session, expected in zip(sessions, in_process(kind, 4, 28 * 5), strict=True):
        assert session == pytest.approx(expected, abs=1e-9)


def test_a_running_server_is_a_valid_one(stock: Path, serve: Callable[..., Any]) -> None:
    with serve(server_config(create_app(environments.load("rhythm")))) as address:
        command = [stock / "openenv", "validate", "--url", f"http://{address}"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@contextmanager
def running_server(command: list[str], folder: Path) -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([*command, "--port", str(port)], cwd=folder, start_new_session=True)
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, "the server ended"
            time.sleep(0.1)
        yield port
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=20)


def test_a_stock_server_is_an_environment_here(stock: Path, tmp_path: Path) -> None:
    subprocess.run([stock / "openenv", "init", "echo_env"], cwd=tmp_path, capture_output=True, timeout=300)
    folder = tmp_path / "echo_env"
    assert (folder / "server" / "app.py").exists()
    command = [str(stock / "python"), "-m", "uvicorn", "server.app:app"]
    with running_server(command, folder) as port:
        spec = load(f"ws://127.0.0.1:{port}?turns=3&sessions=1")
        episodes = roll_out(spec, spec.policy("constant:hello"), spec.tasks("main", 4)).episodes
    assert [episode.stop for episode in episodes] == [StopReason.TURN_LIMIT] * 4
    for episode in episodes:
        assert [turn.env_reward for turn in episode.turns] == pytest.approx([0.5] * 3)  # 0.1 for each letter
        assert episode.turns[1].data["echoed_message"] == "hello"
        assert episode.reward.value == pytest.approx(1.5)
