"""What clients set of adapters, optimizer and sampling: read, and refused where this server would not heed it."""

from __future__ import annotations

import math
from typing import Any

from gradus.interop.serving.requests import ApiError
from gradus.interop.tinker.adapters import AdapterShape
from gradus.interop.tinker.engine import AdapterEngine, SampleOrder
from gradus.interop.tinker.losses import check_ids
from gradus.interop.tinker.wire import token_ids
from gradus.policies.local.sampling import SamplingConfig

_LARGEST_RANK = 256
_MOST_SAMPLES = 1024
_MOST_LIKELIEST = 128
_MOST_STOPS = 64
_UNSERVED = (
    "topk_sample_logprobs",
    "target_prompt_logprobs",
    "prompt_alt_tokens_k",
    "prompt_logprobs_last_n",
    "record_stability_info",
)


def adapter_shape(request: Any) -> AdapterShape:
    """Reads the adapter that a model is to be. Raises ApiError for other optimizers, and for ranks that no adapter has."""
    kind = getattr(getattr(request, "optimizer_config", None), "type", "adamw")
    config = request.lora_config
    if config is None or kind != "adamw" or not 1 <= config.rank <= _LARGEST_RANK:
        raise ApiError(f"this server trains LoRA adapters of rank 1 to {_LARGEST_RANK} with the optimizer adamw")
    return AdapterShape(**config.model_dump(exclude={"seed"}))


def adam_settings(request: Any) -> tuple[dict[str, Any], float]:
    """Reads a step's settings as torch names them, and the bound on the gradient's norm. Raises ApiError if Adam cannot take them."""
    # The SDK renamed the field.
    params = request.optim_params if hasattr(request, "optim_params") else request.adam_params
    if not hasattr(params, "beta2"):
        raise ApiError("this server has the optimizer adamw; send adam_params")
    betas = (params.beta1, params.beta2)
    others = (params.learning_rate, params.eps, params.weight_decay, params.grad_clip_norm)
    are_betas = all(0 <= beta < 1 for beta in betas)
    # Also false for what is not a number.
    are_finite = all(0 <= value < math.inf for value in others)
    if not are_betas or not are_finite:
        raise ApiError("adam_params: betas are from 0 to below 1, the other numbers finite and not below 0")
    settings = {"lr": params.learning_rate, "betas": betas, "eps": params.eps, "weight_decay": params.weight_decay}
    return settings, params.grad_clip_norm


def sample_order(request: Any, engine: AdapterEngine, seed: int) -> SampleOrder:
    """Reads what is to be sampled; ``seed`` if the client gives none. Raises ApiError for what model or server cannot do."""
    idle = [name for name in _UNSERVED if getattr(request, name, None)]
    if idle:
        raise ApiError(f"this server has no {', '.join(idle)}; leave it out, or set a loss_fn that does not need it")
    prompt = token_ids(request.prompt)
    params = request.sampling_params
    scored = bool(request.prompt_logprobs or request.topk_prompt_logprobs)
    context = engine.loaded.context or len(prompt) + 2**16  # a model without a limit answers at most so long
    budget = params.max_tokens or context - len(prompt)
    # The first token of a prompt has no log-prob, so one that is scored needs a second.
    if len(prompt) < 1 + scored or budget < 1 or len(prompt) + budget > context:
        raise ApiError(f"a prompt of {len(prompt)} tokens and max_tokens {budget} do not fit 1 to {context} tokens")
    check_ids(prompt, engine.vocabulary)
    likeliest = request.topk_prompt_logprobs
    if not 1 <= request.num_samples <= _MOST_SAMPLES or not 0 <= likeliest <= _MOST_LIKELIEST:
        raise ApiError(f"num_samples is 1 to {_MOST_SAMPLES}, topk_prompt_logprobs 0 to {_MOST_LIKELIEST}")
    stops = [params.stop] if isinstance(params.stop, str) else params.stop
    usual = engine.loaded.renderer.stop_ids
    # Every text holds the empty one.
    if stops is not None and (len(stops) > _MOST_STOPS or "" in stops):
        raise ApiError(f"stop takes up to {_MOST_STOPS} token ids or texts, none of them empty")
    return SampleOrder(
        prompt=prompt,
        count=request.num_samples,
        budget=budget,
        sampling=_sampling(params),
        stops=usual if stops is None else frozenset(stop for stop in stops if isinstance(stop, int)),
        stop_texts=[stop for stop in stops or () if isinstance(stop, str)],
        seed=seed if params.seed is None else params.seed,
        prompt_logprobs=scored,
        likeliest=min(likeliest, engine.vocabulary),
    )


def _sampling(params: Any) -> SamplingConfig:
    """How tokens are drawn; a temperature of 0 takes the likeliest."""
    if params.temperature == 0:
        return SamplingConfig(greedy=True)
    try:
        return SamplingConfig(temperature=params.temperature, top_k=max(0, params.top_k), top_p=params.top_p)
    except ValueError:
        raise ApiError("sampling_params: temperature is 0 or more, top_p above 0 and at most 1") from None
