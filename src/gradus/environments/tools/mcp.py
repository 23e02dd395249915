"""The tools of an MCP server (Model Context Protocol), by the official client. Needs the extra ``mcp``.

A server has a state of its own, so every episode starts its own server, unless one :class:`McpTools` is made for all.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, cast

from gradus.core import ConfigError
from gradus.core.values import JsonDict
from gradus.core.waiting import begin, wait_for
from gradus.environments.tools.tool import Tool

if TYPE_CHECKING:
    from mcp import Client


class McpTools:
    """The tools of one server: ``mcp:COMMAND``, ``mcp:http://HOST/mcp``, or a server object in this process.

    Nothing is started before ``tools`` is asked for. ``timeout``: seconds that the server may take to start or to answer a call.
    ``only``: names of tools that are used, if not all are. What a command writes to its standard error is not shown, unless it
    does not start.

    Raises:
        ConfigError: the extra is not installed, the server does not answer, or has no tool of a name in ``only``.
    """

    def __init__(self, server: Any, *, timeout: float = 30.0, only: Sequence[str] | None = None) -> None:
        self.name = str(server)
        self._timeout = timeout
        self._only = only
        self._server = server.removeprefix("mcp:").strip() if isinstance(server, str) else server
        self._tools: tuple[Tool, ...] | None = None
        # All that belongs to one connection; None while there is none.
        self._client: Client | None = None
        self._stop: asyncio.Event | None = None
        self._task: Future[None] | None = None
        self._written: IO[str] | None = None

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools; connects first."""
        if self._tools is None:
            try:
                self._tools = self._selected(self._listed())
            except ConfigError:
                self.close()
                raise
        return self._tools

    def close(self) -> None:
        """Disconnect; a server that was started here ends."""
        if self._client is not None and self._stop is not None:
            wait_for(_set(self._stop))
        elif self._task is not None:  # before its tools are listed, the connection does not wait for the event
            self._task.cancel()
        self._task = self._stop = self._tools = self._client = self._written = None

    def _listed(self) -> Sequence[Any]:
        """Connects, and lists the tools of the server in its order."""
        # The connection lives in the process's own loop; the list comes over to this thread by a future.
        listed: Future[list[Any]] = Future()
        self._task = begin(self._connected(listed))
        try:
            return listed.result(self._timeout)
        except Exception as error:
            # A server's own last words say more than the client's error, which is often a closed pipe.
            reason = self._complaint() or _cause(error) or f"nothing came within {self._timeout:g} s"
            raise ConfigError(
                f"the MCP server {self.name!r} does not answer: {reason}; is its command or address right?"
            ) from error

    def _complaint(self) -> str:
        """Returns the last line that a server which was started here wrote to its standard error."""
        if self._written is None:
            return ""
        self._written.seek(0)
        lines = [line.strip() for line in self._written if any(map(str.isalpha, line))]
        return lines[-1] if lines else ""

    async def _connected(self, listed: Future[list[Any]]) -> None:
        """Holds the connection until ``close`` ends it: the task that opened it has to close it."""
        self._stop = asyncio.Event()
        try:
            async with self._make() as client:
                page = await client.list_tools()
                tools = list(page.tools)
                # Servers with many tools list them in pages.
                while page.next_cursor:
                    page = await client.list_tools(cursor=page.next_cursor)
                    tools += page.tools
                self._client = client
                listed.set_result(tools)
                await self._stop.wait()
        except BaseException as error:
            # After the list nobody waits for this future, and a broken server shows in its next call.
            if not listed.done():
                listed.set_exception(error)

    def _make(self) -> Client:
        try:
            from mcp import Client, StdioServerParameters
            from mcp.client.stdio import stdio_client
        except ImportError as error:
            raise ConfigError("MCP servers need the extra mcp: pip install 'gradus-rl[mcp]'") from error
        # The client skips a line that is not a message, as a server prints at its start, with a traceback for each.
        logging.getLogger("mcp.client.stdio").setLevel(logging.CRITICAL)
        server = self._server
        # Anything else is a command, split as a shell would, without a shell.
        if isinstance(server, str) and not server.startswith(("http://", "https://")):
            command, *arguments = shlex.split(server)
            server = StdioServerParameters(command=command, args=arguments)
        if isinstance(server, StdioServerParameters):
            self._written = TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed with this object
            server = stdio_client(server, errlog=self._written)
        return Client(server, read_timeout_seconds=self._timeout)

    def _selected(self, listed: Sequence[Any]) -> tuple[Tool, ...]:
        by_name = {tool.name: _as_tool(tool, partial(self._call, tool.name)) for tool in listed}
        names = self._only or list(by_name)
        missing = [name for name in names if name not in by_name]
        if missing:
            raise ConfigError(f"the MCP server {self.name!r} has no tool {missing[0]!r}; it has {', '.join(by_name)}")
        return tuple(by_name[name] for name in names)

    async def _call(self, name: str, /, **arguments: Any) -> str:
        """Returns what a tool says. Raises RuntimeError with the server's words if the call failed."""
        if self._client is None:
            raise ConfigError(f"the MCP server {self.name!r} is closed")
        result = await self._client.call_tool(name, arguments)
        # Images and sounds cannot be read by a model of text; it is told that they were there.
        text = "\n".join(getattr(part, "text", None) or f"[{part.type}]" for part in result.content)
        if result.is_error:
            raise RuntimeError(text)
        return text


def _cause(error: BaseException) -> str:
    """Returns the first error in the groups that the client's tasks wrap around it."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return str(error)


def _as_tool(tool: Any, run: Any) -> Tool:
    parameters: JsonDict = tool.input_schema or {"type": "object", "properties": {}}
    function = {"name": tool.name, "description": tool.description or "", "parameters": parameters}
    return Tool(schema={"type": "function", "function": function}, run=run)


async def _set(event: asyncio.Event) -> None:
    event.set()
