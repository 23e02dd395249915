"""What all servers have in common."""

from __future__ import annotations

import gc
import signal
from typing import Any

import pytest
import uvicorn

from gradus.interop.serving.listening import listen, serve_until_stopped


def test_a_server_collects_the_cycles_that_requests_leave() -> None:
    """The command line looks for cycles at every 100,000th object."""
    seen: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "lifespan"
        await receive()
        before = gc.get_stats()[1]["collections"]
        for _ in range(200_000):
            cycle: list[Any] = []
            cycle.append(cycle)
        seen.append(gc.get_stats()[1]["collections"] - before)
        await send({"type": "lifespan.startup.failed"})

    thresholds, handler = gc.get_threshold(), signal.getsignal(signal.SIGTERM)
    gc.set_threshold(100_000, 50, 50)
    try:
        with listen("127.0.0.1", 0) as listener, pytest.raises(SystemExit):
            serve_until_stopped(uvicorn.Config(app, log_level="critical"), listener)
    finally:
        gc.set_threshold(*thresholds)
        signal.signal(signal.SIGTERM, handler)
    assert seen[0] >= 1
