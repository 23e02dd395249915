"""The OpenEnv server over real sockets."""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from gradus import environments
from gradus.core import EnvironmentSpec, Observation
from gradus.core.servers import LOOPBACK
from gradus.environments.tools import tool_environment
from gradus.interop.openenv.server import EnvironmentSession, SessionSlots, create_app, server_config

SESSIONS = 3
DATA = Path(__file__).parents[1] / "data"
BUILT_IN = {  # one of each kind, and the package that it needs
    "rhythm": None,
    "memory": None,
    "shop": None,
    "arithmetic": None,
    f"gsm8k:{DATA / 'gsm8k_excerpt.jsonl'}": None,
    "gymnasium:FrozenLake-v1": "gymnasium",
    "reasoning-gym:basic_arithmetic": "reasoning_gym",
    "textarena:TicTacToe-v0": "textarena",
}


@pytest.fixture(scope="module")
def address(make_adder: Callable[..., EnvironmentSpec], serve: Callable[..., Any]) -> Iterator[str]:
    """One server for all; every test leaves it without sessions, or the next one would meet a full house."""
    with serve(server_config(create_app(make_adder([]), sessions=SESSIONS))) as served:
        yield served


def dial(address: str) -> connect:
    return connect(f"ws://{address}/ws", proxy=None)


def ask(socket: ClientConnection, kind: str, **data: Any) -> dict[str, Any]:
    socket.send(json.dumps({"type": kind, "data": data} if data else {"type": kind}))
    return json.loads(socket.recv(10))


def code(answer: dict[str, Any]) -> str:
    assert answer["type"] == "error", answer
    assert answer["data"]["message"]
    return answer["data"]["code"]


def in_process(spec: EnvironmentSpec, seed: int, numbers: list[float], **options: Any) -> list[Observation]:
    environment = spec.make()
    environment.reset(seed=seed, **options)
    return [environment.step(repr(number)) for number in numbers]


def test_an_episode_over_the_wire_is_the_episode_in_process(address: str, adder: EnvironmentSpec) -> None:
    numbers = [0.1, 2.0, -3.5, 1e-9, 7.25, 1e6]
    expected = in_process(adder, 5, numbers)
    with dial(address) as socket:
        first = ask(socket, "reset", seed=5, episode_id="e5")
        assert first["type"] == "observation"
        assert first["data"]["reward"] is None
        assert first["data"]["done"] is False
        assert first["data"]["observation"]["system_prompt"] == "Say a number."
        for turn, number in enumerate(numbers):
            answer = ask(socket, "step", text=repr(number))["data"]
            assert answer["reward"] == expected[turn].reward  # exactly: JSON floats read back as the same number
            assert answer["done"] is expected[turn].terminated
            assert answer["observation"]["total"] == expected[turn].data["total"]
            assert answer["observation"]["text"] == expected[turn].text
        assert ask(socket, "state")["data"] == {"episode_id": "e5", "step_count": 6}
        assert code(ask(socket, "step", text="1.0")) == "SESSION_ERROR"  # the episode is over
        assert ask(socket, "reset", seed=6)["type"] == "observation"  # and another may begin


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("{", "INVALID_JSON"),
        ("[" * 100_000, "INVALID_JSON"),
        ("[1, 2]", "VALIDATION_ERROR"),
        ('{"type": ["reset"]}', "UNKNOWN_TYPE"),
        ('{"type": "step", "data": 4}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"text": 5}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": true}}', "VALIDATION_ERROR"),
        (b"\xff\xfe", "INVALID_JSON"),
    ],
)
def test_a_bad_message_is_answered_and_the_episode_goes_on(address: str, raw: str | bytes, expected: str) -> None:
    with dial(address) as socket, dial(address) as other:
        ask(socket, "reset", seed=1)
        ask(socket, "step", text="2.0")
        ask(other, "reset", seed=1)
        socket.send(raw)
        assert code(json.loads(socket.recv(10))) == expected
        assert ask(socket, "step", text="3.0")["data"]["observation"]["total"] == 5.0
        assert ask(other, "step", text="1.0")["data"]["observation"]["total"] == 1.0


def test_nothing_of_an_episode_is_left_for_the_next(serve: Callable[..., Any]) -> None:
    class Counter:
        """A class that begins no episode anew by itself, as nothing in a rollout asks for it."""

        def __init__(self) -> None:
            self.count, self.done = 0, False

        def reset(self) -> str:
            return "Count."

        def add(self) -> int:
            """Count one more."""
            self.count += 1
            self.done = True
            return self.count

        def get_reward(self) -> float:
            return 1.0

    spec = tool_environment(Counter, name="counter")
    with serve(server_config(create_app(spec, sessions=1))) as address, dial(address) as socket:
        for _ in range(3):
            ask(socket, "reset", seed=7)
            answer = ask(socket, "step", text='{"name": "add", "arguments": {}}')["data"]
            assert (answer["observation"]["text"], answer["done"]) == ("1", True)


def play(socket: ClientConnection, most: int, **action: Any) -> list[dict[str, Any]]:
    """What the same action brings, step after step, until the episode is done."""
    answers: list[dict[str, Any]] = []
    while not answers or (len(answers) < most and not answers[-1]["data"].get("done", True)):
        answers.append(ask(socket, "step", **action))
    return answers


def test_a_reset_names_the_tools_and_the_last_step_brings_what_the_grader_says(
    pantry: EnvironmentSpec, serve: Callable[..., Any]
) -> None:
    with serve(server_config(create_app(pantry))) as address, dial(address) as socket:
        first = ask(socket, "reset", seed=3)["data"]["observation"]
        assert [each["function"]["name"] for each in first["tools"]] == ["count"]
        looked = ask(socket, "step", text='{"name": "count", "arguments": {"item": "figs"}}')["data"]
        assert (looked["reward"], looked["done"]) == (None, False)
        assert (
            ask(socket, "step", text=looked["observation"]["text"])["data"]["reward"] == 0.9
        )  # 1, and 0.1 for the call


def test_an_episode_has_no_more_turns_than_the_environment_says(
    pantry: EnvironmentSpec, adder: EnvironmentSpec, serve: Callable[..., Any]
) -> None:
    """The limit held in rollouts alone; a client could play on for ever."""
    with serve(server_config(create_app(pantry))) as address, dial(address) as socket:
        ask(socket, "reset", seed=3)
        answers = play(socket, 9, text='{"name": "count", "arguments": {"item": "figs"}}')
        last = answers[-1]["data"]
        assert (len(answers), last["observation"]["truncated"], last["reward"]) == (4, True, pytest.approx(-0.4))
        assert code(ask(socket, "step", text="5")) == "SESSION_ERROR"
    session = EnvironmentSession(replace(adder, max_turns=2), SessionSlots(1))
    session.reset({"seed": 1})
    assert [session.step({"text": "1"})["observation"]["truncated"] for _ in range(2)] == [False, True]


def test_an_episode_whose_reward_nobody_knows_ends_with_an_error_that_says_why(
    pantry: EnvironmentSpec, serve: Callable[..., Any]
) -> None:
    for reward, why in ((lambda _: None, "returned None"), (lambda _: 1 / 0, "ZeroDivisionError")):
        grader = replace(pantry.grader(), compute=lambda episodes, reward=reward: [reward(each) for each in episodes])
        spec = replace(pantry, graders={"reward": grader})
        with serve(server_config(create_app(spec))) as address, dial(address) as socket:
            ask(socket, "reset", seed=3)
            answer = ask(socket, "step", text="5")
            assert code(answer) == "EXECUTION_ERROR"
            assert why in answer["data"]["message"]
            assert ask(socket, "reset", seed=3)["type"] == "observation"


def test_an_environment_that_raises_ends_its_own_episode_only(address: str) -> None:
    with dial(address) as socket, dial(address) as other:
        ask(socket, "reset", seed=1)
        ask(other, "reset", seed=1)
        answer = ask(socket, "step", text="boom")
        assert code(answer) == "EXECUTION_ERROR"
        assert "the adder broke" in answer["data"]["message"]
        assert code(ask(socket, "step", text="1.0")) == "SESSION_ERROR"
        assert ask(other, "step", text="1.0")["type"] == "observation"
        assert ask(socket, "reset", seed=1)["type"] == "observation"


def test_over_capacity_is_told_and_every_way_to_leave_frees_a_place(
    adder: EnvironmentSpec, closed: list[Any], serve: Callable[..., Any]
) -> None:
    config = server_config(create_app(adder, sessions=SESSIONS))
    before = len(closed)
    with serve(config) as address, ExitStack() as stack:
        polite, abrupt, midway = (stack.enter_context(dial(address)) for _ in range(SESSIONS))
        for socket in (polite, abrupt, midway):
            assert ask(socket, "reset", seed=1)["type"] == "observation"
        late = stack.enter_context(dial(address))
        assert code(ask(late, "reset", seed=1)) == "CAPACITY_REACHED"
        assert ask(polite, "step", text="1.0")["type"] == "observation"  # the others go on
        polite.send('{"type": "close"}')
        abrupt.socket.close()
        midway.send('{"type": "step", "data": {"text": "1"}}')
        midway.socket.close()
        until = time.monotonic() + 10
        while len(closed) - before < 3 and time.monotonic() < until:
            time.sleep(0.01)
        assert len(closed) - before == 3
        # A place is free in the moment behind.
        while (reply := ask(late, "reset", seed=1))["type"] == "error" and time.monotonic() < until:
            time.sleep(0.01)
        assert reply["type"] == "observation"


def test_many_sessions_at_once_are_not_mixed_up(adder: EnvironmentSpec, serve: Callable[..., Any]) -> None:
    def run_episode(address: str, seed: int) -> list[float]:
        with dial(address) as socket:
            ask(socket, "reset", seed=seed)
            return [ask(socket, "step", text=str(seed + turn))["data"]["reward"] for turn in range(6)]

    with serve(server_config(create_app(adder, sessions=32))) as address, ThreadPoolExecutor(16) as pool:
        by_seed = list(pool.map(lambda seed: run_episode(address, seed), range(32)))
    for seed, rewards in enumerate(by_seed):
        expected = in_process(adder, seed, [float(seed + turn) for turn in range(6)])
        assert rewards == [one.reward for one in expected]


def test_pages_describe_the_server(address: str) -> None:
    with httpx.Client(base_url=f"http://{address}", trust_env=False) as client:
        assert client.get("/health").json() == {"status": "healthy"}
        assert client.get("/metadata").json()["name"] == "adder"
        assert list(client.get("/schema").json()["action"]["properties"]) == ["text"]
        assert client.post("/reset", json={"seed": 9}).status_code == 404  # episodes have a socket


@pytest.mark.parametrize("name", BUILT_IN, ids=lambda name: name.partition("/")[0])
def test_every_environment_that_comes_along_can_be_played_over_the_wire(name: str, serve: Callable[..., Any]) -> None:
    if (package := BUILT_IN[name]) is not None:
        pytest.importorskip(package)
    spec = environments.load(name)
    with serve(server_config(create_app(spec, sessions=1))) as address, dial(address) as socket:
        firsts = {ask(socket, "reset")["data"]["observation"]["text"] for _ in range(5)}
        assert len(firsts) > 1 or name.startswith(("gymnasium", "textarena"))  # a task by chance, if no seed is named
        assert all(firsts)
        *_, last = play(socket, spec.max_turns, text="hello")
        assert last["type"] == "observation", last
        assert last["data"]["done"]
        assert isinstance(last["data"]["reward"], int | float)


def test_pages_of_other_names_and_overlong_bodies_are_refused(
    make_adder: Callable[..., EnvironmentSpec], serve: Callable[..., Any]
) -> None:
    app = create_app(make_adder([]), sessions=1, hosts=LOOPBACK)
    with serve(server_config(app)) as address:
        url = f"http://{address}"
        assert httpx.get(f"{url}/schema", headers={"Host": "evil.example"}).status_code == 403
        assert httpx.get(f"{url}/schema", headers={"Origin": "https://evil.example"}).status_code == 403
        assert httpx.post(f"{url}/mcp", content=b" " * (5 * 2**20)).status_code == 413
        assert httpx.get(f"{url}/schema").status_code == 200
        with pytest.raises(InvalidStatus, match="403"), connect(f"ws://{address}/ws", origin="https://evil.example"):  # type: ignore[arg-type]
            pass


def test_typed_fields_are_taken_or_refused_and_the_episode_goes_on(serve: Callable[..., Any]) -> None:
    with serve(server_config(create_app(environments.load("rhythm")))) as address, dial(address) as socket:
        choices = httpx.get(f"http://{address}/schema", trust_env=False).json()["action"]["anyOf"]
        assert [choice["title"] for choice in choices] == ["RhythmAction", "TextAction"]
        ask(socket, "reset", seed=1)
        assert code(ask(socket, "step", action_type="fly")) == "VALIDATION_ERROR"
        taken = ask(socket, "step", action_type="sleep", belief=None, metadata={})["data"]["observation"]
        assert taken["history"][-1]["action"] == "sleep"
