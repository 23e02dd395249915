"""The OpenEnv server over real sockets."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from gradus import environments
from gradus.core import EnvironmentSpec, Observation, Stepping, TemporaryFault
from gradus.core.servers import LOOPBACK
from gradus.environments.tools import tool_environment
from gradus.interop.openenv.server import create_app, schemas, server_config
from gradus.interop.openenv.sessions import Session, SessionSlots

SESSIONS = 3
DATA = Path(__file__).parents[1] / "data"
BABI = DATA / "babi" / "qa1_single-supporting-fact_test.txt"
BUILT_IN = {  # one of each kind, and the package that it needs
    "rhythm": None,
    "memory": None,
    f"memory:babi:{BABI}": None,
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


@pytest.fixture
def fresh_address(make_adder: Callable[..., EnvironmentSpec], serve: Callable[..., Any]) -> Iterator[str]:
    """A server of one's own, all of whose places are free."""
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
            typed = turn % 2 == 0
            answer = ask(socket, "step", **({"number": number} if typed else {"text": repr(number)}))["data"]
            assert answer["reward"] == expected[turn].reward  # exactly: JSON floats read back as the same number
            assert answer["done"] is expected[turn].terminated
            assert answer["observation"]["total"] == expected[turn].data["total"]
            assert answer["observation"]["text"] == expected[turn].text
        assert ask(socket, "state")["data"] == {"episode_id": "e5", "step_count": 6, "reset": {"seed": 5}}
        assert code(ask(socket, "step", number=1.0)) == "SESSION_ERROR"  # the episode is over
        assert ask(socket, "reset", seed=6)["type"] == "observation"  # and another may begin


def test_a_condition_brings_its_options(address: str, adder: EnvironmentSpec) -> None:
    (expected,) = in_process(adder, 3, [1.0], double=True)
    with dial(address) as socket:
        ask(socket, "reset", seed=3, condition="doubled")
        assert ask(socket, "step", number=1.0)["data"]["reward"] == expected.reward
        assert code(ask(socket, "reset", seed=3, condition="tripled")) == "VALIDATION_ERROR"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("{", "INVALID_JSON"),
        ("", "INVALID_JSON"),
        ("[" * 100_000, "INVALID_JSON"),
        ("[1, 2]", "VALIDATION_ERROR"),
        ('{"type": "dance"}', "UNKNOWN_TYPE"),
        ('{"type": ["reset"]}', "UNKNOWN_TYPE"),
        ("{}", "UNKNOWN_TYPE"),
        ('{"type": "step", "data": 4}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"number": "much"}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"action": {"number": 1}}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": -1}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": true}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"episode_id": 5}}', "VALIDATION_ERROR"),
        (json.dumps({"type": "reset", "data": {"episode_id": "x" * 1000}}), "VALIDATION_ERROR"),
        (b"\xff\xfe", "INVALID_JSON"),
    ],
)
def test_a_bad_message_is_answered_and_the_episode_goes_on(address: str, raw: str | bytes, expected: str) -> None:
    with dial(address) as socket, dial(address) as other:
        ask(socket, "reset", seed=1)
        ask(socket, "step", number=2.0)
        ask(other, "reset", seed=1)
        socket.send(raw)
        assert code(json.loads(socket.recv(10))) == expected
        assert ask(socket, "step", number=3.0)["data"]["observation"]["total"] == 5.0
        assert ask(other, "step", number=1.0)["data"]["observation"]["total"] == 1.0


def first_texts(address: str, resets: int, **data: Any) -> list[str]:
    """What is seen first in so many episodes, half of them on one connection and half on another."""
    seen: list[str] = []
    for _ in range(2):
        with dial(address) as socket:
            seen += [ask(socket, "reset", **data)["data"]["observation"]["text"] for _ in range(resets // 2)]
    return seen


@pytest.mark.parametrize("name", ["rhythm", "memory", "shop", "arithmetic", f"gsm8k:{DATA / 'gsm8k_excerpt.jsonl'}"])
def test_resets_without_a_seed_are_one_training_task_after_another(name: str, serve: Callable[..., Any]) -> None:
    with serve(server_config(create_app(environments.load(name)))) as address:
        assert len(set(first_texts(address, 12))) > 8
        with dial(address) as socket, dial(address) as again:
            drawn = ask(socket, "reset")["data"]
            told = ask(socket, "state")["data"]["reset"]
            assert ask(again, "reset", **told)["data"] == drawn, "the state says how to begin this episode again"


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
    session = Session(replace(adder, max_turns=2), SessionSlots(1))
    session.reset({"seed": 1})
    assert [session.step({"number": 1.0})["observation"]["truncated"] for _ in range(2)] == [False, True]


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
        assert code(ask(socket, "step", number=1.0)) == "SESSION_ERROR"
        assert ask(other, "step", number=1.0)["type"] == "observation"
        assert ask(socket, "reset", seed=1)["type"] == "observation"


def test_over_capacity_is_told_and_a_place_that_is_left_can_be_taken(fresh_address: str) -> None:
    with ExitStack() as stack:
        sockets = [stack.enter_context(dial(fresh_address)) for _ in range(SESSIONS)]
        for socket in sockets:
            assert ask(socket, "reset", seed=1)["type"] == "observation"
        late = stack.enter_context(dial(fresh_address))
        refused = ask(late, "reset", seed=1)
        assert code(refused) == "CAPACITY_REACHED"
        assert refused["data"]["max_sessions"] == SESSIONS
        assert ask(sockets[0], "step", number=1.0)["type"] == "observation"  # the others go on
        sockets[0].socket.close()  # vanishes without a goodbye
        until = time.monotonic() + 10
        while (answer := ask(late, "reset", seed=1))["type"] == "error" and time.monotonic() < until:
            time.sleep(0.01)
        assert answer["type"] == "observation"
        for socket in sockets[1:]:
            assert ask(socket, "step", number=1.0)["type"] == "observation"


def test_every_way_to_leave_frees_the_place(
    adder: EnvironmentSpec, closed: list[Any], serve: Callable[..., Any]
) -> None:
    app = create_app(adder, sessions=SESSIONS)
    before = len(closed)
    with (
        serve(server_config(app)) as address,
        dial(address) as polite,
        dial(address) as abrupt,
        dial(address) as midway,
    ):
        for socket in (polite, abrupt, midway):
            ask(socket, "reset", seed=1)
        assert app.state.places.taken == 3
        polite.send('{"type": "close"}')
        abrupt.socket.close()
        midway.send('{"type": "step", "data": {"text": "1"}}')
        midway.socket.close()
        until = time.monotonic() + 10
        while app.state.places.taken and time.monotonic() < until:
            time.sleep(0.01)
        assert app.state.places.taken == 0
        assert len(closed) - before == 3


def test_many_sessions_at_once_are_not_mixed_up(adder: EnvironmentSpec, serve: Callable[..., Any]) -> None:
    def run_episode(address: str, seed: int) -> list[float]:
        with dial(address) as socket:
            ask(socket, "reset", seed=seed)
            return [ask(socket, "step", number=seed + turn)["data"]["reward"] for turn in range(6)]

    with serve(server_config(create_app(adder, sessions=32))) as address, ThreadPoolExecutor(16) as pool:
        by_seed = list(pool.map(lambda seed: run_episode(address, seed), range(32)))
    for seed, rewards in enumerate(by_seed):
        expected = in_process(adder, seed, [float(seed + turn) for turn in range(6)])
        assert rewards == [one.reward for one in expected]


def test_environments_that_wait_leave_the_event_loop(adder: EnvironmentSpec, serve: Callable[..., Any]) -> None:
    waiting = replace(adder, stepping=Stepping(threads=True))
    with serve(server_config(create_app(waiting, sessions=2))) as address, dial(address) as socket:
        ask(socket, "reset", seed=2)
        assert ask(socket, "step", number=4.0)["data"]["observation"]["total"] == 4.0


def test_pages_describe_the_server(address: str) -> None:
    with httpx.Client(base_url=f"http://{address}", trust_env=False) as client:
        assert client.get("/health").json() == {"status": "healthy"}
        assert client.get("/metadata").json()["name"] == "adder"
        assert client.post("/mcp", json={}).json()["jsonrpc"] == "2.0"
        assert client.post("/reset", json={"seed": 9}).status_code == 404  # episodes have a socket


def test_the_schema_names_the_forms_of_an_action(adder: EnvironmentSpec, pantry: EnvironmentSpec) -> None:
    assert {choice["title"] for choice in schemas(adder)["action"]["anyOf"]} == {"AdderAction", "TextAction"}
    assert list(schemas(pantry)["action"]["properties"]) == ["text"]


def test_data_that_hide_a_field_are_an_error_of_the_environment(adder: EnvironmentSpec) -> None:
    class Hiding(type(adder.make())):
        def reset(self, **options: Any) -> Observation:
            return replace(super().reset(**options), data={"text": "total"})

    answer = Session(replace(adder, make=Hiding), SessionSlots(1)).handle('{"type": "reset"}')
    assert "may not use the field names ['text']" in json.loads(answer or "")["data"]["message"]


@pytest.mark.parametrize("name", BUILT_IN, ids=lambda name: name.partition("/")[0])
def test_every_environment_that_comes_along_can_be_played_over_the_wire(name: str, serve: Callable[..., Any]) -> None:
    if (package := BUILT_IN[name]) is not None:
        pytest.importorskip(package)
    spec = environments.load(name)
    with serve(server_config(create_app(spec, sessions=1))) as address, dial(address) as socket:
        first = ask(socket, "reset", **start(spec))
        assert first["type"] == "observation", first
        assert first["data"]["observation"]["text"]
        *_, last = play(socket, spec.max_turns, text="hello")
        assert last["type"] == "observation", last
        assert (last["data"]["done"], type(last["data"]["reward"])) == (True, float)


def start(spec: EnvironmentSpec) -> Mapping[str, Any]:
    task = spec.train_task(0)
    return {"seed": task.seed, **task.options}


def test_an_answer_with_what_utf8_cannot_hold_still_comes(adder: EnvironmentSpec) -> None:
    session = Session(adder, SessionSlots(1))
    session.handle('{"type": "reset", "data": {}}')
    answer = session.handle('{"type": "step", "data": {"text": "\\ud800"}}')
    assert answer is not None
    answer.encode()
    assert json.loads(answer)["data"]["observation"]["action_valid"] is False


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


class Numbers:
    """Gives what numpy computes, and is busy before its second step."""

    system_prompt = None

    def __init__(self) -> None:
        self.steps, self.busy = 0, 2

    @property
    def state(self) -> Mapping[str, Any]:
        return {"episode_id": None, "step_count": np.int64(self.steps)}

    def reset(self, *, seed: int | None = None, episode_id: str | None = None) -> Observation:
        return Observation(text="go", data={"x": np.float32(0.5), "grid": np.zeros((1, 2)), "kinds": {1}})

    def step(self, action: str) -> Observation:
        if self.steps == 1 and self.busy:
            self.busy -= 1
            raise TemporaryFault("busy")
        self.steps += 1
        return Observation(text="", reward=np.float32(0.5), terminated=np.bool_(self.steps == 2))

    def outcome(self) -> Mapping[str, Any]:
        return {}

    def close(self) -> None:
        pass


def test_what_a_served_environment_gives_is_made_plain_and_a_temporary_fault_is_tried_again(
    adder: EnvironmentSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradus.rollouts.stepping._FIRST_PAUSE", 0.0)
    spec = replace(adder, make=Numbers)
    session = Session(spec, SessionSlots(1))
    begun, went, last, state = (
        json.loads(session.handle(json.dumps({"type": kind, "data": data})) or "")["data"]
        for kind, data in (("reset", {}), ("step", {"text": "a"}), ("step", {"text": "b"}), ("state", {}))
    )
    shown = begun["observation"]
    assert (shown["x"], shown["grid"], shown["kinds"], shown["system_prompt"]) == (0.5, [[0.0, 0.0]], [1], "")
    assert (went["reward"], went["done"], last["reward"], last["done"]) == (0.5, False, 0.5, True)
    assert state["step_count"] == 2
    session.close()
