"""The endpoint that agents of this process call, answered by whatever policy rolls out their episodes.

One server at a free port of this machine's own address. Each episode has a key of its own; a request with any other is refused.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

import uvicorn

from gradus.core import Asked
from gradus.core.servers import LOOPBACK
from gradus.interop.agents.calls import Call, Inbox
from gradus.interop.serving.endpoint import endpoint_app
from gradus.interop.serving.listening import listen, server_config, url
from gradus.interop.serving.messages import check_tools, read_messages
from gradus.interop.serving.requests import ApiError, ChatRequest

_HOST = "127.0.0.1"


class Endpoint:
    """The server, in a thread of its own. Its backend is this: the episodes by their keys."""

    # How tokens are drawn is the run's: the trainer computes log-probs of that distribution. What is said is the policy's own.
    overruled: Collection[str] = (
        "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias",
        "reasoning_effort", "verbosity", "tool_choice",
    )  # fmt: skip

    def __init__(self) -> None:
        self._inboxes: dict[str, Inbox] = {}
        listener = listen(_HOST, 0)
        self._base = url(listener, _HOST, path="/v1")
        config = server_config(endpoint_app(self, hosts=LOOPBACK), ws="none", lifespan="off")
        run, named = uvicorn.Server(config).run, {"name": "gradus-endpoint", "daemon": True}
        threading.Thread(target=run, kwargs={"sockets": [listener]}, **named).start()

    def open(self, inbox: Inbox) -> str:
        """Let an episode be reached by its key. Returns the address."""
        self._inboxes[inbox.key] = inbox
        return self._base

    def forget(self, inbox: Inbox) -> None:
        """Let its key be worth nothing."""
        self._inboxes.pop(inbox.key, None)

    def admit(self, key: str) -> None:
        """Raise ApiError for a key that no episode has."""
        if key not in self._inboxes:
            said = "no episode has this key; an episode's key ends with it"
            raise ApiError(said, status=401, code="invalid_api_key")

    def card(self) -> Mapping[str, Any]:
        """The policy as a model; any other name is right too."""
        return {"id": "policy", "created": 0, "owned_by": "gradus"}

    def ask(self, key: str, asked: ChatRequest, overruled: Mapping[str, Any]) -> Sequence[Call]:
        """Put a call for each choice into the episode's inbox."""
        self.admit(key)  # the episode may have ended while the request was read
        check_tools(asked.offered)
        messages = tuple(read_messages(asked.messages))
        wanted = Asked(tools=tuple(asked.offered), stop=tuple(asked.stops), max_tokens=asked.budget, seed=asked.seed)
        calls = [Call(messages=messages, asked=wanted, overruled=overruled) for _ in range(asked.n or 1)]
        inbox = self._inboxes[key]
        for call in calls:
            inbox.put_call(call)
        return calls


@cache
def _endpoint_of(process: int) -> Endpoint:
    return Endpoint()


def endpoint() -> Endpoint:
    """The endpoint of this process, which its first episode opens."""
    return _endpoint_of(os.getpid())
