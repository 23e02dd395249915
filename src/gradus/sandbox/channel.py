"""JSON messages, one a line, between this process and one that it started.

Nothing that another process says is unpickled or run: the other side may be code that an answer of a model brought in.
"""

from __future__ import annotations

import json
import os
import secrets
import select
from collections.abc import Mapping
from typing import Any

from gradus.core.values import as_mapping
from gradus.sandbox import clock

_MOST = 1 << 20  # bytes of one message: an endless one must not fill this process's memory


class Channel:
    """Reads messages from one file descriptor and writes them to another."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads = reads
        self._writes = writes
        self._pending = b""

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Send a request and return its reply, which bears the same new id. Each request has one reply.

        Time that was spent waiting for a core is not counted: a busy machine causes no error. Raises TimeoutError if no reply comes in
        time, and BrokenPipeError if the other side ended, wrote what is not JSON, or wrote what nobody asked for, as code that an answer
        brought in may.
        """
        # A reply that lies there before it is asked for would be taken for this request's.
        if self._has_more():
            raise BrokenPipeError("the other process sent a reply that nobody asked for")
        number = secrets.token_hex(8)
        self._send({**request, "id": number})
        reply = self._receive(seconds)
        fields = dict(as_mapping(reply))
        if fields.pop("id", None) != number or self._has_more():
            raise BrokenPipeError("the other process sent something else than the reply to this request")
        return fields

    def _has_more(self) -> bool:
        """Return True if something can be read that has not been returned."""
        return bool(self._pending or self._waiting().poll(0))

    def _waiting(self) -> select.poll:
        waiting = select.poll()  # select() takes no file beyond the 1,024th
        waiting.register(self._reads, select.POLLIN)
        return waiting

    def _send(self, message: Any) -> None:
        """Write a message. Raises BrokenPipeError if nobody reads any more."""
        data = memoryview(json.dumps(message).encode() + b"\n")
        while data:
            data = data[os.write(self._writes, data) :]

    def _receive(self, seconds: float) -> Any:
        """Return the next message."""
        deadline = clock.now() + seconds
        waiting = self._waiting()
        parts = [self._pending]
        while b"\n" not in parts[-1]:
            while not waiting.poll(max(0.0, deadline - clock.now()) * 1000):
                if clock.now() >= deadline:
                    raise TimeoutError
            parts.append(os.read(self._reads, 1 << 20))
            if not parts[-1]:
                raise BrokenPipeError("the other process ended")
            if sum(map(len, parts)) > _MOST:
                raise BrokenPipeError(f"the other process sent a message of more than {_MOST} bytes")
        line, _, self._pending = b"".join(parts).partition(b"\n")
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BrokenPipeError(f"the other process sent what is not JSON: {error}") from error
