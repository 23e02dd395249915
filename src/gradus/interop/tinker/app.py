"""``gradus serve MODEL --train``: the routes of the Tinker API."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gradus.core.values import Json
from gradus.interop.servers import Guard
from gradus.interop.serving.endpoint import read_json
from gradus.interop.serving.requests import ApiError
from gradus.interop.tinker.jobs import failure
from gradus.interop.tinker.sdk import check_sdk, parse
from gradus.interop.tinker.service import TrainingService
from gradus.interop.tinker.wire import forward_request, reply

_LARGEST_BODY = 64 * 2**20
_LONGEST_WAIT = 20.0  # seconds until a client has to ask for its result again; it gives up after 45
_ROOT = "/api/v1/"
_Act = Callable[[str, Request], Awaitable[Response]]


def training_app(
    service: TrainingService, *, keys: Collection[str] = (), hosts: Collection[str] | None = None
) -> Starlette:
    """A starlette app of the API.

    ``keys``: those that clients may have, none for any. Each has sessions and checkpoints of its own. ``hosts``: names that Host and Origin
    may have, None for any. Raises ConfigError if the package tinker is missing.
    """
    check_sdk()

    @contextlib.asynccontextmanager
    async def running(_: Starlette) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await asyncio.to_thread(service.jobs.close)

    return Starlette(
        routes=[
            *(Route(_ROOT + path, _guarded(act, keys), methods=["POST"]) for path, act in _posts(service).items()),
            *(Route(_ROOT + path, _guarded(act, keys)) for path, act in _gets(service).items()),
            Route("/{path:path}", _guarded(_unserved, keys), methods=["GET", "POST", "PUT", "PATCH", "DELETE"]),
        ],
        lifespan=running,
        middleware=[Middleware(Guard, hosts=hosts, largest_body=_LARGEST_BODY)],
    )


def _posts(service: TrainingService) -> dict[str, _Act]:
    """What is posted. Most requests are a type of the SDK and a method of the service."""
    typed: dict[str, tuple[str, Callable[[str, Any], Json]]] = {
        "create_session": ("CreateSessionRequest", service.create_session),
        "session_heartbeat": ("SessionHeartbeatRequest", service.heartbeat),
        "create_sampling_session": ("CreateSamplingSessionRequest", service.create_sampling_session),
        "create_model": ("CreateModelRequest", service.create_model),
        "get_info": ("GetInfoRequest", service.get_info),
        "unload_model": ("UnloadModelRequest", service.unload_model),
        "optim_step": ("OptimStepRequest", service.optim_step),
        "save_weights": ("SaveWeightsRequest", service.save_weights),
        "save_weights_for_sampler": ("SaveWeightsForSamplerRequest", service.save_weights_for_sampler),
        "load_weights": ("LoadWeightsRequest", service.load_weights),
        "asample": ("SampleRequest", service.sample),
    }

    async def retrieve(owner: str, http: Request) -> Response:
        request = parse("FutureRetrieveRequest", await http.body())
        try:
            result = await service.jobs.result(request.request_id, owner, _LONGEST_WAIT)
        except ApiError:
            raise
        except Exception as error:
            return JSONResponse(failure(error))
        if result is None:
            pending = {"type": "try_again", "request_id": request.request_id, "queue_state": "active"}
            return JSONResponse(pending, status_code=408)
        return reply(result, http.headers.get("accept", ""))

    async def weights_info(owner: str, http: Request) -> Response:
        return JSONResponse(service.weights_info(owner, str((await read_json(http)).get("tinker_path"))))

    posts = {path: _typed(kind, act) for path, (kind, act) in typed.items()}
    return {
        **posts,
        "forward": _forward(service, forward_only=True),
        "forward_backward": _forward(service, forward_only=False),
        "retrieve_future": retrieve,
        "weights_info": weights_info,
        # All flags of the SDK as they are without a server's word, but keys are not exchanged for tokens.
        "client/config": _constant({"pjwt_auth_enabled": False}),
        "telemetry": _constant({"status": "accepted"}),
    }


def _gets(service: TrainingService) -> dict[str, _Act]:
    async def checkpoints(owner: str, http: Request) -> Response:
        return JSONResponse(service.checkpoints(owner, http.path_params.get("model")))

    async def sampler(owner: str, http: Request) -> Response:
        return JSONResponse(service.sampler(owner, http.path_params["sampler"]))

    return {
        "healthz": _constant({"status": "ok"}),
        "get_server_capabilities": _constant(service.capabilities()),
        "checkpoints": checkpoints,
        "training_runs/{model}/checkpoints": checkpoints,
        "samplers/{sampler}": sampler,
    }


def _typed(kind: str, act: Callable[[str, Any], Json]) -> _Act:
    async def handle(owner: str, http: Request) -> Response:
        return JSONResponse(act(owner, parse(kind, await http.body())))

    return handle


def _forward(service: TrainingService, *, forward_only: bool) -> _Act:
    async def handle(owner: str, http: Request) -> Response:
        if http.headers.get("content-encoding", "identity") != "identity":
            raise ApiError("this server takes no compressed bodies", status=415)
        body = await http.body()
        kind = http.headers.get("content-type", "")
        # A large batch takes long to read, and other clients wait for the event loop.
        request = await asyncio.to_thread(forward_request, body, kind, forward_only=forward_only)
        return JSONResponse(service.forward(owner, request))

    return handle


def _constant(body: Json) -> _Act:
    async def handle(owner: str, http: Request) -> Response:
        return JSONResponse(body)

    return handle


async def _unserved(owner: str, http: Request) -> Response:
    raise ApiError(f"this server has no {http.method} {http.url.path[:80]}; it trains, samples and saves", status=404)


def _guarded(act: _Act, keys: Collection[str]) -> Callable[[Request], Awaitable[Response]]:
    """A route that asks for a key first, and whose errors are one sentence in JSON."""

    async def answer(http: Request) -> Response:
        try:
            return await act(_owner(http, keys), http)
        except Exception as error:
            refusal = error if isinstance(error, ApiError) else ApiError(failure(error)["error"], status=500)
            return JSONResponse(refusal.body(), status_code=refusal.status)

    return answer


def _owner(http: Request, keys: Collection[str]) -> str:
    """The digest of a client's key, which its sessions and checkpoints carry. Raises ApiError, 401, for a key that nobody has."""
    bearer = http.headers.get("authorization", "").removeprefix("Bearer ")
    key = (http.headers.get("x-api-key") or bearer).encode()
    # All are compared, each in constant time, so that a wrong key tells nothing about the right ones.
    fits = [hmac.compare_digest(key, one.encode()) for one in keys]
    if keys and not any(fits):
        raise ApiError("this server wants its key; set TINKER_API_KEY to what GRADUS_SERVE_KEY holds there", status=401)
    return hashlib.sha256(key).hexdigest()[:16]
