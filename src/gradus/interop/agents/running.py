"""Running an agent on a task: a coroutine or a function in a thread of its own, or a command."""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import json
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gradus.interop.agents.calls import Ended, Inbox

_OUTPUT = 2**20  # bytes of a command's answer
_LETS_GO = 0.5  # seconds that a canceled coroutine has


@dataclass(frozen=True)
class Command:
    """An agent in any language: it finds the task on standard input, and OPENAI_BASE_URL and OPENAI_API_KEY in its environment.

    What it prints is its result, read as JSON if it is JSON.
    """

    line: str


Agent = Callable[[Mapping[str, Any], Any], Any] | Command


@dataclass(frozen=True, kw_only=True)
class Address:
    """The endpoint as one episode reaches it."""

    base_url: str
    api_key: str


class _Ended(BaseException):
    """Raised inside an agent whose episode is over."""


class Running:
    """An agent at work. Whatever it does, its end is put into the inbox, once."""

    def __init__(self, agent: Agent, task: Mapping[str, Any], address: Address, inbox: Inbox) -> None:
        self._agent, self._task, self._address, self._inbox = agent, dict(task), address, inbox
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[Any] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._state = threading.Lock()
        self._done = False
        self._thread = threading.Thread(target=self._work, name="gradus-agent", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the agent where it is, if it still runs. A thread that waits in foreign code ends when that code returns."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            return
        if self._loop is not None and self._main is not None:
            with suppress(RuntimeError):  # its loop is closed
                self._loop.call_soon_threadsafe(self._main.cancel)
            self._thread.join(_LETS_GO)
        with self._state:
            if not self._done and self._thread.ident is not None:
                thread, raised = ctypes.c_ulong(self._thread.ident), ctypes.py_object(_Ended)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, raised)

    def _work(self) -> None:
        with suppress(_Ended):  # it may come between two lines
            try:
                end = Ended(result=self._run())
            except BaseException as error:  # an agent that exits ends its own episode
                end = Ended(fault=f"the agent raised {type(error).__name__}: {error}"[:2000])
            with self._state:
                self._done = True
            self._inbox.put_end(end)

    def _run(self) -> Any:
        if isinstance(self._agent, Command):
            return self._run_command(self._agent.line)
        if inspect.iscoroutinefunction(self._agent) or inspect.iscoroutinefunction(type(self._agent).__call__):
            return asyncio.run(self._run_coroutine())
        import httpx
        from openai import OpenAI

        with httpx.Client(trust_env=False, verify=False, timeout=None) as http:
            client = OpenAI(**self._options(), http_client=http)
            return self._agent(self._task, client)

    async def _run_coroutine(self) -> Any:
        import httpx
        from openai import AsyncOpenAI

        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
        async with httpx.AsyncClient(trust_env=False, verify=False, timeout=None) as http:
            client = AsyncOpenAI(**self._options(), http_client=http)
            return await self._agent(self._task, client)

    def _options(self) -> dict[str, Any]:
        return {"base_url": self._address.base_url, "api_key": self._address.api_key, "max_retries": 0, "timeout": None}

    def _run_command(self, line: str) -> Any:
        own = {"OPENAI_BASE_URL": self._address.base_url, "OPENAI_API_KEY": self._address.api_key}
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
