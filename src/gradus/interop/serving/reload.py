"""Reading a served model's weights again, by the route that vLLM has for it in development mode."""

from __future__ import annotations

import asyncio
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gradus.core import StorageError
from gradus.policies.local.loading import LoadedModel

__all__ = ["reload_route", "reload_weights"]


def reload_weights(loaded: LoadedModel, folder: str | None = None) -> int:
    """Copy the weights in ``folder`` (``loaded.path`` if None) into the model, in place; returns how many tensors.

    Nothing changes on an error, a StorageError. Do it between steps: a request under way would go on with keys and values of
    the old weights.
    """
    source = folder or loaded.path
    tensors: dict[str, torch.Tensor] = {}
    try:
        for file in sorted(Path(source).glob("*.safetensors")):
            tensors |= load_file(file)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"the weights in {source} could not be read: {error}") from error
    own = loaded.model.state_dict()
    strange = sorted(set(tensors) - set(own))
    misshapen = [name for name in tensors if name in own and tensors[name].shape != own[name].shape]
    # Tied weights are stored once, so some of the model's names may be missing; at least the body must be there.
    if not tensors or strange or misshapen:
        raise StorageError(
            f"the weights in {source} do not fit the model that is served: "
            f"{len(tensors)} tensors, unknown {strange[:3]}, of another shape {misshapen[:3]}"
        )
    with torch.no_grad():
        for name, value in tensors.items():
            own[name].copy_(value)
    return len(tensors)


def reload_route(loaded: LoadedModel) -> Route:
    """``POST /collective_rpc`` with ``{"method": "reload_weights"}``, and ``{"kwargs": {"weights_path": FOLDER}}`` for other files."""

    async def collective_rpc(request: Request) -> Response:
        try:
            body = await request.json()
            method, folder = body["method"], (body.get("kwargs") or {}).get("weights_path")
        except (ValueError, KeyError, TypeError, AttributeError):
            method, folder = None, None
        if method != "reload_weights" or not isinstance(folder, str | None):
            message = (
                'expected {"method": "reload_weights"}, with {"kwargs": {"weights_path": FOLDER}} for another folder'
            )
            return JSONResponse({"error": {"message": message}}, status_code=400)
        try:
            count = await asyncio.to_thread(reload_weights, loaded, folder)
        except StorageError as error:
            return JSONResponse({"error": {"message": str(error)}}, status_code=409)
        return JSONResponse({"results": [count]})

    return Route("/collective_rpc", collective_rpc, methods=["POST"])
