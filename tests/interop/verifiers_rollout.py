"""Runs where verifiers is: loads a package by its name, rolls its tasks out against an endpoint that says one text, and prints what came.

The first argument is the module, the second the text, the others are options of the taskset.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module

from verifiers.v1.clients import EvalClientConfig, ModelContext

MODULE, TEXT, CONDITION, TASKS = sys.argv[1:]


class Endpoint(BaseHTTPRequestHandler):
    """Chat completions of one text."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        message = {"role": "assistant", "content": TEXT}
        body = {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": asked["model"],
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
        }
        raw = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        pass


async def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["NO_KEY"] = "none"
    client = EvalClientConfig(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key_var="NO_KEY")
    environment = import_module(MODULE).load_environment(condition=CONDITION, tasks=int(TASKS))
    context = ModelContext(model="scripted", client=client)
    async with environment.serving():
        episodes = await asyncio.gather(*(environment.run_episode(each, context) for each in environment.taskset))
    told = []
    for episode in episodes:
        (trace,) = episode.traces
        seed, said = trace.task.data.seed, [message.role for message in trace.messages]
        told.append({"seed": seed, "ok": trace.ok, "reward": trace.reward, "turns": trace.num_turns, "roles": said})
    print(json.dumps(told))


asyncio.run(main())
