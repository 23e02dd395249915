"""The remote policy against a real HTTP server that speaks the OpenAI protocol, well and badly."""

import asyncio
import gzip
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from gradus import environments
from gradus.core import Action, EpisodeStart, Observation, PolicyError, Request, StopReason, Task
from gradus.core.money import Price
from gradus.policies.remote.policy import RemotePolicy
from gradus.rollouts import roll_out

PROBE = "Answer with the word ready."  # the one request that a policy sends before any episode
Fault = Callable[[int], "Response | float | None"]  # attempt number -> a bad response, seconds to hang, or None


def completion(text: str | None, *, reason: str = "stop") -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": reason, "message": {"role": "assistant", "content": text}}
    body: dict[str, Any] = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    body["usage"] = {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010}
    return body


def error(status: int, message: str, *, headers: dict[str, str] | None = None, code: str | None = None) -> Response:
    body = {"error": {"message": message, "type": "server", "code": code}}
    return JSONResponse(body, status_code=status, headers=headers or {"retry-after-ms": "1"})


def calls_without_results(messages: list[dict[str, Any]]) -> list[str]:
    """Ids of calls that no message of a tool answers at once, which OpenAI's servers refuse."""
    lost: list[str] = []
    for place, message in enumerate(messages):
        behind = takewhile(lambda each: each["role"] == "tool", messages[place + 1 :])
        answered = {each["tool_call_id"] for each in behind}
        lost += [call["id"] for call in message.get("tool_calls", ()) if call["id"] not in answered]
    return lost


class Server:
    """Echoes the last user message, unless ``faults`` has something else for it."""

    def __init__(self) -> None:
        self.faults: dict[str, Fault] = {}
        self.every: Fault | None = None
        self.bodies: list[dict[str, Any]] = []
        self.attempts: Counter[str] = Counter()

    async def answer(self, http: HttpRequest) -> Response:
        body = await http.json()
        self.bodies.append(body)
        text = body["messages"][-1]["content"]
        self.attempts[text] += 1
        chosen = self.faults.get(text, self.every if text != PROBE else None)
        fault = chosen(self.attempts[text]) if chosen else None
        if isinstance(fault, float):
            await asyncio.sleep(fault)
            fault = None
        if lost := calls_without_results(body["messages"]):
            fault = error(400, f"The following tool_call_ids did not have response messages: {lost}")
        return fault if isinstance(fault, Response) else JSONResponse(completion(f"echo {text}"))

    def said(self) -> list[dict[str, Any]]:
        """The requests without the first probe."""
        return [body for body in self.bodies if body["messages"][-1]["content"] != PROBE]


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Server, str]]:
    server = Server()
    app = Starlette(routes=[Route("/v1/chat/completions", server.answer, methods=["POST"])])
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", ws="none", timeout_graceful_shutdown=1)
    http = uvicorn.Server(config)
    thread = threading.Thread(target=http.run, daemon=True)
    thread.start()
    while not http.started:
        time.sleep(0.01)
    port = http.servers[0].sockets[0].getsockname()[1]
    yield server, f"http://127.0.0.1:{port}/v1"
    http.should_exit = True
    thread.join()


@pytest.fixture
def server(running: tuple[Server, str], monkeypatch: pytest.MonkeyPatch) -> Server:
    server, url = running
    server.__init__()
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    monkeypatch.setenv("OPENAI_API_KEY", "test-key")
    return server


def policy(**settings: Any) -> RemotePolicy:
    return RemotePolicy("m", **{"timeout": 5.0, **settings})


def starts(rows: int, system_prompt: str = "Rules.") -> list[EpisodeStart]:
    task = Task(environment="e", seed=0)
    return [
        EpisodeStart(task=task, system_prompt=system_prompt, key=(7, row), group=0, member=row, environment=None)  # type: ignore[arg-type]
        for row in range(rows)
    ]


def ask(remote: RemotePolicy, *texts: str) -> list[Action]:
    session = remote.start(starts(len(texts)))
    try:
        return list(
            session.act([Request(row=row, observation=Observation(text=text)) for row, text in enumerate(texts)])
        )
    finally:
        session.close()


def test_answers_come_in_order_with_their_usage(server: Server) -> None:
    remote = policy(price=Price(prompt=2.0, completion=10.0))
    actions = ask(remote, *(f"t{i}" for i in range(12)))
    assert [action.text for action in actions] == [f"echo t{i}" for i in range(12)]
    assert all(action.usage and action.usage.cost == pytest.approx(0.0021) for action in actions)
    assert remote.usage.prompt_tokens == 13_000  # twelve answers and the probe
    assert remote.usage.cost == pytest.approx(13 * 0.0021)


def test_a_row_keeps_its_conversation_and_a_restart_forgets_it(server: Server) -> None:
    session = policy().start(starts(2))
    session.act(
        [Request(row=0, observation=Observation(text="one")), Request(row=1, observation=Observation(text="x"))]
    )
    session.act([Request(row=0, observation=Observation(text="two"))])
    session.act([Request(row=0, observation=Observation(text="three", restart=True))])
    session.close()
    spoken = [[message["content"] for message in body["messages"]] for body in server.said()]
    assert ["Rules.", "one", "echo one", "two"] in spoken
    assert ["Rules.", "three"] in spoken
    assert [message["role"] for message in server.said()[-2]["messages"]] == ["system", "user", "assistant", "user"]


def test_seeds_differ_by_member_and_turn_and_repeat(server: Server) -> None:
    def seeds() -> list[int]:
        server.bodies.clear()
        session = policy().start(starts(3))
        for _ in range(2):
            session.act([Request(row=row, observation=Observation(text=f"r{row}")) for row in range(3)])
        session.close()
        return sorted(body["seed"] for body in server.said())

    first = seeds()
    assert len(set(first)) == 6
    assert seeds() == first


def test_a_fault_of_the_server_is_asked_again_and_then_a_failure_of_its_row_alone(server: Server) -> None:
    server.faults["flaky"] = lambda n: error(500, "boom") if n < 3 else None
    server.faults["broken"] = lambda _: error(500, "boom")
    actions = ask(policy(retries=2), "flaky", "broken", "good")
    assert [action.text for action in actions] == ["echo flaky", "", "echo good"]
    assert "boom" in actions[1].failure.message
    assert server.attempts["broken"] == 3


@pytest.mark.parametrize(
    "bad",
    [
        lambda: PlainTextResponse("{not json", media_type="application/json"),
        lambda: JSONResponse({"choices": []}),
        lambda: PlainTextResponse("x" * (40 << 20), media_type="application/json"),
        lambda: Response(gzip.compress(b"[1]"), headers={"content-encoding": "gzip"}, media_type="application/json"),
    ],
    ids=["broken json", "no choices", "large", "packed"],
)
def test_a_bad_reply_is_a_failure_of_its_row_alone(server: Server, bad: Callable[[], Response]) -> None:
    server.faults["broken"] = lambda _: bad()
    broken, good = ask(policy(retries=0), "broken", "good")
    assert good.text == "echo good"
    assert broken.failure.stage == "act"


def test_a_hung_connection_is_given_up_on_while_slow_answers_are_awaited(server: Server) -> None:
    server.faults["hung"] = lambda _: 30.0
    server.faults["slow"] = lambda _: 0.2
    begin = time.monotonic()
    hung, slow = ask(policy(timeout=0.5, retries=0), "hung", "slow")
    assert time.monotonic() - begin < 5
    assert slow.text == "echo slow"
    assert "Timeout" in hung.failure.message


def test_a_refusal_is_not_asked_again(server: Server) -> None:
    server.faults["long"] = lambda _: error(
        400, "maximum context length is 10 tokens, got 20", code="context_length_exceeded"
    )
    server.faults["bad"] = lambda _: error(400, "temperature must be 1")
    long, bad, good = ask(policy(), "long", "bad", "good")
    assert long.failure.type == "ContextLengthError"
    assert "temperature must be 1" in bad.failure.message
    assert good.text == "echo good"
    assert server.attempts["long"] == server.attempts["bad"] == 1


def test_an_answer_cut_by_its_budget_says_so(server: Server) -> None:
    server.faults["cut"] = lambda _: JSONResponse(completion("half an ans", reason="length"))
    server.faults["mute"] = lambda _: JSONResponse(completion(None, reason="length"))
    cut, mute = ask(policy(), "cut", "mute")
    assert (cut.text, cut.stop) == ("half an ans", StopReason.TOKEN_LIMIT)
    assert (mute.text, mute.stop) == ("", StopReason.TOKEN_LIMIT)
    assert server.attempts["mute"] == 1


def test_a_server_that_wants_the_budget_under_its_new_name_gets_it(server: Server) -> None:
    wrong = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."

    def choosy(_: int) -> Response | None:
        return error(400, wrong) if "max_tokens" in server.bodies[-1] else None

    server.faults["new"] = choosy
    (action,) = ask(policy(max_tokens=77, temperature=None, options={"top_p": 0.5}), "new")
    assert action.text == "echo new"
    sent = server.bodies[-1]
    assert sent["max_completion_tokens"] == 77
    assert sent["top_p"] == 0.5
    assert "temperature" not in sent


def test_an_unreachable_server_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(PolicyError, match=r"http://127\.0\.0\.1:9/v1 did not answer.*Connection error"):
        policy(base_url="http://127.0.0.1:9/v1", retries=1).start(starts(100))


def test_a_wrong_key_is_one_clear_error_and_never_shown(server: Server) -> None:
    server.faults[PROBE] = lambda _: error(401, "bad key")
    with pytest.raises(PolicyError, match=r"401.*bad key") as caught:
        policy().start(starts(100))
    assert "test-key" not in str(caught.value)
    assert server.attempts.total() == 1


def test_a_missing_key_is_said_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(PolicyError, match="set OPENAI_API_KEY"):
        policy().start(starts(1))


def test_a_key_that_a_server_echoes_is_never_kept(server: Server) -> None:
    here = server
    key = "sk-very-secret-0123456789"
    here.every = lambda attempt: error(400, f"bad key {key}")
    spec = environments.load("arithmetic")
    remote = RemotePolicy("m", api_key=key, retries=0)
    failed = roll_out(spec, remote, [spec.train_task(0)]).episodes[0]
    here.every = lambda attempt: JSONResponse(completion(f"your key is {key}"))
    answered = roll_out(spec, remote, [spec.train_task(0)]).episodes[0]
    assert "[key]" in failed.failure.message
    assert "[key]" in answered.turns[0].action
    assert key not in str((failed, answered))


class Till:
    """A tool environment of one question and one result."""

    def reset(self) -> str:
        return "what is in the till?"

    def open(self, drawer: int) -> str:
        """Open a drawer.

        Args:
            drawer: Its number.
        """
        return f"{drawer * 5} coins"


def test_calls_of_tools_are_answers_and_their_results_go_back(server: Server) -> None:
    """A reply with tool_calls and no content counted as malformed."""
    from gradus.environments.tools import tool_environment

    def called(arguments: str) -> dict[str, Any]:
        body = completion(None, reason="tool_calls")
        function = {"name": "open", "arguments": arguments}
        body["choices"][0]["message"]["tool_calls"] = [{"id": "call_abc", "type": "function", "function": function}]
        return body

    spec = tool_environment(Till, name="till", max_turns=3)
    server.faults["what is in the till?"] = lambda _: JSONResponse(called('{"drawer": 3}'))
    (episode,) = roll_out(spec, policy(), spec.tasks("main", 1)).episodes
    first, second = episode.turns
    assert first.action == '{"name": "open", "arguments": {"drawer": 3}}'
    assert [(call.name, call.id, call.fault) for call in first.calls] == [("open", "call_abc", None)]
    assert first.action[first.spans[0].start : first.spans[0].end] == first.action
    assert (second.messages[0].content, second.messages[0].call_id) == ("15 coins", "call_abc")
    sent = server.bodies[-1]
    assert sent["tools"] == [dict(tool) for tool in episode.tools]
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "tool"]
    assert sent["messages"][1]["tool_calls"][0]["id"] == sent["messages"][2]["tool_call_id"] == "call_abc"
    assert episode.failure is None

    server.faults["what is in the till?"] = lambda _: JSONResponse(called('{"drawer": '))
    (episode,) = roll_out(spec, policy(), spec.tasks("main", 1)).episodes
    assert episode.turns[0].calls[0].fault == "malformed"
    assert not episode.turns[0].valid
    assert episode.failure is None
    spoken = server.bodies[-1]["messages"]
    assert spoken[1] == {"role": "assistant", "content": 'open {"drawer": '}
    assert spoken[1]["content"] == episode.turns[0].action
    assert spoken[2]["content"].startswith("Error: the call is not JSON")

    text = 'wait\n{"name": "open", "arguments": {"drawer": 1}}'
    server.faults["what is in the till?"] = lambda _: JSONResponse(completion(text))
    (episode,) = roll_out(spec, policy(), spec.tasks("main", 1)).episodes
    assert episode.turns[1].messages[0].content == "5 coins"
    spoken = server.bodies[-1]["messages"]
    assert (spoken[1]["content"], spoken[1]["tool_calls"][0]["id"]) == ("wait", spoken[2]["tool_call_id"])


def test_a_session_that_nobody_closes_lets_the_process_end() -> None:
    """A time limit may interrupt a session at any line, also between its start and its first use."""
    lines = [
        "from gradus.policies.remote.policy import RemotePolicy",
        "policy = RemotePolicy('m', base_url='http://127.0.0.1:9/v1', api_key='k', probe=False)",
        "session = policy.start([])",
    ]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True, timeout=60)
