"""An OpenAI-compatible server of a local model: /v1/models, /v1/chat/completions, /v1/completions, streaming or not.

Plain completions give token ids and log-probs in vLLM's dialect (``return_token_ids``, prompts as token ids), so that an answer that was
sampled here can be trained on.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import time
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gradus.core import ConfigError, ContextLengthError, child_seed
from gradus.core.servers import LOOPBACK
from gradus.interop.guard import Guard
from gradus.interop.serving.answers import Reply, chat_choice, completion_choice, usage
from gradus.interop.serving.conversation import check_length, conversation_ids, tool_renderer
from gradus.interop.serving.generation import ContinuousBatch, Generation, Sampled
from gradus.interop.serving.listening import serve_until_stopped
from gradus.interop.serving.openai_schema import ApiError, ChatRequest, CompletionRequest, RequestBody, parse_body
from gradus.interop.serving.reload import reload_route
from gradus.interop.serving.transport import events, guarded, not_found, read_json, unless_gone
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.local.settings import free_sampling

_MOST_CONNECTIONS = 1024
_MOST_WAITING = 4096  # requests that wait for a row; more are refused until some are done


@dataclass(frozen=True, kw_only=True)
class Access:
    """Limits on clients.

    ``hosts``: names that Host and Origin may have, None for any. ``token``: what every request but /health must carry.
    ``weights``: the folder below which clients may name weights to load; None leaves that route out.
    """

    hosts: Collection[str] | None = LOOPBACK
    token: str | None = None
    weights: Path | None = None

    def __post_init__(self) -> None:
        if self.weights is not None and not self.token:
            raise ConfigError("clients that may load weights need a token; set one, or leave the folder of weights out")


def make_app(
    loaded: LoadedModel,
    *,
    name: str,
    sampling: SamplingConfig | None = None,
    rows: int = 32,
    seed: int = 0,
    access: Access | None = None,
) -> Starlette:
    """A starlette app that serves ``loaded`` as model ``name``.

    ``sampling`` (None for what the model was trained with) is used if a request names nothing else; ``rows`` requests are
    answered at once. Requests without a seed draw from ``seed`` and their number. ``app.state.batch`` is the running :class:`ContinuousBatch`.
    """
    access = access or Access()
    server = _Server(loaded, name, sampling or free_sampling(loaded.settings), rows, seed)

    @contextlib.asynccontextmanager
    async def running(app: Starlette) -> AsyncIterator[None]:
        server.batch.start()
        try:
            yield
        finally:
            await asyncio.to_thread(server.batch.close)

    routes = [
        Route("/health", guarded(server.health)),
        Route("/v1/models", guarded(server.models)),
        Route("/v1/models/{model:path}", guarded(server.model)),
        Route("/v1/chat/completions", guarded(server.chat), methods=["POST"]),
        Route("/v1/completions", guarded(server.complete), methods=["POST"]),
    ]
    if access.weights is not None:
        routes.append(reload_route(loaded, access.weights))
    app = Starlette(
        routes=routes,
        lifespan=running,
        middleware=[Middleware(Guard, hosts=access.hosts, token=access.token)],
        exception_handlers={404: not_found, 405: not_found},
    )
    app.state.batch = server.batch
    return app


def serve(app: Starlette, listener: socket.socket) -> None:
    """Serve at a bound socket until Ctrl-C or SIGTERM; requests under way then have a few seconds."""
    import uvicorn

    config = uvicorn.Config(app, log_level="warning", limit_concurrency=_MOST_CONNECTIONS, ws="none")
    serve_until_stopped(config, listener)


class _Server:
    def __init__(self, loaded: LoadedModel, name: str, sampling: SamplingConfig, rows: int, seed: int) -> None:
        self.loaded, self.name, self.sampling, self.seed = loaded, name, sampling, seed
        self.batch = ContinuousBatch(loaded, rows=rows)
        self.created = int(time.time())
        self._numbers = itertools.count()

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        self._check_model(request.path_params["model"])
        return JSONResponse(self._card())

    async def chat(self, request: Request) -> Response:
        asked = parse_body(ChatRequest, await read_json(request))
        self._check_model(asked.model)
        prompt = conversation_ids(self.loaded, asked.messages, asked.offered)
        return await self._respond(request, asked, prompt, chat=True)

    async def complete(self, request: Request) -> Response:
        asked = parse_body(CompletionRequest, await read_json(request))
        self._check_model(asked.model)
        return await self._respond(request, asked, self._prompt(asked.prompt), chat=False)

    def _card(self) -> dict[str, Any]:
        card = {"id": self.name, "object": "model", "created": self.created, "owned_by": "gradus"}
        return {**card, "root": self.loaded.path, "max_model_len": self.loaded.context}

    def _check_model(self, name: str) -> None:
        if name != self.name:
            raise ApiError(
                f"there is no model {name!r}, this server has {self.name!r}", status=404, code="model_not_found"
            )

    def _prompt(self, given: str | list[int]) -> list[int]:
        """Token ids of a prompt; ids are checked against the vocabulary."""
        if isinstance(given, str):
            check_length(self.loaded, [given], "prompt")
        prompt = self.loaded.tokenizer.encode(given) if isinstance(given, str) else given
        if not prompt:
            raise ApiError("the prompt is empty; give at least one token", param="prompt", code="invalid_value")
        vocabulary = self.loaded.model.get_input_embeddings().weight.shape[0]
        if not all(0 <= token < vocabulary for token in prompt):
            raise ApiError(f"token ids must lie between 0 and {vocabulary - 1}", param="prompt", code="invalid_value")
        return prompt

    async def _respond(
        self, request: Request, asked: ChatRequest | CompletionRequest, prompt: Sequence[int], *, chat: bool
    ) -> Response:
        if self.batch.waiting >= _MOST_WAITING:
            raise ApiError(f"{self.batch.waiting} answers are waiting; try again later", status=503, code="overloaded")
        number = next(self._numbers)
        seed = child_seed(self.seed, "request", number) if asked.seed is None else asked.seed
        reply = self._reply(asked, prompt, child_seed(seed, 0))
        head: dict[str, Any] = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{self.created:x}-{number}",
            "object": "chat.completion" if chat else "text_completion",
            "created": int(time.time()),
            "model": self.name,
        }
        self.batch.submit(reply.generation)
        if asked.stream:
            return StreamingResponse(events(head, asked, reply, chat), media_type="text/event-stream")
        try:
            await unless_gone(request, reply.finish())
        finally:
            reply.generation.cancelled = True
        head["choices"] = [
            chat_choice(asked, reply) if isinstance(asked, ChatRequest) else completion_choice(asked, reply)
        ]
        return JSONResponse({**head, "usage": usage(reply)})

    def _reply(self, asked: RequestBody, prompt: Sequence[int], seed: int) -> Reply:
        try:
            budget = self.batch.room(prompt, asked.budget, self.sampling.max_new_tokens)
        except ContextLengthError as error:
            raise ApiError(
                str(error),
                param="messages" if isinstance(asked, ChatRequest) else "prompt",
                code="context_length_exceeded",
            ) from error
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Sampled | Exception] = asyncio.Queue()

        def tell(token: Sampled | Exception) -> None:
            with contextlib.suppress(RuntimeError):  # the loop may be gone when the server closes
                loop.call_soon_threadsafe(arrived.put_nowait, token)

        generation = Generation(
            prompt=prompt,
            sampling=asked.sampling(self.sampling, budget),
            seed=seed,
            tell=tell,
            stops=frozenset(asked.stop_token_ids or ()),
        )
        tools = asked.offered if isinstance(asked, ChatRequest) else []
        return Reply(
            generation=generation,
            arrived=arrived,
            tokenizer=self.loaded.tokenizer,
            renderer=self.loaded.renderer if isinstance(asked, ChatRequest) else None,
            stops=asked.stops,
            read=tool_renderer(self.loaded, tools).read if tools else None,
        )
