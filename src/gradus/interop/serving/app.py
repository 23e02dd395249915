"""``gradus serve``: the endpoint over a local model, with plain completions for training.

Plain completions give token ids and log-probs in vLLM's dialect (``return_token_ids``, prompts as token ids), so that an answer that was
sampled here can be trained on.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import socket
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel
from safetensors import SafetensorError
from safetensors.torch import load_file
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gradus.core import ConfigError, ContextLengthError, StorageError, child_seed
from gradus.core.servers import LOOPBACK
from gradus.interop.servers import serve_until_stopped, server_config
from gradus.interop.serving.endpoint import Handler, answered, endpoint_app, read_json, usage_of
from gradus.interop.serving.generation import ContinuousBatch, Generation
from gradus.interop.serving.requests import ApiError, ChatRequest, CompletionRequest, RequestBody, checked, parse_body
from gradus.interop.serving.text import Reply, Tools, check_length, conversation_ids
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.local.settings import free_sampling

_MOST_CONNECTIONS = 1024
_MOST_WAITING = 4096  # requests that wait for a row; more are refused until some are done
_LEAST = -9999.0  # JSON knows no infinity
_SMALLEST_TEMPERATURE = 1e-5  # logits that are divided by less may become infinite


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
    model = _Model(loaded, name, sampling or free_sampling(loaded.settings), ContinuousBatch(loaded, rows=rows), access)
    model.seed = seed

    @contextlib.asynccontextmanager
    async def running(app: Starlette) -> AsyncIterator[None]:
        model.batch.start()
        try:
            yield
        finally:
            await asyncio.to_thread(model.batch.close)

    more: dict[str, Handler] = {"/v1/completions": model.complete}
    if access.weights is not None:
        more["/collective_rpc"] = _reload_route(loaded, access.weights)
    app = endpoint_app(model, hosts=access.hosts, more=more, lifespan=running)
    app.state.batch = model.batch
    return app


def serve(app: Starlette, listener: socket.socket) -> None:
    """Serve at a bound socket until Ctrl-C or SIGTERM; requests under way then have a few seconds."""
    serve_until_stopped(server_config(app, limit_concurrency=_MOST_CONNECTIONS, ws="none"), listener)


@dataclass(eq=False)
class _Model:
    """The backend of a local model."""

    loaded: LoadedModel
    name: str
    sampling: SamplingConfig
    batch: ContinuousBatch
    access: Access
    seed: int = 0
    overruled: Collection[str] = ()

    def __post_init__(self) -> None:
        self._created, self._numbers = int(time.time()), itertools.count()

    def admit(self, key: str) -> None:
        token = self.access.token
        if token is not None and not hmac.compare_digest(key.encode(), token.encode()):
            raise ApiError("this server wants its token, as in Authorization: Bearer TOKEN", status=401)

    def card(self) -> Mapping[str, Any]:
        card = {"id": self.name, "created": self._created, "owned_by": "gradus"}
        return {**card, "root": self.loaded.path, "max_model_len": self.loaded.context}

    def ask(self, key: str, asked: ChatRequest) -> Sequence[Reply]:
        self._check_model(asked.model)
        prompt = conversation_ids(self.loaded, asked.messages, asked.offered)
        return self._begun(asked, prompt, asked.n or 1, "messages", asked.offered)

    async def complete(self, request: Request) -> Response:
        """``POST /v1/completions``: one answer to one prompt, whole."""
        asked = parse_body(CompletionRequest, await read_json(request))
        self._check_model(asked.model)
        (reply,) = self._begun(asked, self._prompt(asked.prompt), 1, "prompt")
        answers = await answered([reply])
        head = {"id": f"cmpl-{reply.generation.seed:x}", "object": "text_completion", "created": int(time.time())}
        body = {**head, "model": self.name, "choices": [self._completion(asked, reply, answers[0].finish)]}
        return JSONResponse({**body, "usage": usage_of(answers)})

    def _completion(self, asked: CompletionRequest, reply: Reply, finish: str) -> dict[str, Any]:
        """A choice of ``text_completion``, with the ids and log-probs that were asked for."""
        tokens, spell = reply.text.tokens, self.loaded.tokenizer.decode
        choice: dict[str, Any] = {"index": 0, "text": reply.text.text, "finish_reason": finish, "logprobs": None}
        if asked.logprobs is not None:
            choice["logprobs"] = {
                "tokens": [spell([token.id]) for token in tokens],
                "token_logprobs": [max(token.logprob, _LEAST) for token in tokens],
                "top_logprobs": None,
                "text_offset": [],
            }
        if asked.return_token_ids:
            choice |= {"token_ids": reply.text.ids, "prompt_token_ids": list(reply.generation.prompt)}
        return choice

    def _check_model(self, name: str) -> None:
        if name not in ("", self.name):
            said = f"there is no model {name!r}, this server has {self.name!r}"
            raise ApiError(said, status=404, code="model_not_found")

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

    def _begun(
        self, asked: RequestBody, prompt: Sequence[int], count: int, param: str, tools: Tools = ()
    ) -> Sequence[Reply]:
        """Queue ``count`` answers to a prompt."""
        if self.batch.waiting >= _MOST_WAITING:
            raise ApiError(f"{self.batch.waiting} answers are waiting; try again later", status=503, code="overloaded")
        try:
            budget = self.batch.room(prompt, asked.budget, self.sampling.max_new_tokens)
        except ContextLengthError as error:
            raise ApiError(str(error), param=param, code="context_length_exceeded") from error
        seed = child_seed(self.seed, "request", next(self._numbers)) if asked.seed is None else asked.seed
        replies = [
            Reply(
                self.loaded,
                Generation(
                    prompt=prompt,
                    sampling=_sampling(asked, self.sampling),
                    budget=budget,
                    seed=child_seed(seed, index),
                    tell=lambda _: None,
                    stops=frozenset(asked.stop_token_ids or ()),
                ),
                stops=asked.stops,
                tools=tools,
                chat=isinstance(asked, ChatRequest),
            )
            for index in range(count)
        ]
        for reply in replies:
            self.batch.submit(reply.generation)
        return replies


def _sampling(asked: RequestBody, default: SamplingConfig) -> SamplingConfig:
    """The settings of a request; what it does not name is the server's. Temperatures near 0 are greedy."""
    temperature = asked.temperature
    if temperature is None:
        temperature = 0.0 if default.greedy else default.temperature
    if temperature < _SMALLEST_TEMPERATURE:
        return SamplingConfig(greedy=True)
    top_k = default.top_k if asked.top_k is None else max(asked.top_k, 0)
    top_p = default.top_p if asked.top_p is None else asked.top_p
    return SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p)


class _Reload(BaseModel):
    method: Literal["reload_weights"]
    kwargs: dict[str, str] = {}


def _reload_route(loaded: LoadedModel, below: Path) -> Handler:
    """``POST /collective_rpc`` with ``{"method": "reload_weights"}``, and ``{"kwargs": {"weights_path": FOLDER}}`` for other files.

    vLLM has this route in development mode. Folders outside ``below`` are refused, links that lead out of it as well.
    """
    root = below.resolve()

    async def collective_rpc(request: Request) -> Response:
        body = await read_json(request)
        folder = checked("body", lambda: _Reload.model_validate(body)).kwargs.get("weights_path")
        if folder is not None and not Path(folder).resolve().is_relative_to(root):
            raise ApiError(f"weights are loaded from below {root} only", status=403)
        try:
            count = await asyncio.to_thread(_reload_weights, loaded, folder or loaded.path)
        except StorageError as error:
            raise ApiError(str(error), status=409) from error
        return JSONResponse({"results": [count]})

    return collective_rpc


def _reload_weights(loaded: LoadedModel, folder: str) -> int:
    """Copy the weights in a folder into the model, in place; returns how many tensors.

    Nothing changes on an error, a StorageError. Do it between steps: a request under way would go on with keys and values of
    the old weights.
    """
    tensors: dict[str, torch.Tensor] = {}
    try:
        for file in sorted(Path(folder).glob("*.safetensors")):
            tensors |= load_file(file)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"the weights in {folder} could not be read: {error}") from error
    own = loaded.model.state_dict()
    # Tied weights are stored once, so some of the model's names may be missing.
    strange = [name for name, value in tensors.items() if name not in own or own[name].shape != value.shape]
    if not tensors or strange:
        raise StorageError(
            f"the weights in {folder} do not fit the model that is served: {len(tensors)} tensors, unknown or of another shape: {strange[:3]}"
        )
    with torch.no_grad():
        for name, value in tensors.items():
            own[name].copy_(value)
    torch.clear_autocast_cache()  # it holds casts of the old ones
    return len(tensors)
