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
from collections.abc import AsyncGenerator, Collection, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import torch
from pydantic import BaseModel
from safetensors import SafetensorError
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gradus.core import Asked, ConfigError, ContextLengthError, PolicyError, StorageError, child_seed
from gradus.core.frozen_record import frozen_record
from gradus.core.servers import LOOPBACK
from gradus.core.values import Json, JsonDict
from gradus.interop.servers import serve_until_stopped, server_config
from gradus.interop.serving.answers import LEAST, usage_of, whole_answers
from gradus.interop.serving.endpoint import Handler, endpoint_app, read_json, while_client_waits
from gradus.interop.serving.generation import ContinuousBatch, Generation, TokenScore
from gradus.interop.serving.requests import (
    MOST_CHOICES,
    ApiError,
    ChatRequest,
    CompletionRequest,
    RequestBody,
    parse_body,
    validated,
)
from gradus.interop.serving.text import LocalChoice, begin_chat, check_length
from gradus.policies.local.grammar import Grammar
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.local.settings import free_sampling

_MOST_CONNECTIONS = 1024
_MOST_WAITING = 4096  # requests that wait for a row; more are refused until some are done
_SMALLEST_TEMPERATURE = 1e-5  # logits that are divided by less may become infinite


@frozen_record
class Access:
    """Limits on clients. Raises ConfigError if anybody could load weights."""

    # Names that Host and Origin may have; None for any.
    hosts: Collection[str] | None = LOOPBACK
    # What every request but /health must carry.
    token: str | None = None
    # The folder below which clients may name weights to load; None leaves that route out.
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
    answered at once. Requests without a seed draw from ``seed`` and their number. With ``sampling.constrain`` an answer of which a schema is
    asked follows it. ``app.state.batch`` is the running :class:`ContinuousBatch`.
    """
    access = access or Access()
    sampling = sampling or free_sampling(loaded.settings)
    batch = ContinuousBatch(loaded, rows=rows, constrain=sampling.constrain)
    model = _LocalBackend(batch, name, sampling, access.token, seed)

    @contextlib.asynccontextmanager
    async def running(_: Starlette) -> AsyncGenerator[None]:
        batch.start()
        try:
            yield
        finally:
            await asyncio.to_thread(batch.close)

    more: dict[str, Handler] = {"/v1/completions": model.complete}
    if access.weights is not None:
        more["/collective_rpc"] = _reload_route(loaded, access.weights)
    app = endpoint_app(model, hosts=access.hosts, more=more, lifespan=running)
    app.state.batch = batch
    return app


def serve(app: Starlette, listener: socket.socket) -> None:
    """Serve at a bound socket until Ctrl-C or SIGTERM; requests under way then have a few seconds."""
    serve_until_stopped(server_config(app, limit_concurrency=_MOST_CONNECTIONS), listener)


class _LocalBackend:
    """Answers chats and plain completions by a local model."""

    overruled: Collection[str] = ()

    def __init__(
        self, batch: ContinuousBatch, name: str, sampling: SamplingConfig, token: str | None, seed: int
    ) -> None:
        self._batch = batch
        self._loaded = batch.loaded
        self._name = name
        self._sampling = sampling
        self._token = token
        self._seed = seed
        self._created = int(time.time())
        self._numbers = itertools.count()

    def admit(self, key: str) -> None:
        # In constant time, so that a wrong token tells nothing about the right one.
        if self._token is not None and not hmac.compare_digest(key.encode(), self._token.encode()):
            raise ApiError("this server wants its token, as in Authorization: Bearer TOKEN", status=401)

    def refused(self, key: str, error: ApiError) -> None:
        """The client is told, and nobody else needs to know."""

    def card(self) -> Json:
        card = {"id": self._name, "created": self._created, "owned_by": "gradus"}
        return {**card, "root": self._loaded.path, "max_model_len": self._loaded.context}

    async def ask(self, key: str, request: ChatRequest) -> Sequence[LocalChoice]:
        self._check_model(request.model)
        messages, asked = request.read()
        grammar = await self._grammar(asked)
        chat = begin_chat(self._loaded, messages, asked)
        choices = [
            LocalChoice(self._loaded, generation, stops=asked.stop, chat=chat, whole=bool(asked.tools))
            for generation in self._generations(request, chat[1].prompt, request.n or 1, "messages")
        ]
        for choice in choices:
            choice.generation.grammar = grammar
            self._batch.submit(choice.generation)
        return choices

    async def _grammar(self, asked: Asked) -> Grammar | None:
        """What an answer must follow."""
        if not asked.schema:
            return None
        try:
            # A new schema takes seconds; others are answered meanwhile.
            return await asyncio.to_thread(self._batch.grammar_for, asked)
        except PolicyError as error:
            raise ApiError(str(error), param="response_format", code="invalid_value") from error

    async def complete(self, http: Request) -> Response:
        """``POST /v1/completions``: one whole answer to each prompt."""
        request = parse_body(CompletionRequest, await read_json(http))
        self._check_model(request.model)
        if request.budget == 0 and not request.echo:
            raise ApiError("max_tokens is 0: nothing would come back; ask with echo", param="max_tokens")
        # A token is sampled in any case, for the prompt's scores come with it.
        sampled = request.model_copy(update={"budget": 1 if request.budget == 0 else request.budget})
        generations = [
            generation
            for prompt in self._prompts(request)
            for generation in self._generations(sampled, prompt, 1, "prompt")
        ]
        choices = [LocalChoice(self._loaded, each, stops=request.stops) for each in generations]
        for generation in generations:
            generation.stops = frozenset(request.stop_token_ids or ())
            generation.scored = bool(request.echo) and request.logprobs is not None
            self._batch.submit(generation)
        answers = await while_client_waits(http, whole_answers(choices))
        pairs = zip(choices, answers, strict=True)
        return JSONResponse(
            {
                "id": f"cmpl-{generations[0].seed:x}",
                "object": "text_completion",
                "created": int(time.time()),
                "model": self._name,
                "choices": [
                    {"index": index, **self._completion(request, choice, answer.finish)}
                    for index, (choice, answer) in enumerate(pairs)
                ],
                "usage": usage_of(answers),
            }
        )

    def _completion(self, request: CompletionRequest, choice: LocalChoice, finish: str) -> JsonDict:
        """A choice of ``text_completion``, with the ids and log-probs if they are asked for."""
        reply = choice.text
        generation = choice.generation
        sampled = reply.tokens if request.budget != 0 else []
        text = reply.text if sampled else ""
        ids = [token.id for token in sampled]
        scores: list[TokenScore | None] = [
            TokenScore(logprob=token.logprob, best=token.id, best_logprob=token.logprob) for token in sampled
        ]
        if request.echo:
            text = self._loaded.tokenizer.decode(generation.prompt) + text
        if generation.scored:
            ids = [*generation.prompt, *ids]
            scores = [None, *generation.prompt_scores, *scores]
        choice_body: JsonDict = {"text": text, "finish_reason": finish, "logprobs": None}
        if request.logprobs is not None:
            choice_body["logprobs"] = self._logprobs(ids, scores, top=request.logprobs > 0)
        # vLLM's names, because trainers that sample at vLLM read them.
        if request.return_token_ids:
            choice_body["token_ids"] = reply.ids
            choice_body["prompt_token_ids"] = list(generation.prompt)
        return choice_body

    def _logprobs(self, ids: Sequence[int], scores: Sequence[TokenScore | None], *, top: bool) -> JsonDict:
        """Log-probs in the form of completions. The first token of a prompt has none."""
        spell = self._loaded.tokenizer.decode
        tokens = [spell([token]) for token in ids]
        values: list[float | None] = []
        likeliest: list[dict[str, float] | None] = []
        for token, score in zip(tokens, scores, strict=True):
            values.append(None if score is None else max(score.logprob, LEAST))
            # Only if they are asked for: each takes a decoding.
            if top:
                pair = None if score is None else {spell([score.best]): score.best_logprob, token: score.logprob}
                likeliest.append(pair)
        return {
            "tokens": tokens,
            "token_logprobs": values,
            "top_logprobs": likeliest if top else None,
            "text_offset": [],
        }

    def _check_model(self, name: str) -> None:
        if name not in ("", self._name):
            message = f"there is no model {name!r}, this server has {self._name!r}"
            raise ApiError(message, status=404, code="model_not_found")

    def _prompts(self, request: CompletionRequest) -> list[list[int]]:
        """Token ids of the prompts: one text, the ids of one, or a list of either."""
        prompt = request.prompt
        # A list of ids is one prompt; any other list has a prompt for each of its members.
        several = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
        prompts = cast(list[Any], prompt if several else [prompt])
        if len(prompts) > MOST_CHOICES:
            raise ApiError(f"at most {MOST_CHOICES} prompts a request, got {len(prompts)}", param="prompt")
        return [self._prompt(one) for one in prompts]

    def _prompt(self, prompt: str | list[int]) -> list[int]:
        """Token ids of a prompt; ids are checked against the vocabulary."""
        if isinstance(prompt, str):
            check_length(self._loaded, [prompt], "prompt")
            ids: list[int] = self._loaded.tokenizer.encode(prompt)
        else:
            ids = prompt
        if not ids:
            raise ApiError("the prompt is empty; give at least one token", param="prompt", code="invalid_value")
        vocabulary = self._loaded.model.get_input_embeddings().weight.shape[0]
        # An id beyond the table of embeddings would raise in the model, for all rows of the batch.
        if not all(0 <= token < vocabulary for token in ids):
            raise ApiError(f"token ids must lie between 0 and {vocabulary - 1}", param="prompt", code="invalid_value")
        return ids

    def _generations(self, request: RequestBody, prompt: Sequence[int], count: int, param: str) -> Sequence[Generation]:
        """Plan ``count`` answers to a prompt. Raises ApiError if they do not fit."""
        waiting = self._batch.waiting
        if waiting >= _MOST_WAITING:
            raise ApiError(f"{waiting} answers are waiting; try again later", status=503, code="overloaded")
        try:
            budget = self._batch.room(prompt, request.budget, self._sampling.max_new_tokens)
        except ContextLengthError as error:
            raise ApiError(str(error), param=param, code="context_length_exceeded") from error
        seed = request.seed
        if seed is None:
            seed = child_seed(self._seed, "request", next(self._numbers))
        return [
            Generation(
                prompt=prompt,
                sampling=_sampling(request, self._sampling),
                budget=budget,
                seed=child_seed(seed, index),
            )
            for index in range(count)
        ]


def _sampling(request: RequestBody, default: SamplingConfig) -> SamplingConfig:
    """The settings of a request; what it does not name is the server's. Temperatures near 0 are greedy."""
    temperature = request.temperature
    if temperature is None:
        temperature = 0.0 if default.greedy else default.temperature
    # Greedy rows leave top_k and top_p out, so that they are drawn together.
    if temperature < _SMALLEST_TEMPERATURE:
        return SamplingConfig(greedy=True)
    top_k = default.top_k if request.top_k is None else max(request.top_k, 0)
    top_p = default.top_p if request.top_p is None else request.top_p
    return SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p)


class _Reload(BaseModel):
    method: Literal["reload_weights"]
    kwargs: dict[str, str] = {}


def _reload_route(loaded: LoadedModel, below: Path) -> Handler:
    """``POST /collective_rpc`` with ``{"method": "reload_weights"}``, and ``{"kwargs": {"weights_path": FOLDER}}`` for other files.

    vLLM has this route in development mode. Folders outside ``below`` are refused, links that lead out of it as well.
    """
    # Resolved once: the folder itself may be a link.
    root = below.resolve()

    async def collective_rpc(http: Request) -> Response:
        folder = validated(_Reload, await read_json(http)).kwargs.get("weights_path")
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
    stored: dict[str, torch.Tensor] = {}
    try:
        for file in sorted(Path(folder).glob("*.safetensors")):
            stored |= load_file(file)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"the weights in {folder} could not be read: {error}") from error
    weights = loaded.model.state_dict()
    shapes = {name: value.shape for name, value in weights.items()}
    # Tied weights are stored once, so some of the model's names may be missing.
    misfits = [name for name, value in stored.items() if shapes.get(name) != value.shape]
    if not stored or misfits:
        raise StorageError(
            f"the weights in {folder} do not fit the model that is served: {len(stored)} tensors, unknown or of another shape: {misfits[:3]}"
        )
    with torch.no_grad():
        for name, value in stored.items():
            weights[name].copy_(value)
    torch.clear_autocast_cache()  # it holds casts of the old ones
    return len(stored)
