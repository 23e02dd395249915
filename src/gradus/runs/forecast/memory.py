"""Forecasts the memory of a GRPO run at the two peaks of a step, sampling and the backward pass, and fits settings to a device.

It follows from shapes alone: no weights are loaded.

Each term is a count of numbers that follows from the model's shape, and the comments say what they are. `benchmarks/plan_memory.py` holds
the sums against the peaks of real processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradus.core import ConfigError
from gradus.core.frozen_record import frozen_record
from gradus.core.values import Json, JsonDict, is_table
from gradus.policies.local.cpu.support import autocasts
from gradus.policies.local.sampling import MANY_WORDS
from gradus.rollouts import MAX_CONCURRENT
from gradus.runs.shapes import GIB, Hardware, Lengths, ModelShape
from gradus.training.config import GrpoConfig
from gradus.training.engine.vocabulary_loss import MAX_LOGITS
from gradus.training.trainer_config import TrainerConfig

_FIRST_CAPACITY = 256  # positions that a cache begins with
_MASK_ENTRIES = 2**26  # of the attention of one forward, at most
_FOUR_BITS = 0.53  # bytes of a weight in NF4, with its share of the scales
_SORTED = 48  # bytes for each logit of a piece that is sorted
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_KEPT = 0.65  # share of a training pass's memory that the C library does not give back before the next step; measured


@frozen_record
class MemoryPlan:
    """A forecast of the bytes at the worse of two moments of a step."""

    model: ModelShape
    lengths: Lengths
    hardware: Hardware
    memory: Mapping[str, float]  # bytes by what holds them, above what an idle process with torch takes
    moment: str  # sampling or training

    @property
    def peak(self) -> float:
        """The sum of the memory, in bytes."""
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        """The peak stays below the memory of the device."""
        return self.peak <= self.hardware.memory


def memory_forecast(shape: ModelShape, config: GrpoConfig, lengths: Lengths, hardware: Hardware) -> MemoryPlan:
    """Returns the forecast for a run."""
    held = {"weights": _weights(shape, config, hardware), **_trained_state(shape, config, hardware)}
    gradients = held.pop("gradients")  # of the training moment alone
    # With adapters it is the model itself, with the adapters that it began with.
    if config.kl_coef and config.lora is None:
        held["reference"] = float(shape.parameters * weight_bytes(config, hardware))
    training = {
        "gradients": gradients,
        "activations": _activations(shape, config, lengths, hardware),
        "logits": _logits(shape, config, lengths, hardware),
    }
    number, rows = weight_bytes(config, hardware), rows_at_once(config)
    if config.sampler != "local":  # a server samples for training; this process for validation alone
        rows = min(config.batch_size or MAX_CONCURRENT, config.held_out, MAX_CONCURRENT)
    sampling = {
        "cache": cache_bytes(shape, lengths, number, rows),
        "sampling": _sampling(shape, config, lengths, number, rows),
    }
    if hardware.kind == "cpu":
        sampling["kept by the allocator"] = _KEPT * training["activations"]
    moments = {"sampling": sampling, "training": training}
    worst = max(moments, key=lambda name: sum(moments[name].values()))
    return MemoryPlan(model=shape, lengths=lengths, hardware=hardware, memory={**held, **moments[worst]}, moment=worst)


def weight_bytes(config: GrpoConfig, hardware: Hardware) -> int:
    """Bytes of one weight."""
    automatic = "float32" if hardware.kind == "cpu" else "bfloat16"
    return _BYTES.get(automatic if config.weights_dtype == "auto" else config.weights_dtype, 4)


def trained_parameters(shape: ModelShape, config: TrainerConfig) -> int:
    """Number of weights that are trained: all, or those of the adapters."""
    return shape.parameters if config.lora is None else shape.adapter_width * config.lora.rank


def _weights(shape: ModelShape, config: GrpoConfig, hardware: Hardware) -> float:
    """The model's weights, and adapters in float32 besides."""
    adapters = 4.0 * trained_parameters(shape, config) if config.lora else 0.0
    quantized = shape.matrices if config.quantize else 0
    others = shape.parameters - quantized
    return others * weight_bytes(config, hardware) + quantized * _FOUR_BITS + adapters


def _trained_state(shape: ModelShape, config: GrpoConfig, hardware: Hardware) -> dict[str, float]:
    """Gradients, masters and moments, in float32: weights of 16 bits have masters of 32, adapters need none."""
    trained = float(trained_parameters(shape, config))
    inside = min(trained, shape.matrices)  # of muon, which takes AdamW for embeddings and norms
    moments = {"adamw": 8.0 * trained, "adamw_8bit": 2.0 * trained, "muon": 4.0 * inside + 8.0 * (trained - inside)}
    rounded = config.lora is None and weight_bytes(config, hardware) == 2
    state = {"gradients": 4.0 * trained, "optimizer": moments[config.optimizer]}
    return {**state, "masters": 4.0 * trained} if rounded else state


def rows_at_once(config: GrpoConfig) -> int:
    return min(config.batch_size or MAX_CONCURRENT, config.groups * config.group_size, MAX_CONCURRENT)


def cache_bytes(shape: ModelShape, lengths: Lengths, number: int, rows: int) -> float:
    """Keys and values of so many rows; after several turns up to a quarter is empty, and while it grows one layer exists twice."""
    capacity = max(_FIRST_CAPACITY, lengths.whole * (1.0 if lengths.turns == 1 else 1.1))
    capacity = min(capacity, shape.context or capacity)
    return 2.0 * rows * capacity * shape.kv * (shape.layers + 0.5) * number


def _sampling(shape: ModelShape, config: GrpoConfig, lengths: Lengths, number: int, rows: int) -> float:
    """The larger of reading prompts (a layer's temporaries and the mask) and of drawing (logits, the softmax, and sums of it)."""
    prompts = min(config.groups, rows)
    read = prompts * lengths.prompt * (3 * shape.intermediate + 4 * shape.hidden) * number
    mask = min(prompts * lengths.prompt**2, _MASK_ENTRIES) * number
    drawn = rows * shape.vocabulary * (4 + number + (4 if shape.vocabulary >= MANY_WORDS else 24))
    return float(max(read + mask, drawn))


def step_tokens(config: GrpoConfig, lengths: Lengths) -> tuple[int, int]:
    """Tokens of a step that are read, and that are sampled: a group shares its first prompt, no other."""
    read = lengths.shared + config.group_size * (lengths.turns * lengths.prompt - lengths.shared)
    sampled = config.group_size * lengths.turns * lengths.answer
    return config.groups * read, config.groups * sampled


def _tokens(config: GrpoConfig, lengths: Lengths) -> tuple[float, float]:
    """Tokens of a training microbatch, and the share of them that was sampled."""
    read, sampled = step_tokens(config, lengths)
    step = read + sampled
    microbatch = max(min(config.token_budget, step), lengths.whole)  # a sequence is never cut
    return float(microbatch), sampled / step


def _activations(shape: ModelShape, config: GrpoConfig, lengths: Lengths, hardware: Hardware) -> float:
    """Bytes that the backward pass keeps of each layer: for both norms their input, the normalized and the scaled output (6 hidden);
    rotated queries, the attention's output and the output projection's input (3 hidden), keys and values of the token and
    once more behind each suffix (4 kv); gate, its activation, up, and their product (4 intermediate). Checkpointing keeps each
    layer's input and one layer in full."""
    tokens, sampled = _tokens(config, lengths)
    narrow = config.autocast and (hardware.kind == "cuda" or autocasts(config.autocast, hardware.kind))
    width = 2 if narrow else weight_bytes(config, hardware)
    copied = 2 * shape.kv * (1 + lengths.prompt / max(lengths.answer, 1) * sampled)
    layer = 9 * shape.hidden + 2 * shape.kv + copied + 4 * shape.intermediate  # numbers of one token
    if config.lora is not None:
        layer += 2 * 7 * config.lora.rank  # of seven matrices
    kept = shape.layers * layer
    if config.gradient_checkpointing:
        # One layer at a time is recomputed; the C library holds on to about two more (measured).
        kept = shape.layers * shape.hidden + layer * (3 if hardware.kind == "cpu" else 1)
    backward = 2 * shape.intermediate + 2 * shape.hidden
    return float((kept + backward) * tokens * width)


def _logits(shape: ModelShape, config: GrpoConfig, lengths: Lengths, hardware: Hardware) -> float:
    """Logits, their log-softmax, its exponential and product in the entropy, and the gradient, of sampled tokens.

    Of a plain softmax on a CPU (unless the model caps or scales its logits) and of many logits a tile exists at a time, and the gradient of the embeddings once more than kept;
    of many logits top-k, top-p, a grammar and a bonus for entropy take larger pieces, which are sorted, and such a model takes pieces too.
    """
    tokens, sampled = _tokens(config, lengths)
    entries = tokens * sampled * shape.vocabulary
    sampling = config.sampling
    sorted_pieces = sampling.top_k or sampling.top_p < 1.0 or sampling.masks or config.entropy_coef
    whole = sorted_pieces or shape.finishes_logits or hardware.kind != "cpu"
    if whole and entries <= MAX_LOGITS:
        return float(5 * 4 * entries)
    again = 0.0 if config.lora else 4.0 * shape.hidden * shape.vocabulary
    if sorted_pieces:
        return again + _SORTED * MAX_LOGITS
    return again + (5 * 4 * MAX_LOGITS if shape.finishes_logits else 0.0)


_ADAPTERS = {"rank": 16, "alpha": 32}


def check_fits(plan: MemoryPlan, config: GrpoConfig) -> None:
    """Raises ConfigError if a plan does not fit; it names settings that do, if there are any."""
    if plan.fits:
        return
    fitted, changes = fit_to_memory(plan.model, config, plan.lengths, plan.hardware)
    way = "lower sampling.max_new_tokens, shorten the prompts, or choose a smaller model"
    if fitted.fits:
        way = f"set {' and '.join(as_set('grpo', changes))}"
    need = f"{plan.peak / GIB:.1f} GiB where {plan.hardware.name} has {plan.hardware.memory / GIB:.1f}"
    raise ConfigError(f"this run would need {need}, at its peak while {plan.moment}; {way}")


def fit_to_memory(
    shape: ModelShape, config: GrpoConfig, lengths: Lengths, hardware: Hardware
) -> tuple[MemoryPlan, JsonDict]:
    """Change one setting after another until the forecast fits: the plan, and the changes by key.

    Cheapest first: what costs only time comes before adapters, which change what is trained. If nothing is enough, the plan is that of
    the last attempt, and :func:`check_fits` refuses it.
    """
    budgets, rows = (8192, 4096, 2048, 1024, 512, 256), (64, 32, 16, 8, 4, 2, 1)
    attempts: list[JsonDict] = [{"gradient_checkpointing": True}]
    attempts += [{"token_budget": budget} for budget in budgets if budget < config.token_budget]
    attempts += [{"batch_size": size} for size in rows if size < rows_at_once(config)]
    if config.lora is None:
        attempts.append({"lora": _ADAPTERS, "lr": 1e-5})
    if hardware.kind != "cpu":
        attempts += [{"dtype": "bfloat16"}, {"quantize": "4bit"}]
    changes: JsonDict = {}
    plan = memory_forecast(shape, config, lengths, hardware)
    for attempt in attempts:
        if plan.fits:
            break
        settings = {**config.model_dump(exclude_unset=True), **changes, **attempt}
        if "quantize" in attempt and not settings.get("lora"):  # weights of four bits are not trained themselves
            continue
        other = GrpoConfig.model_validate(settings)
        smaller = memory_forecast(shape, other, lengths, hardware)
        # A setting that does not help at the peak costs time for nothing.
        if smaller.peak < plan.peak:
            plan, changes = smaller, changes | attempt
    return plan, {key: value for key, value in changes.items() if value != getattr(config, key)}


def as_set(section: str, changes: Json) -> list[str]:
    """Returns changes of a section as ``--set`` takes them."""
    return [f"{section}.{key}={_toml(value)}" for key, value in changes.items()]


def _toml(value: Any) -> str:
    if is_table(value):
        return "{" + ",".join(f"{key}={entry}" for key, entry in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)
