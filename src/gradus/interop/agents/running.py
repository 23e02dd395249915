"""Running an agent on a task: a coroutine or a function in a thread of its own, or a command."""

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
from dataclasses import dataclass
from functools import cache
from typing import Any

from gradus.interop.agents.calls import Ended, Inbox

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
