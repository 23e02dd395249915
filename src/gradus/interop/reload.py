"""Reading a served model's weights again from its folder, by the route that vLLM has for it in development mode."""

from __future__ import annotations

import asyncio
from pathlib import Path

import torch
from safetensors.torch import load_file
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gradus.core import StorageError
from gradus.policies.loading import LoadedModel

__all__ = ["reload_route", "reload_weights"]


def reload_weights(loaded: LoadedModel) -> int:
    """Copy the weights in ``loaded.path`` into the model, in place; returns how many tensors. Nothing changes on an error.

    Do it between steps: a request under way would go on with keys and values of the old weights.
    """
    found: dict[str, torch.Tensor] = {}
    for file in sorted(Path(loaded.path).glob("*.safetensors")):
        found |= load_file(file)
    own = loaded.model.state_dict()
    strange = sorted(set(found) - set(own))
    misshapen = [name for name in found if name in own and found[name].shape != own[name].shape]
    # Tied weights are stored once, so some of the model's names may be missing; at least the body must be there.
    if not found or strange or misshapen:
        raise StorageError(
            f"the weights in {loaded.path} do not fit the model that is served: "
            f"{len(found)} tensors, unknown {strange[:3]}, of another shape {misshapen[:3]}"
        )
    with torch.no_grad():
        for name, value in found.items():
            own[name].copy_(value)
    return len(found)


def reload_route(loaded: LoadedModel) -> Route:
    """``POST /collective_rpc`` with ``{"method": "reload_weights"}``."""

    async def collective_rpc(request: Request) -> Response:
        body = await request.json()
        if body.get("method") != "reload_weights":
            return JSONResponse({"error": {"message": "the only method is reload_weights"}}, status_code=400)
        try:
            count = await asyncio.to_thread(reload_weights, loaded)
        except StorageError as error:
            return JSONResponse({"error": {"message": str(error)}}, status_code=409)
        return JSONResponse({"results": [count]})

    return Route("/collective_rpc", collective_rpc, methods=["POST"])
