"""What a GRPO run will need, said before it starts: memory, time and money, from shapes alone. No weights are loaded.

The memory forecast adds up what is alive at the two peaks of a step, sampling and the backward pass; each term is a count of
numbers that follows from the model's shape, and the comments say what they are. Time divides the arithmetic by what this
machine was measured to do, times the share of it that such work reaches.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradus.core import ConfigError
from gradus.planning.hardware import Hardware
from gradus.policies.local.loading import context_length
from gradus.training.config import GrpoConfig

__all__ = [
    "Lengths",
    "ModelShape",
    "Plan",
    "as_rows",
    "check_fits",
    "fit_to_memory",
    "make_plan",
    "memory_forecast",
    "read_shape",
]

_ROWS = 256  # episodes that a rollout runs at once
_FIRST_CAPACITY = 256  # positions that a cache begins with; it doubles
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_KEPT = 0.65  # share of a training pass's memory that the C library does not give back before the next step; measured
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder's shape. ``parameters`` are all; ``matrices`` those of the layers' matrix products, ``adapters`` LoRA's per rank."""

    name: str
    parameters: int
    matrices: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    context: int | None
    adapter_width: int  # sum over adapted matrices of inputs plus outputs: times the rank gives LoRA's parameters

    @property
    def kv(self) -> int:
        """Numbers of a layer's keys, for one token."""
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Tokens of one turn: what is read (the first turn's includes the system prompt) and what is sampled, at most."""

    prompt: int
    answer: int
    turns: int = 1

    @property
    def whole(self) -> int:
        """The longest sequence."""
        return self.turns * (self.prompt + self.answer)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A forecast. ``memory`` is in bytes by what holds it, above what an idle process with torch takes; ``peak`` their sum at
    the worse moment. ``seconds`` are of one step by phase; ``cost`` is in US dollars, None without a price."""

    model: ModelShape
    hardware: Hardware
    memory: Mapping[str, float]
    peak: float
    moment: str
    seconds: Mapping[str, float]
    steps: int
    cost: float | None

    @property
    def fits(self) -> bool:
        """Whether the peak stays below what the device has."""
        return self.peak <= self.hardware.memory

    @property
    def hours(self) -> float:
        """Of all steps."""
        return self.steps * sum(self.seconds.values()) / 3600


def read_shape(
    path_or_name: str | Path, *, targets: str | tuple[str, ...] = "all-linear", online: bool = True
) -> ModelShape:
    """The shape of a model from its config; its weights are neither read nor downloaded. Raises ConfigError.

    ``online``: a config that is not on this disk may be asked for by its name on the hub.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(_base(path_or_name), local_files_only=not online)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"the config of {path_or_name} cannot be read: {str(error).splitlines()[0]}") from error
    text = config.get_text_config()
    heads = getattr(text, "num_attention_heads", None) or 0  # Mamba has none
    kept = {name: getattr(text, name, None) for name in ("num_key_value_heads", "head_dim", "intermediate_size")}
    linear = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and "lm_head" not in name
    }
    adapted = [
        module for name, module in linear.items() if targets == "all-linear" or name.rpartition(".")[2] in targets
    ]
    return ModelShape(
        name=str(path_or_name),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        matrices=sum(module.weight.numel() for module in linear.values()),
        hidden=text.hidden_size,
        layers=text.num_hidden_layers,
        heads=heads,
        kv_heads=kept["num_key_value_heads"] or heads,
        head_dim=kept["head_dim"] or (text.hidden_size // heads if heads else 0),
        intermediate=kept["intermediate_size"] or 4 * text.hidden_size,
        vocabulary=text.vocab_size,
        context=context_length(config),
        adapter_width=sum(module.in_features + module.out_features for module in adapted),
    )


def _base(path_or_name: str | Path) -> str | Path:
    """The model that adapters belong to, where a folder holds adapters alone."""
    file = Path(path_or_name) / "adapter_config.json"
    if not file.is_file() or (file.parent / "config.json").is_file():
        return path_or_name
    return json.loads(file.read_text(encoding="utf-8")).get("base_model_name_or_path") or path_or_name


def make_plan(shape: ModelShape, config: GrpoConfig, lengths: Lengths, hardware: Hardware) -> Plan:
    """The forecast for a run. Raises ConfigError where the sequence is longer than the model's context."""
    if shape.context is not None and lengths.whole > shape.context:
        raise ConfigError(
            f"a sequence of {lengths.turns} turns has up to {lengths.whole} tokens, but the context of {shape.name} holds "
            f"{shape.context}; lower sampling.max_new_tokens, shorten the prompts, or use a model with a longer context"
        )
    memory, moment = memory_forecast(shape, config, lengths, hardware)
    seconds = _time_forecast(shape, config, lengths, hardware)
    hours = config.max_steps * sum(seconds.values()) / 3600
    cost = None if hardware.price is None else hours * hardware.price
    return Plan(
        model=shape,
        hardware=hardware,
        memory=memory,
        peak=sum(memory.values()),
        moment=moment,
        seconds=seconds,
        steps=config.max_steps,
        cost=cost,
    )


def memory_forecast(
    shape: ModelShape, config: GrpoConfig, lengths: Lengths, hardware: Hardware
) -> tuple[dict[str, float], str]:
    """Bytes by what holds them at the worse of the two moments of a step, and which it is."""
    number = _number(config, hardware)
    trained = _trained(shape, config)
    held: dict[str, float] = {
        "weights": float(shape.parameters * number) + (trained * number if config.lora else 0.0),
        "gradients": float(trained * number),
        "optimizer": 2.0 * trained * number,
    }
    if config.kl_coef:
        held["reference"] = float(shape.parameters * number)
    training = {
        "activations": _activations(shape, config, lengths, hardware),
        "logits": _logits(shape, config, lengths),
    }
    sampling = {"cache": _cache(shape, config, lengths, number), "sampling": _sampling(shape, config, lengths, number)}
    if hardware.kind == "cpu":
        sampling["kept by the allocator"] = _KEPT * sum(training.values())
    moments = {"sampling": sampling, "training": training}
    worst = max(moments, key=lambda name: sum(moments[name].values()))
    return {**held, **moments[worst]}, worst


def check_fits(plan: Plan, config: GrpoConfig) -> None:
    """Raises ConfigError that names the setting to change, with a value that fits if one does."""
    if plan.fits:
        return
    need = f"{plan.peak / GIB:.1f} GiB where {plan.hardware.name} has {plan.hardware.memory / GIB:.1f}"
    raise ConfigError(f"this run would need {need}, at its peak while {plan.moment}; {_way_out(plan, config)}")


def fit_to_memory(
    shape: ModelShape, config: GrpoConfig, lengths: Lengths, hardware: Hardware
) -> tuple[Plan, GrpoConfig, list[str]]:
    """Change one setting after another until the forecast fits: the plan, its settings, and the changes as ``--set`` takes them.

    Cheapest first: what costs only time comes before adapters, which change what is trained. If nothing is enough, the plan is that of
    the last attempt, and :func:`check_fits` refuses it.
    """
    attempts: list[dict[str, Any]] = [{"gradient_checkpointing": True}]
    attempts += [{"token_budget": budget} for budget in (8192, 4096, 2048, 1024, 512) if budget < config.token_budget]
    attempts += [{"batch_size": rows} for rows in (64, 32, 16, 8) if rows < _rows(config)]
    attempts += [{"lora": {"rank": 16, "alpha": 32}, "lr": 1e-5}] if config.lora is None else []
    attempts += [{"dtype": "bfloat16"}] if hardware.kind != "cpu" else []
    changed: dict[str, Any] = {}
    fitted, plan = config, make_plan(shape, config, lengths, hardware)
    for attempt in attempts:
        if plan.fits:
            break
        wanted = {**config.model_dump(exclude_unset=True), **changed, **attempt}
        other = GrpoConfig.model_validate(wanted)
        smaller = make_plan(shape, other, lengths, hardware)
        if smaller.peak < plan.peak:
            fitted, plan, changed = other, smaller, {**changed, **attempt}
    return plan, fitted, [f"grpo.{key}={_toml(value)}" for key, value in changed.items()]


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}={each}" for key, each in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _way_out(plan: Plan, config: GrpoConfig) -> str:
    """The setting that helps most."""
    passing = {name: plan.memory[name] for name in ("activations", "logits") if name in plan.memory}
    room = plan.hardware.memory - (plan.peak - sum(passing.values()))
    held = sum(plan.memory.get(name, 0.0) for name in ("weights", "gradients", "optimizer", "reference"))
    if held > plan.hardware.memory:
        if config.lora is None:
            return "set lora, which needs no gradients and no optimizer memory for the weights"
        return "choose a smaller model, or a dtype of 16 bits"
    if plan.moment == "sampling":
        return f"lower groups or group_size (now {config.groups} x {config.group_size} rows are sampled at once)"
    budget = int(config.token_budget * room / sum(passing.values())) // 256 * 256
    if budget >= 256:
        return f"set token_budget to {budget} (now {config.token_budget})"
    return "set lora" if config.gradient_checkpointing and config.lora is None else "set gradient_checkpointing"


def _number(config: GrpoConfig, hardware: Hardware) -> int:
    """Bytes of one weight."""
    if config.autocast:
        return 4
    dtype = config.dtype if config.dtype != "auto" else ("float32" if hardware.kind == "cpu" else "bfloat16")
    return _BYTES.get(dtype, 4)


def _trained(shape: ModelShape, config: GrpoConfig) -> int:
    return shape.parameters if config.lora is None else shape.adapter_width * config.lora.rank


def _rows(config: GrpoConfig) -> int:
    return min(config.batch_size or _ROWS, config.groups * config.group_size, _ROWS)


def _cache(shape: ModelShape, config: GrpoConfig, lengths: Lengths, number: int) -> float:
    """Keys and values of all rows; the capacity doubles, and while it does one layer exists twice."""
    rows = min(config.groups * config.group_size, _ROWS)
    capacity = min(_FIRST_CAPACITY, shape.context or _FIRST_CAPACITY)
    while capacity < lengths.whole:
        capacity *= 2
    return float(2 * rows * capacity * shape.kv * shape.layers * number)


def _sampling(shape: ModelShape, config: GrpoConfig, lengths: Lengths, number: int) -> float:
    """The larger of reading prompts (a layer's temporaries) and of drawing (logits in float32, three copies in float64)."""
    rows = _rows(config)
    read = min(config.groups, rows) * lengths.prompt * (3 * shape.intermediate + 4 * shape.hidden) * number
    drawn = rows * shape.vocabulary * (8 + 24)
    return float(max(read, drawn))


def _tokens(config: GrpoConfig, lengths: Lengths) -> tuple[float, float]:
    """Tokens of a training microbatch, and the share of them that was sampled."""
    read = lengths.prompt + (lengths.turns - 1) * config.group_size * lengths.prompt
    sampled = config.group_size * lengths.turns * lengths.answer
    step = config.groups * (read + sampled)
    longest = lengths.whole  # a sequence is never cut
    return float(max(min(config.token_budget, step), longest)), sampled / (read + sampled)


def _activations(shape: ModelShape, config: GrpoConfig, lengths: Lengths, hardware: Hardware) -> float:
    """What the backward pass keeps of each layer: for both norms their input, the normalized and the scaled output (6 hidden);
    rotated queries, the attention's output and the output projection's input (3 hidden), keys and values of the token and
    once more behind each suffix (4 kv); gate, its activation, up, and their product (4 intermediate). Checkpointing keeps each
    layer's input and one layer in full."""
    tokens, sampled = _tokens(config, lengths)
    width = 2 if config.autocast else _number(config, hardware)
    copied = 2 * shape.kv * (1 + lengths.prompt / max(lengths.answer, 1) * sampled)
    layer = (9 * shape.hidden + 2 * shape.kv + copied + 4 * shape.intermediate) * tokens * width
    adapters = 0.0
    if config.lora is not None:
        adapters = 2 * 7 * config.lora.rank * tokens * width
    kept = shape.layers * (layer + adapters)
    if config.gradient_checkpointing:
        # one layer at a time is recomputed; the C library holds on to about two more (measured)
        recomputed = (layer + adapters) * (3 if hardware.kind == "cpu" else 1)
        kept = shape.layers * shape.hidden * tokens * width + recomputed
    backward = (2 * shape.intermediate + 2 * shape.hidden) * tokens * width
    return float(kept + backward)


def _logits(shape: ModelShape, config: GrpoConfig, lengths: Lengths) -> float:
    """Logits, their log-softmax, its exponential and product in the entropy, and the gradient, of sampled tokens."""
    tokens, sampled = _tokens(config, lengths)
    return float(5 * 4 * tokens * sampled * shape.vocabulary)


def _time_forecast(shape: ModelShape, config: GrpoConfig, lengths: Lengths, hardware: Hardware) -> dict[str, float]:
    """Seconds of one step."""
    rows = config.groups * config.group_size
    batches = math.ceil(rows / _rows(config))
    number = _number(config, hardware)
    tokens = config.groups * lengths.prompt * lengths.turns
    answers = rows * lengths.turns * lengths.answer
    read = 2.0 * shape.matrices * tokens / hardware.reached
    each = 2.0 * (shape.matrices + shape.hidden * shape.vocabulary) * _rows(config) / hardware.reached
    # A token of a batch waits for arithmetic, or for the weights and the cache to come from memory, and for the calls.
    moved = (shape.parameters * number + _cache(shape, config, lengths, number)) / hardware.bandwidth
    rollout = read + batches * lengths.turns * lengths.answer * (max(each, moved) + shape.layers * hardware.overhead)
    backward = 4.0 if config.lora is None else 2.0
    again = 2.0 if config.gradient_checkpointing else 0.0
    work = (2.0 + backward + again) * (shape.matrices * (tokens + answers) + shape.hidden * shape.vocabulary * answers)
    passes = config.epochs * max(1.0, (tokens + answers) / config.token_budget)
    train = config.epochs * work / hardware.reached + 20 * passes * shape.layers * hardware.overhead
    update = 6.0 * 4 * _trained(shape, config) / hardware.bandwidth
    return {"rollout": rollout, "train": train, "update": update * config.epochs * config.minibatches}


def as_rows(plan: Plan) -> list[tuple[str, str]]:
    """The forecast as lines for a person."""
    rows = [(f"memory: {name}", f"{value / GIB:.2f} GiB") for name, value in plan.memory.items()]
    rows.append((f"peak, while {plan.moment}", f"{plan.peak / GIB:.2f} of {plan.hardware.memory / GIB:.1f} GiB"))
    rows += [(f"a step: {name}", f"{value:.1f} s") for name, value in plan.seconds.items()]
    rows.append((f"{plan.steps} steps", f"{plan.hours:.2f} h"))
    rows.append(("cost", "no price given" if plan.cost is None else f"${plan.cost:.2f}"))
    return rows
