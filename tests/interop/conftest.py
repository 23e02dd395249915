"""A small environment whose every answer can be worked out by hand, and a real server in a thread."""

import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from tinker_servers import Python, sdk_python_of
from tiny_qwen2 import make_tiny_qwen2

from gradus.core import (
    AuditHints,
    Condition,
    EnvironmentSpec,
    Episode,
    Grader,
    Observation,
    Reward,
    RewardTerm,
    Task,
    child_rng,
)
from gradus.environments.tools import by_call, tool_environment
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig

collect_ignore = [
    "stock_client.py",
    "two_processes.py",
    "cookbook_loops.py",
    "tinker_program.py",
    "tinker_update.py",
]  # scripts that other interpreters and launchers run
STEPS = 6


@dataclass
class Adder:
    """Adds what it is told; the reward is the number times a factor that the seed hides. ``boom`` breaks it."""

    closed: list[Any] = field(default_factory=list)
    seed: int = 0
    episode_id: str | None = None
    count: int = 0
    total: float = 0.0
    factor: float = 0.0
    system_prompt: str = "Say a number."

    @property
    def state(self) -> Mapping[str, Any]:
        return {"episode_id": self.episode_id, "step_count": self.count}

    def reset(self, *, seed: int | None = None, episode_id: str | None = None, double: bool = False) -> Observation:
        self.seed = 0 if seed is None else seed
        self.episode_id, self.count, self.total = episode_id, 0, 0.0
        self.factor = child_rng(self.seed, "factor").random() * (2 if double else 1)
        return Observation(text="total 0", data={"total": 0.0, "step": 0})

    def step(self, action: str) -> Observation:
        if action == "boom":
            raise RuntimeError("the adder broke")
        try:
            return self._add(float(action))
        except ValueError:
            return self._add(0.0, error=f"not a number: {action}")

    def _add(self, number: float, error: str | None = None) -> Observation:
        self.count += 1
        self.total += number
        return Observation(
            text=f"total {self.total:g}",
            data={"total": self.total, "step": self.count},
            reward=number * self.factor,
            terminated=self.count == STEPS,
            action_valid=error is None,
            action_error=error,
        )

    def outcome(self) -> Mapping[str, Any]:
        return {"factor": self.factor}

    def close(self) -> None:
        self.closed.append(self)


def _grade(episodes: Sequence[Episode]) -> list[Reward]:
    terms = [
        tuple((RewardTerm(component="sum", value=turn.env_reward or 0.0),) for turn in one.turns) for one in episodes
    ]
    values = [sum(term.value for (term,) in one) for one in terms]
    return [
        Reward(grader="sum", value=value, components={"sum": value}, terms=one)
        for value, one in zip(values, terms, strict=True)
    ]


def _adder(closed: list[Adder]) -> EnvironmentSpec:
    return EnvironmentSpec(
        name="adder",
        summary="adds numbers",
        make=lambda: Adder(closed=closed),
        graders={"sum": Grader(name="sum", summary="", weights={"sum": 1.0}, compute=_grade, per_turn=True)},
        default_grader="sum",
        conditions={"doubled": Condition(name="doubled", seeds=range(10), options={"double": True})},
        train_task=lambda index: Task(environment="adder", seed=1_000 + index),
        policies={},
        true_reward=lambda episode: episode.env_return,
        true_reward_name="return",
        max_turns=STEPS,
        audit=AuditHints(hidden=("factor",)),
    )


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Qwen2, which no test writes to."""
    return make_tiny_qwen2(tmp_path_factory.mktemp("models") / "tiny", context=4096)


@pytest.fixture(scope="session")
def loaded(tiny: Path) -> LoadedModel:
    return load_model(tiny)


@pytest.fixture(scope="session")
def calling(tiny: Path) -> LoadedModel:
    """The same model; it calls tools in JSON."""
    return load_model(tiny, tool_calls="json")


@pytest.fixture
def policy(loaded: LoadedModel) -> LocalPolicy:
    return LocalPolicy(loaded, SamplingConfig(max_new_tokens=8))


@pytest.fixture
def closed() -> list[Adder]:
    """The adders that were closed."""
    return []


@pytest.fixture
def adder(closed: list[Adder]) -> EnvironmentSpec:
    return _adder(closed)


class Pantry:
    """Says how many figs there are if it is asked."""

    system_prompt = "Look first."

    def reset(self, seed: int) -> str:
        self.stock = seed % 10
        return "How many figs?"

    def count(self, item: str) -> int:
        """Count what is in the pantry.

        Args:
            item: What to count.
        """
        return self.stock

    def outcome(self) -> Mapping[str, Any]:
        return {"right": str(self.stock)}


@pytest.fixture
def pantry() -> EnvironmentSpec:
    """An environment with a tool whose reward is a grader's: 1 for the right number, and 0.1 less for each call."""

    def right(episode: Episode) -> Reward:
        return by_call(episode, float(episode.outcome["answer"] == episode.outcome["right"]), lambda call: -0.1)

    return tool_environment(Pantry, name="pantry", reward=right, max_turns=4)


@pytest.fixture(scope="session")
def make_adder() -> Callable[[list[Adder]], EnvironmentSpec]:
    return _adder


@contextmanager
def running(config: uvicorn.Config) -> Iterator[str]:
    """A real server on a free port of this machine, in a thread; yields ``host:port``."""
    config.port = 0
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + 20
    while not server.started:
        if time.monotonic() > until:
            raise TimeoutError("the server did not start in 20 s")
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def serve() -> Callable[[uvicorn.Config], Any]:
    return running


@pytest.fixture
def unused_port() -> int:
    """A port of this machine that nothing listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def stock_python() -> Callable[[str], Path]:
    """The Python of a virtual environment that holds a package of the registry; it is kept in the temporary directory."""

    def python(requirement: str) -> Path:
        folder = Path(tempfile.gettempdir()) / f"gradus-{requirement.replace('==', '-')}"
        if not (folder / "done").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            pip = [folder / "bin/pip", "install", "--quiet", requirement]
            installed = subprocess.run(pip, capture_output=True, text=True)
            if installed.returncode != 0:
                pytest.skip(f"needs {requirement} from a package registry: {installed.stderr[-300:]}")
            (folder / "done").touch()
        return folder / "bin" / "python"

    return python


collect_ignore_glob = ["clients/*"]  # scripts that run in environments of their own


@pytest.fixture(scope="session")
def sdk_python() -> Python:
    """The Python of an environment with a version of the SDK of the Tinker API."""
    return sdk_python_of
