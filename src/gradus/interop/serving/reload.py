"""Reading a served model's weights again, by the route that vLLM has for it in development mode."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gradus.core import StorageError
from gradus.policies.local.loading import LoadedModel


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
    torch.clear_autocast_cache()  # it holds casts of the old ones
    return len(tensors)


def reload_route(loaded: LoadedModel, below: Path) -> Route:
    """``POST /collective_rpc`` with ``{"method": "reload_weights"}``, and ``{"kwargs": {"weights_path": FOLDER}}`` for other files.

    Folders outside ``below`` are refused, links that lead out of it as well.
    """
    root = below.resolve()

    async def collective_rpc(request: Request) -> Response:
        try:
            body = json.loads(await request.body())
            method, folder = body["method"], (body.get("kwargs") or {}).get("weights_path")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            method, folder = None, None
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return _refused(415, "expected the content type application/json")
        if method != "reload_weights" or not isinstance(folder, str | None):
            return _refused(
                400,
                'expected {"method": "reload_weights"}, with {"kwargs": {"weights_path": FOLDER}} for another folder',
            )
        try:
            if folder is not None and not Path(folder).resolve().is_relative_to(root):
                return _refused(403, f"weights are loaded from below {root} only")
            count = await asyncio.to_thread(reload_weights, loaded, folder)
        except (StorageError, ValueError) as error:
            return _refused(409, str(error))
        return JSONResponse({"results": [count]})

    return Route("/collective_rpc", collective_rpc, methods=["POST"])


def _refused(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, status_code=status)
