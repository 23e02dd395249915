"""A foreign agent at work on a task, as an environment: an observation is a call that it makes, and a step is the answer that it gets.

So everything that rolls out an environment rolls out an agent: any policy answers, and its calls are the turns of the episode. A call that
goes on with the call before is an ordinary turn. Any other call restarts: its prompt is the whole conversation that the agent sent.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import shlex
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, wraps
from importlib import import_module
from typing import Any

from gradus.core import Action, Asked, Message, Observation, ToolCall
from gradus.core.calls import read_message
from gradus.core.errors import ModelFault
from gradus.core.values import Json, JsonDict, plain
from gradus.interop.agents.calls import (
    AgentFault,
    AgentLimits,
    Ended,
    Endpoint,
    Inbox,
    PendingCall,
    agents_loop,
    endpoint,
    message_key,
)
from gradus.interop.serving.answers import ChatAnswer, answer_of
from gradus.interop.serving.requests import ApiError

_GRACE = 1.0  # seconds that an agent has to return when a limit cut it
_OUTPUT = 2**20  # bytes of a command's answer
_ERROR_LINES = 20  # of a command that are kept
_LINE = 1000  # bytes of each
_PLAIN: Any = {"trust_env": False, "verify": False}  # the address is this machine's: no proxies, no certificates


@dataclass(frozen=True)
class AgentCommand:
    """An agent in any language: it finds the task on standard input, and OPENAI_BASE_URL and OPENAI_API_KEY in its environment, as well
    as the two of Anthropic's clients.

    What it prints is its result, read as JSON if it is JSON.
    """

    # Split as a shell would, but run without one.
    line: str


class CommandError(Exception):
    """A command ended with another code than 0."""

    def __init__(self, code: int, last_line: str) -> None:
        super().__init__(f"the command ended with code {code}: {last_line}")
        self.code = code


Agent = Callable[[Json, Any], Any] | AgentCommand
Rows = Callable[[int, Json], tuple[Json, Json]]


class RunningAgent:
    """An agent at work. Whatever it does, its end is put into the inbox, once.

    Coroutines of all episodes share one event loop, as frameworks that keep a client expect; functions and commands have a thread each.
    """

    def __init__(self, agent: Agent, task: Json, endpoint: Endpoint, inbox: Inbox) -> None:
        self._agent = agent
        self._task = dict(task)
        self._inbox = inbox
        self._app = endpoint.app
        address = endpoint.open(inbox)
        self._client: Any = {"api_key": inbox.key, "base_url": address, "max_retries": 0, "timeout": None}
        self._process: subprocess.Popen[bytes] | None = None
        self._coroutine: Future[None] | None = None
        # An instance with a coroutine __call__ is a coroutine agent too.
        is_coroutine = inspect.iscoroutinefunction(agent) or inspect.iscoroutinefunction(type(agent).__call__)
        if is_coroutine:
            self._coroutine = asyncio.run_coroutine_threadsafe(self._run_coroutine(), agents_loop())
        else:
            threading.Thread(target=self._run, name="gradus-agent", daemon=True).start()

    def end(self) -> None:
        """End a coroutine or a command where it is. A function goes on up to its next call, whose key is then worth nothing."""
        if self._coroutine is not None:
            self._coroutine.cancel()
        elif self._process is not None:
            # The whole group: a shell may have started others.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _run_coroutine(self) -> None:
        import openai

        agent: Any = self._agent
        try:
            # The agent's own client needs no socket; frameworks that make another one call the address.
            http = openai.DefaultAsyncHttpxClient(transport=_in_process(self._app), **_PLAIN)
            async with openai.AsyncOpenAI(**self._client, http_client=http) as client:
                _send_as_it_is(client.chat.completions)
                self._inbox.put_end(Ended(result=await agent(self._task, client)))
        # The episode is over; nobody waits for an end of this agent.
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # an agent that exits ends its own episode
            self._inbox.put_end(_fault(error))

    def _run(self) -> None:
        try:
            result = self._run_command() if isinstance(self._agent, AgentCommand) else self._run_function()
            self._inbox.put_end(Ended(result=result))
        except BaseException as error:
            self._inbox.put_end(_fault(error))

    def _run_function(self) -> Any:
        import openai

        agent: Any = self._agent
        with openai.OpenAI(**self._client, http_client=openai.DefaultHttpxClient(**_PLAIN)) as client:
            _send_as_it_is(client.chat.completions)
            return agent(self._task, client)

    def _run_command(self) -> Any:
        assert isinstance(self._agent, AgentCommand)
        self._process = subprocess.Popen(
            shlex.split(self._agent.line),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **_environment_of(self._client["base_url"], self._client["api_key"])},
            start_new_session=True,
        )
        task = json.dumps(self._task, default=str).encode()
        output, errors = _talked(self._process, task)
        if self._process.returncode:
            lines = errors.decode("utf-8", "replace").strip().splitlines()
            # The last line of a traceback names the error.
            last = lines[-1] if lines else ""
            raise CommandError(self._process.returncode, last[:500])
        text = output.decode("utf-8", "replace").strip()
        try:
            return json.loads(text)
        except ValueError:
            return text


def _environment_of(url: str, key: str) -> dict[str, str]:
    """What clients of OpenAI and Anthropic read; the latter add the version themselves."""
    root = url.removesuffix("/v1")
    return {
        "OPENAI_BASE_URL": url,
        "OPENAI_API_BASE": url,
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": root,
        "ANTHROPIC_API_KEY": key,
    }


def _talked(process: subprocess.Popen[bytes], task: bytes) -> tuple[bytes, bytes]:
    """Send the task and wait for the end. Returns the beginning of the output and the end of the errors; the rest is let go."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    errors: deque[bytes] = deque(maxlen=_ERROR_LINES)
    lines = iter(partial(process.stderr.readline, _LINE), b"")
    # In a thread of its own: a command that fills the pipe of its errors would wait for ever.
    reader = threading.Thread(target=errors.extend, args=(lines,), daemon=True)
    reader.start()
    with suppress(BrokenPipeError):
        process.stdin.write(task)
        process.stdin.close()
    output = process.stdout.read(_OUTPUT)
    # Read on, so that the command can end; communicate() would keep all of it.
    while process.stdout.read(_OUTPUT):
        pass
    process.wait()
    reader.join()
    return output, b"".join(errors)


def _send_as_it_is(completions: Any) -> None:
    """Let messages and tools go past the client's own look at each part of them, for aliases that no chat has: it takes 2.5 ms a call."""
    create = completions.create

    @wraps(create)
    def direct(*, messages: Any, tools: Any = None, extra_body: Any = None, **more: Any) -> Any:
        body: JsonDict = {"messages": list(messages)}
        if tools:
            body["tools"] = list(tools)
        return create(messages=[], extra_body={**body, **(extra_body or {})}, **more)

    completions.create = direct


def _in_process(app: Any) -> Any:
    """Returns a transport that calls an application, of the library that the installed client is built on."""
    import openai

    # httpx, or what follows it.
    library = import_module(openai.DefaultAsyncHttpxClient.__mro__[1].__module__.partition(".")[0])
    inside = library.ASGITransport(app)

    class InProcess(library.AsyncBaseTransport):
        async def handle_async_request(self, request: Any) -> Any:
            seconds = request.extensions.get("timeout", {}).get("read")
            try:
                return await asyncio.wait_for(inside.handle_async_request(request), seconds)
            except TimeoutError as error:
                raise library.ReadTimeout(f"no answer in {seconds} s", request=request) from error

    return InProcess()


def _fault(error: BaseException) -> Ended:
    sentence = f"the agent raised {type(error).__name__}: {error}"
    return Ended(fault=sentence[:2000], error=error)


class AgentEnvironment:
    """Runs an agent on one task at a time.

    ``rows``: seed and options of reset -> the task as the agent gets it, and the columns as reward functions get them. ``missing``:
    exceptions and exit codes of the agent that are no fault of the model.
    """

    def __init__(self, agent: Agent, rows: Rows, limits: AgentLimits, missing: Sequence[Any] = ()) -> None:
        self._agent = agent
        self._rows = rows
        self._limits = limits
        self._missing = missing
        self.system_prompt = ""
        self.tools = ()
        self._columns: Json = {}
        self._task: Json = {}
        self._begin()

    def _begin(self) -> None:
        self._inbox: Inbox | None = None
        self._running: RunningAgent | None = None
        self._call: PendingCall | None = None
        # Tools and conversation up to an answer -> its turn, and the ids of its calls.
        self._answered: dict[tuple[Any, ...], tuple[int, Sequence[str]]] = {}
        self._parallel = False
        self._anew: list[str] = []  # why calls did not go on with an earlier one
        self._turns = self._tokens = 0
        self._result: Any = None
        self._limit: str | None = None

    async def reset(self, *, seed: int | None = None, **options: Any) -> Observation:
        """Start the agent on a task and wait for its first call."""
        self.close()
        self._begin()
        task, self._columns = self._rows(seed or 0, options)
        self._task = task
        self._inbox = Inbox()
        self._endpoint = endpoint(self._limits)
        self._running = RunningAgent(self._agent, task, self._endpoint, self._inbox)
        observation = await self._next(self._inbox)
        if observation.terminated:
            raise AgentFault(
                "the agent returned without a call of its model; expected one at least (a framework that keeps answers in a cache needs that off)"
            )
        return observation

    async def step(self, action: Action | str) -> Observation:
        """Answer the call that waits, and wait for the next one or for the end."""
        if self._call is None or self._inbox is None:
            raise AgentFault("expected reset before this step: no call waits for an answer")
        # Policies give whole actions; who steps by hand gives a text.
        action = Action(text=action) if isinstance(action, str) else action
        # From here on nothing waits: a second step without a new call is a fault.
        call = self._call
        self._call = None
        answer, calls = _answer(action, call, self._turns)
        self._parallel = bool(self._inbox.waiting)
        is_delivered = call.settle(answer)
        # Else the agent's text lacks what the policy said.
        if is_delivered and not action.at_stop:
            # A client that begins the answer itself sends both parts back as one.
            message = replace(answer.message, content=call.asked.prefill + answer.message.content)
            self._answered[*call.key, message_key(message)] = (self._turns, [one.id for one in calls])
        self._turns += 1
        self._tokens += action.usage.completion_tokens if action.usage else 0
        observation = await self._next(self._inbox)
        return replace(observation, action_calls=calls, undelivered=not is_delivered)

    def outcome(self) -> Json:
        """Returns what the agent returned, the limit that cut it, and the columns for reward functions."""
        columns = {"task": self._task, **self._columns, "result": self._result}
        overruled: Json = {} if self._inbox is None else _plain(self._inbox.overruled)
        outcome: dict[str, Any] = {
            "result": self._result,
            "limit": self._limit,
            "calls": self._turns,
            "columns": columns,
        }
        if overruled:
            outcome["overruled"] = overruled
        if self._anew:
            outcome["anew"] = self._anew
        return outcome

    def close(self) -> None:
        """End the agent; its key is worth nothing from here on."""
        if self._inbox is None:
            return
        why = ApiError("this episode is over", status=401, code="episode_over")
        if self._call is not None:
            self._call.settle(why)
        self._endpoint.forget(self._inbox)
        self._inbox.close(why)
        if self._running is not None:
            self._running.end()
        self._inbox = self._running = self._call = None

    async def _next(self, inbox: Inbox) -> Observation:
        try:
            return await self._after(await inbox.next(), inbox)
        except BaseException:  # a limit on time ends the wait, and the agent with it
            self.close()
            raise

    async def _after(self, event: PendingCall | Ended, inbox: Inbox) -> Observation:
        if isinstance(event, Ended):
            if event.fault is not None or inbox.refusals:
                raise self._fault(event, inbox)
            self._result = _plain(event.result)
            return Observation(text="", terminated=True)
        # Looked at before a call is shown, so that the policy never answers beyond the limit.
        self._limit = self._exceeded()
        if self._limit is not None:
            why = ApiError(f"this episode may use {self._limit}, and that is spent", status=429)
            await self._cut(inbox, event, why)
            return Observation(text="", truncated=True)
        self._call = event
        return self._observation(event)

    def _fault(self, event: Ended, inbox: Inbox) -> Exception:
        """The model's fault, if the agent raised behind an answer. A refusal is the world's, also if the agent went on without."""
        if inbox.refusals:
            end = event.fault or "the agent swallowed it"
            return AgentFault(f"the endpoint refused {inbox.refusals[0]} ({end})")
        assert event.fault is not None
        code = event.error.code if isinstance(event.error, CommandError) else None
        is_worlds = isinstance(event.error, _missing_types(self._missing)) or code in self._missing
        # An agent that raises before its first answer has not met the model yet.
        if is_worlds or not self._turns:
            return AgentFault(event.fault)
        return ModelFault(event.fault)

    async def _cut(self, inbox: Inbox, call: PendingCall, why: ApiError) -> None:
        """Refuse a call and all that follow. The agent may still return something, if it does so at once."""
        call.settle(why)
        inbox.close(why)
        event: PendingCall | Ended = call
        try:
            async with asyncio.timeout(_GRACE):
                while isinstance(event, PendingCall):
                    event = await inbox.next()
        except TimeoutError:
            return
        self._result = None if event.fault else _plain(event.result)

    def _exceeded(self) -> str | None:
        limits = self._limits
        if self._turns >= limits.calls:
            return f"{limits.calls} calls"
        if limits.tokens is not None and self._tokens >= limits.tokens:
            return f"{limits.tokens} tokens"
        return None

    def _observation(self, call: PendingCall) -> Observation:
        """The call as an observation: what is new, if it goes on with the call before, else the whole conversation."""
        messages = call.messages
        # The first call says what the episode is about; others may have prompts of their own.
        if self._turns == 0:
            self.system_prompt = messages[0].content if messages[0].role == "system" else ""
            self.tools = call.asked.tools
        turn, shared, ids = self._parent(call)
        if turn is None and self._turns:
            self._anew.append(_why_anew(call.key, list(self._answered)))
        before = messages[:shared]
        messages = (*before, *_with_ids(messages[shared:], before, ids))
        terms = replace(call.asked, parallel=self._parallel)
        # Only what follows the last answer extends its tokens; all else is sent as a whole conversation.
        goes_on = turn is not None and turn == self._turns - 1
        if goes_on and all(message.role != "assistant" for message in messages[shared:]):
            return _observed(messages[shared:], terms)
        # The rollout adds the system prompt itself.
        if messages[0].role == "system" and messages[0].content == self.system_prompt:
            messages = messages[1:]
            shared = max(0, shared - 1)
        return replace(_observed(messages, replace(terms, after=turn, known=shared)), restart=True)

    def _parent(self, call: PendingCall) -> tuple[int | None, int, Sequence[str]]:
        """The turn that the messages begin with, the longest one, how many messages that is, and the ids of the turn's calls."""
        for count in range(len(call.messages) - 1, 1, -1):
            turn = self._answered.get(call.key[: count + 1])  # the key begins with the tools
            if turn is not None:
                return turn[0], count, turn[1]
        return None, 0, ()


def _why_anew(key: Sequence[Any], earlier: Sequence[Sequence[Any]]) -> str:
    """Says in what a conversation differs from the earlier one that it is most like."""

    def shared(other: Sequence[Any]) -> int:
        for place, (one, two) in enumerate(zip(key, other, strict=False)):
            if one != two:
                return place
        return len(key)

    place = max(map(shared, earlier), default=0)
    if place == 0:
        return "its tools are others than before"
    if place >= len(key):
        return "it is shorter than what was said before"
    role, text, calls = key[place]
    written = calls[0] if calls else text
    return f"message {place} ({role}) is new or rewritten: {str(written)[:80]!r}"


def _with_ids(results: Sequence[Message], before: Sequence[Message], ids: Sequence[str]) -> list[Message]:
    """Returns the messages behind an answer; results of its calls get the ids that the model's own calls have."""
    if not before:
        return list(results)
    written = [call.id for call in before[-1].calls]
    id_of = dict(zip(written, ids, strict=False))
    return [replace(one, call_id=id_of.get(one.call_id, one.call_id)) for one in results]


def _missing_types(missing: Sequence[Any]) -> tuple[type[BaseException], ...]:
    """The exceptions among types and exit codes; those of the client itself are always the world's."""
    import openai

    return (openai.APIError, *(kind for kind in missing if isinstance(kind, type)))


def _observed(messages: tuple[Message, ...], asked: Asked) -> Observation:
    """One message of the user is a text, as in every environment."""
    text = "\n".join(message.content for message in messages)
    plain_text = len(messages) == 1 and messages[0].role == "user"
    return Observation(text=text, messages=() if plain_text else messages, asked=asked)


def _answer(action: Action, call: PendingCall, turn: int) -> tuple[ChatAnswer, tuple[ToolCall, ...]]:
    """An answer as the client gets it, and its calls with the ids that the model sees."""
    tools = call.asked.tools
    message = action.message or (read_message(action.text, tools=tools) if tools else None)
    answer = answer_of(action, message, lambda place: f"call_{turn:04d}{place:04d}")
    if message is None or not answer.message.calls:
        return answer, ()
    # Some templates take no ids but of nine letters and digits.
    calls = [replace(one, id=one.id or f"c{turn:04d}{place:04d}") for place, one in enumerate(message.calls)]
    return answer, tuple(calls)


def _plain(result: Any) -> Any:
    """Returns what an agent returned in the form that an episode holds."""
    dump = getattr(result, "model_dump", None)
    return plain(dump() if callable(dump) else result)
