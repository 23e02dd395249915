"""Reading a served model's weights again, by the route that vLLM has for it in development mode."""

from __future__ import annotations

import asyncio
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gradus.core import StorageError
from gradus.interop.serving.endpoint import Handler, read_json
from gradus.interop.serving.requests import ApiError
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
    # Tied weights are stored once, so some of the model's names may be missing.
    strange = [name for name, value in tensors.items() if name not in own or own[name].shape != value.shape]
    if not tensors or strange:
        raise StorageError(
            f"the weights in {source} do not fit the model that is served: {len(tensors)} tensors, unknown or of another shape: {strange[:3]}"
        )
    with torch.no_grad():
        for name, value in tensors.items():
            own[name].copy_(value)
    torch.clear_autocast_cache()  # it holds casts of the old ones
    return len(tensors)


def reload_route(loaded: LoadedModel, below: Path) -> Handler:
    """``POST /collective_rpc`` with ``{"method": "reload_weights"}``, and ``{"kwargs": {"weights_path": FOLDER}}`` for other files.

    Folders outside ``below`` are refused, links that lead out of it as well.
    """
    root = below.resolve()

    async def collective_rpc(request: Request) -> Response:
        body = await read_json(request)
        try:
            method, folder = body["method"], (body.get("kwargs") or {}).get("weights_path")
        except (KeyError, TypeError, AttributeError):
            method, folder = None, None
        if method != "reload_weights" or not isinstance(folder, str | None):
            raise ApiError(
                'expected {"method": "reload_weights"}, with {"kwargs": {"weights_path": FOLDER}} for another folder'
            )
        try:
            if folder is not None and not Path(folder).resolve().is_relative_to(root):
                raise ApiError(f"weights are loaded from below {root} only", status=403)
            count = await asyncio.to_thread(reload_weights, loaded, folder)
        except (StorageError, ValueError) as error:
            raise ApiError(str(error), status=409) from error
        return JSONResponse({"results": [count]})

    return collective_rpc
