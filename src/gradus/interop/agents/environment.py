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
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from gradus.core import Action, Asked, Message, Observation, StopReason, Usage
from gradus.core.calls import read_message
from gradus.core.values import plain
from gradus.interop.agents.calls import (
    AgentFault,
    AgentLimits,
    Call,
    Ended,
    Endpoint,
    Inbox,
    endpoint,
    message_key,
    tools_key,
)
from gradus.interop.serving.answers import ChatAnswer, answer_of
from gradus.interop.serving.requests import ApiError

_PLAIN: Any = {"trust_env": False, "verify": False}  # the address is this machine's: no proxies, no certificates
_OUTPUT = 2**20  # bytes of a command's answer


@dataclass(frozen=True)
class Command:
    """An agent in any language: it finds the task on standard input, and OPENAI_BASE_URL and OPENAI_API_KEY in its environment.

    What it prints is its result, read as JSON if it is JSON.
    """

    line: str


Agent = Callable[[Mapping[str, Any], Any], Any] | Command


class Running:
    """An agent at work. Whatever it does, its end is put into the inbox, once.

    Coroutines of all episodes share one event loop, as frameworks that keep a client expect; functions and commands have a thread each.
    """

    def __init__(self, agent: Agent, task: Mapping[str, Any], base_url: str, inbox: Inbox) -> None:
        self._agent, self._task, self._base_url, self._inbox = agent, dict(task), base_url, inbox
        self._process: subprocess.Popen[bytes] | None = None
        self._coroutine: Future[None] | None = None
        if inspect.iscoroutinefunction(agent) or inspect.iscoroutinefunction(type(agent).__call__):
            self._coroutine = asyncio.run_coroutine_threadsafe(self._run_coroutine(), _loop())
        else:
            threading.Thread(target=self._work, name="gradus-agent", daemon=True).start()

    def end(self) -> None:
        """End a coroutine or a command where it is. A function goes on up to its next call, whose key is then worth nothing."""
        if self._coroutine is not None:
            self._coroutine.cancel()
        elif self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _run_coroutine(self) -> None:
        import openai

        assert not isinstance(self._agent, Command)
        try:
            http = openai.DefaultAsyncHttpxClient(**_PLAIN)
            async with openai.AsyncOpenAI(**self._client_options(), http_client=http) as client:
                end = Ended(result=await self._agent(self._task, client))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # an agent that exits ends its own episode
            end = _fault(error)
        self._inbox.put_end(end)

    def _work(self) -> None:
        try:
            end = Ended(result=self._run())
        except BaseException as error:
            end = _fault(error)
        self._inbox.put_end(end)

    def _run(self) -> Any:
        if isinstance(self._agent, Command):
            return self._run_command(self._agent.line)
        import openai

        with openai.OpenAI(**self._client_options(), http_client=openai.DefaultHttpxClient(**_PLAIN)) as client:
            return self._agent(self._task, client)

    def _client_options(self) -> dict[str, Any]:
        return {"api_key": self._inbox.key, "base_url": self._base_url, "max_retries": 0, "timeout": None}

    def _run_command(self, line: str) -> Any:
        own = {"OPENAI_BASE_URL": self._base_url, "OPENAI_API_KEY": self._inbox.key}
        self._process = subprocess.Popen(
            shlex.split(line),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **own, "OPENAI_API_BASE": own["OPENAI_BASE_URL"]},
            start_new_session=True,
        )
        out, err = self._process.communicate(json.dumps(self._task, default=str).encode())
        if self._process.returncode:
            last = err.decode("utf-8", "replace").strip().splitlines()[-1:]
            raise RuntimeError(f"the command ended with code {self._process.returncode}: {' '.join(last)[:500]}")
        text = out[:_OUTPUT].decode("utf-8", "replace").strip()
        try:
            return json.loads(text)
        except ValueError:
            return text


def _fault(error: BaseException) -> Ended:
    return Ended(fault=f"the agent raised {type(error).__name__}: {error}"[:2000])


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The loop in which the coroutines of this process's agents run."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="gradus-agents", daemon=True).start()
    return loop


_LETS_GO = 1.0  # seconds that an agent has to return when a limit cut it
Rows = Callable[[int, Mapping[str, Any]], tuple[Mapping[str, Any], Mapping[str, Any]]]


class AgentEnvironment:
    """Runs an agent on one task at a time.

    ``rows``: seed and options of reset -> the task as the agent gets it, and the columns as reward functions get them.
    """

    def __init__(self, agent: Agent, rows: Rows, limits: AgentLimits) -> None:
        self._agent, self._rows, self._limits = agent, rows, limits
        self.system_prompt, self.tools = "", ()
        self._endpoint: Endpoint | None = None
        self._running: Running | None = None
        self._columns: Mapping[str, Any] = {}
        self._forget()

    def _forget(self) -> None:
        self._inbox: Inbox | None = None
        self._call: Call | None = None
        self._known: dict[tuple[Any, ...], int] = {}  # tools and conversation up to an answer -> its turn
        self._turns = self._tokens = 0
        self._result: Any = None
        self._limit: str | None = None

    @property
    def state(self) -> Mapping[str, Any]:
        """Number of calls that were answered."""
        return {"episode_id": "", "step_count": self._turns}

    async def reset(self, *, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        """Start the agent on a task and wait for its first call."""
        self.close()
        self._forget()
        task, self._columns = self._rows(seed or 0, options)
        self._inbox = Inbox()
        self._endpoint = endpoint()
        self._running = Running(self._agent, task, self._endpoint.open(self._inbox), self._inbox)
        try:
            seen = await self._next()
        except BaseException:  # a limit on time ends the wait, and the agent with it
            self.close()
            raise
        if seen.terminated:
            raise AgentFault("the agent returned without a call of its model; expected one at least")
        return seen

    async def step(self, action: Action | Message | str) -> Observation:
        """Answer the call that waits, and wait for the next one or for the end."""
        if self._call is None:
            raise AgentFault("expected reset before this step: no call waits for an answer")
        call, self._call = self._call, None
        if isinstance(action, Message):
            action = Action(text=action.content, message=action)
        action = Action(text=action) if isinstance(action, str) else action
        answered = _answered(action, call, self._turns)
        if not action.at_stop:  # else the agent's text lacks what the policy said
            said = (*map(message_key, call.messages), message_key(answered.message))
            self._known[(tools_key(call.asked.tools), said)] = self._turns
        self._turns += 1
        self._tokens += action.usage.completion_tokens if action.usage else 0
        call.settle(answered)
        try:
            seen = await self._next()
        except BaseException:
            self.close()
            raise
        return replace(seen, action_calls=answered.message.calls)

    def outcome(self) -> Mapping[str, Any]:
        """Returns what the agent returned, the limit that cut it, and the columns for reward functions."""
        columns = {**self._columns, "result": self._result}
        return {"result": self._result, "limit": self._limit, "calls": self._turns, "columns": columns}

    def close(self) -> None:
        """End the agent; its key is worth nothing from here on."""
        if self._inbox is None or self._endpoint is None:
            return
        why = ApiError("this episode is over", status=401, code="episode_over")
        if self._call is not None:
            self._call.refuse(why)
        self._endpoint.forget(self._inbox)
        self._inbox.close(why)
        if self._running is not None:
            self._running.end()
        self._inbox = self._running = self._call = None

    async def _next(self) -> Observation:
        assert self._inbox is not None
        event = await self._inbox.next()
        if isinstance(event, Ended):
            if event.fault is not None:
                raise AgentFault(event.fault)
            self._result = _plain(event.result)
            return Observation(text="", terminated=True)
        self._limit = self._exceeded()
        if self._limit is not None:
            await self._cut(event, ApiError(f"this episode may use {self._limit}, and that is spent", status=429))
            return Observation(text="", truncated=True)
        self._call = event
        return self._observation(event)

    async def _cut(self, call: Call, why: ApiError) -> None:
        """Refuse a call and all that follow. The agent may still return something, if it does so at once."""
        assert self._inbox is not None
        call.refuse(why)
        self._inbox.close(why)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LETS_GO):
                while not isinstance(event := await self._inbox.next(), Ended):
                    event.refuse(why)
                self._result = None if event.fault else _plain(event.result)

    def _exceeded(self) -> str | None:
        limits = self._limits
        if self._turns >= limits.calls:
            return f"{limits.calls} calls"
        return f"{limits.tokens} tokens" if limits.tokens is not None and self._tokens >= limits.tokens else None

    def _observation(self, call: Call) -> Observation:
        """The call as an observation: what is new, if it goes on with the call before, else the whole conversation."""
        if not self._turns:
            first = call.messages[0]
            self.system_prompt = first.content if first.role == "system" else ""
            self.tools = call.asked.tools
        after, known = self._parent(call)
        new = call.messages[known:]
        if after is not None and after == self._turns - 1 and all(each.role != "assistant" for each in new):
            return _shown(new, asked=call.asked)
        asked = replace(call.asked, after=after, known=known)
        messages = call.messages
        if messages[0].role == "system" and messages[0].content == self.system_prompt:
            messages, asked = messages[1:], replace(asked, known=max(0, known - 1))
        return _shown(messages, asked=asked, restart=True)

    def _parent(self, call: Call) -> tuple[int | None, int]:
        """The turn that the messages begin with, the longest one, and how many messages that is."""
        tools, keys = tools_key(call.asked.tools), [*map(message_key, call.messages)]
        for count in range(len(keys) - 1, 1, -1):
            if keys[count - 1][0] == "assistant":
                turn = self._known.get((tools, tuple(keys[:count])))
                if turn is not None:
                    return turn, count
        return None, 0


def _shown(messages: tuple[Message, ...], *, asked: Asked, restart: bool = False) -> Observation:
    """One message of the user is a text, as in every environment."""
    text = "\n".join(each.content for each in messages)
    plain = len(messages) == 1 and messages[0].role == "user"
    return Observation(text=text, messages=() if plain else messages, asked=asked, restart=restart)


def _answered(action: Action, call: Call, turn: int) -> ChatAnswer:
    """An answer as the client gets it."""
    tools = call.asked.tools
    message = action.message or (read_message(action.text, tools=tools) if tools else None)
    return answer_of(
        action.text,
        message,
        cut=action.stop is StopReason.TOKEN_LIMIT,
        usage=action.usage or Usage(),
        call_id=lambda place: f"c{turn:04d}{place:04d}",  # of nine letters and digits: some templates take no other
    )


def _plain(result: Any) -> Any:
    """Returns what an agent returned in the form that an episode holds."""
    dump = getattr(result, "model_dump", None)
    return plain(dump() if callable(dump) else result)
