"""Requests and results on the wire: JSON or protobuf in, JSON or protobuf out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from google.protobuf.message import DecodeError
from starlette.responses import JSONResponse, Response
from torch import Tensor

from gradus.core.frozen_record import frozen_record
from gradus.core.values import Json
from gradus.interop.serving.requests import ApiError
from gradus.interop.tinker.sdk import messages, parse_forward

PROTOBUF = "application/x-protobuf"
_MOST_NUMBERS = 2**24  # in one tensor: a sparse one says its shape in a few bytes
_NO_LOGPROB = -99999.0  # in an empty cell of likeliest tokens
_TOKENS_ONLY = "this server reads tokens only; leave out images and other chunks"


@frozen_record
class TokenDatum:
    """One sequence to be scored."""

    # (T,) that are read.
    ids: list[int]
    # What the loss takes, (T,) or (T, K) each.
    inputs: Mapping[str, Tensor]


@frozen_record
class ForwardRequest:
    """One call of forward or forward_backward."""

    model_id: str
    seq_id: int | None
    data: Sequence[TokenDatum]
    loss: str
    settings: Mapping[str, float]
    backward: bool


@frozen_record
class ForwardResult:
    """Figures of each datum, shaped as its target tokens, and sums over the call."""

    outputs: Sequence[Mapping[str, Tensor]]
    metrics: Mapping[str, float]


@frozen_record
class SampledTokens:
    """One sampled sequence."""

    ids: list[int]
    logprobs: list[float]
    # stop or length
    stop: str


@frozen_record
class SampleResult:
    """What sampling gives; figures of the prompt's T tokens if they were asked for."""

    sequences: Sequence[SampledTokens]
    # (T,), NaN at the first.
    prompt_logprobs: Tensor | None = None
    # (T, K) ids of the likeliest tokens and their log-probs.
    likeliest: tuple[Tensor, Tensor] | None = None


# -- requests ---------------------------------------------------------------------------------------------------------


def forward_request(body: bytes, content_type: str, *, forward_only: bool) -> ForwardRequest:
    """Reads a batch. ``forward_only``: of the JSON route of that name, which protobuf says in a field. Raises ApiError."""
    if content_type.startswith(PROTOBUF):
        return _from_protobuf(body)
    field = "forward_input" if forward_only else "forward_backward_input"
    request = parse_forward(body, field)
    content = getattr(request, field)
    return ForwardRequest(
        model_id=request.model_id,
        seq_id=request.seq_id,
        data=[_json_datum(datum) for datum in content.data],
        loss=content.loss_fn,
        settings=_numbers(content.loss_fn_config or {}),
        backward=not forward_only,
    )


def token_ids(model_input: Any) -> list[int]:
    """The ids of a model input. Raises ApiError for images and sounds."""
    if any(chunk.type != "encoded_text" for chunk in model_input.chunks):
        raise ApiError(_TOKENS_ONLY)
    return [token for chunk in model_input.chunks for token in chunk.tokens]


def _json_datum(datum: Any) -> TokenDatum:
    inputs: dict[str, Tensor] = {}
    for name, value in datum.loss_fn_inputs.items():
        try:
            data = np.asarray(value.data, dtype=value.dtype)
        except OverflowError as error:
            raise ApiError(f"{name} is no tensor of {value.dtype}: {error}") from None
        inputs[name] = _tensor(name, data, value.shape, value.sparse_crow_indices, value.sparse_col_indices)
    return TokenDatum(ids=token_ids(datum.model_input), inputs=inputs)


def _from_protobuf(body: bytes) -> ForwardRequest:
    message = messages().ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise ApiError(f"the body is no protobuf message of a batch: {error}") from None
    settings: dict[str, Any] = dict(message.loss_fn_config)
    for name, value in getattr(message, "loss_fn_config_v2", {}).items():
        settings[name] = value.text if value.WhichOneof("value") == "text" else value.number
    return ForwardRequest(
        model_id=message.model_id,
        seq_id=message.seq_id or None,
        data=[_protobuf_datum(datum) for datum in message.data],
        loss=message.loss_fn,
        settings=_numbers(settings),
        backward=not message.forward_only,
    )


def _protobuf_datum(datum: Any) -> TokenDatum:
    if any(not chunk.HasField("encoded_text") for chunk in datum.model_input):
        raise ApiError(_TOKENS_ONLY)
    text = b"".join(chunk.encoded_text.tokens for chunk in datum.model_input)
    inputs: dict[str, Tensor] = {}
    for name, tensor in datum.loss_fn_inputs.items():
        kind = np.float32 if tensor.dtype == messages().DType.Value("DTYPE_FLOAT32") else np.int64
        sparse = tensor.sparse_csr
        data = _array(name, tensor.dense or sparse.values, kind)
        rows = _array(name, sparse.crow_indices, np.int64)
        columns = _array(name, sparse.col_indices, np.int64)
        # protobuf has empty fields where JSON has none.
        shape = list(tensor.shape) or None
        inputs[name] = _tensor(name, data, shape, rows if len(rows) else None, columns)
    return TokenDatum(ids=_array("model_input", text, np.int32).tolist(), inputs=inputs)


def _array(name: str, data: bytes, dtype: Any) -> Any:
    try:
        return np.frombuffer(data, dtype=dtype).copy()
    except ValueError as error:
        raise ApiError(f"{name} is cut off: {error}") from None


def _tensor(name: str, data: Any, shape: list[int] | None, rows: Any, columns: Any) -> Tensor:
    """A dense tensor of data, or of the values, row pointers and columns of a sparse one. Raises ApiError if they do not fit."""
    shape = [len(data)] if shape is None else shape
    if min(shape, default=0) < 0 or math.prod(shape) > _MOST_NUMBERS:
        raise ApiError(f"{name} has the shape {shape}; this server takes {_MOST_NUMBERS} numbers at most")
    try:
        if rows is None:
            dense = data.reshape(shape)
        else:
            dense = np.zeros(shape, dtype=data.dtype)
            row_of_value = np.repeat(np.arange(shape[0]), np.diff(rows))
            # Unsigned: a negative column is then beyond the shape, and would else count from its end.
            dense[row_of_value, np.array(columns).astype(np.uint64)] = data
    except (ValueError, IndexError, OverflowError) as error:
        raise ApiError(f"{name} does not fit its shape {shape}: {error}") from None
    if not np.isfinite(dense).all():
        raise ApiError(f"{name} holds numbers that are not finite")
    return torch.from_numpy(dense)


def _numbers(settings: Mapping[str, Any]) -> Mapping[str, float]:
    # Later versions of the SDK send texts as well.
    wrong = [name for name, value in settings.items() if isinstance(value, str) or not math.isfinite(value)]
    if wrong:
        raise ApiError(f"loss_fn_config: {', '.join(wrong)} must be a finite number")
    return settings


# -- results ----------------------------------------------------------------------------------------------------------


def reply(result: ForwardResult | SampleResult | Json, accept: str) -> Response:
    """The response with a result: protobuf for scores and samples, as all versions of the SDK from 0.24 on take it, JSON for the rest."""
    if not isinstance(result, ForwardResult | SampleResult):
        return JSONResponse(result)
    if PROTOBUF not in accept:
        raise ApiError(f"scores and samples come as {PROTOBUF}; accept it, or use tinker 0.24 or later", status=406)
    message = _forward_message(result) if isinstance(result, ForwardResult) else _sample_message(result)
    return Response(message.SerializeToString(deterministic=True), media_type=PROTOBUF)


def _forward_message(result: ForwardResult) -> Any:
    """A record for each datum, since their shapes differ."""
    proto = messages()
    message = proto.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", metrics=dict(result.metrics))
    for figures in result.outputs:
        record = message.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=1)
        for name, values in figures.items():
            field = record.fields[name]
            field.data = _bytes(values)
            field.offsets = np.array([0, len(field.data)], dtype=np.int64).tobytes()
            field.dtype = proto.DType.Value("DTYPE_FLOAT32")
            field.trailing_shape.extend(values.shape[1:])
    return message


def _sample_message(result: SampleResult) -> Any:
    proto = messages()
    message = proto.SampleResponse()
    for one in result.sequences:
        stop = proto.StopReason.Value(f"STOP_REASON_{one.stop.upper()}")
        tokens = torch.tensor(one.ids).int()
        logprobs = torch.tensor(one.logprobs)
        message.sequences.add(stop_reason=stop, tokens=_bytes(tokens), logprobs=_bytes(logprobs))
    if result.prompt_logprobs is not None:
        message.prompt_logprobs = _bytes(result.prompt_logprobs)
    if result.likeliest is not None:
        ids, logprobs = result.likeliest
        table = message.topk_prompt_logprobs
        table.token_ids = _bytes(ids.int())
        table.logprobs = _bytes(logprobs.nan_to_num(_NO_LOGPROB))
        table.k = ids.shape[1]
        # Versions of the SDK name the number of rows differently.
        rows = "length" if "length" in table.DESCRIPTOR.fields_by_name else "prompt_length"
        setattr(table, rows, len(ids))
    return message


def _bytes(values: Tensor) -> bytes:
    return values.contiguous().numpy().tobytes()
