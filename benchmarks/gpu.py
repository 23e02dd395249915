"""What a GPU makes of it: agreement of sampler, trainer and plain forward pass, and one GRPO step of Qwen2.5's shapes.

    PYTHONPATH=src python3 benchmarks/gpu.py --out results

All weights are random, so nothing is downloaded. ``--toy`` runs everything at toy size on the CPU. A section that fails is reported in
the table and the rest goes on. The last line is JSON; ``DIR/gpu.json`` holds every figure.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
import transformers
from torch import Tensor

from gradus.policies.local.decoding import Decoder, Prompt
from gradus.policies.local.kv_cache import cache_plan
from gradus.policies.local.loading import LoadedModel, context_length
from gradus.policies.local.sampling import SamplingConfig
from gradus.training.config import GrpoConfig
from gradus.training.data.microbatches import microbatches
from gradus.training.data.sequences import TrainingSample
from gradus.training.engine.forward import score_tokens, vocabulary_size
from gradus.training.engine.optimizers import make_optimizer
from gradus.training.engine.prepare import precision, prepare_model
from gradus.training.engine.tree_support import supports_tree
from gradus.training.engine.update import UpdateOptions, policy_update
from gradus.training.trainer_config import TrainerConfig

# Qwen2.5's shapes: hidden size, layers, heads, key heads, width of the MLP.
QWEN = {"0.5B": (896, 24, 14, 2, 4864), "1.5B": (1536, 28, 12, 2, 8960), "3B": (2048, 36, 16, 2, 11008)}
VOCABULARY = 151_936


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much of everything."""

    prompts: int
    members: int
    prompt: int
    new: int
    runs: int
    device: str
    dtype: torch.dtype


FULL = Size(prompts=8, members=8, prompt=200, new=256, runs=3, device="cuda", dtype=torch.bfloat16)
TOY = Size(prompts=2, members=2, prompt=12, new=6, runs=1, device="cpu", dtype=torch.bfloat16)


# -- models and tokens ---------------------------------------------------------------------------------------------


def architectures() -> dict[str, Any]:
    """Small configs of six families, each with what makes its attention its own."""
    small: dict[str, Any] = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 4096,
        "eos_token_id": 1,
        "max_position_embeddings": 1024,
        "initializer_range": 0.08,
        "pad_token_id": 0,
    }
    head: dict[str, Any] = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16}
    return {
        "qwen2": transformers.Qwen2Config(**small),
        "qwen3": transformers.Qwen3Config(**small, head_dim=32),
        "llama": transformers.LlamaConfig(**small),
        "mistral": transformers.MistralConfig(**small, sliding_window=16),
        "gemma2": transformers.Gemma2Config(**{**small, "initializer_range": 0.02}, **head),
        "gemma3": transformers.Gemma3TextConfig(**small, **head),
        "phi3": transformers.Phi3Config(**small, sliding_window=16),
    }


def build(config: Any, device: str, dtype: torch.dtype, *, seed: int = 0) -> LoadedModel:
    """A model with random weights; no answer ends before its budget, because nothing is a stop token."""
    torch.manual_seed(seed)
    attention = "eager" if config.model_type == "gemma2" else "sdpa"  # its soft cap is in no kernel of torch's
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention).eval()
    renderer = cast(Any, SimpleNamespace(stop_ids=frozenset()))
    place = next(model.parameters()).device
    return LoadedModel(
        model=model,
        tokenizer=None,
        renderer=renderer,
        device=place,
        dtype=dtype,
        path="random",
        context=context_length(model.config),
    )


def qwen(name: str, size: Size) -> Any:
    """A config of one of Qwen2.5's shapes."""
    toy = size is TOY
    hidden, layers, heads, key_heads, width = (64, 2, 4, 2, 128) if toy else QWEN[name]
    return transformers.Qwen2Config(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        intermediate_size=width,
        vocab_size=1000 if toy else VOCABULARY,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )


def prompts_of(size: Size, vocabulary: int) -> list[tuple[int, ...]]:
    """One prompt a group, of unlike lengths around ``size.prompt``."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(size.prompt * 3 // 4, size.prompt * 5 // 4, size.prompts)
    return [tuple(rng.integers(10, vocabulary, length).tolist()) for length in lengths]


def sample(loaded: LoadedModel, size: Size, prompts: Sequence[tuple[int, ...]], seed: int) -> list[TrainingSample]:
    """Let the sampler answer every prompt ``size.members`` times."""
    rows = [(group, prompt) for group, prompt in enumerate(prompts) for _ in range(size.members)]
    sampling = SamplingConfig(max_new_tokens=size.new)
    plan = cache_plan(loaded)
    assert plan is not None
    decoder = Decoder(loaded, sampling, plan, rows=len(rows), stops=loaded.renderer.stop_ids)
    uniforms = np.random.default_rng(seed).random((len(rows), size.new))
    answers = decoder.answer(
        [
            Prompt(row=row, past=0, new=prompt, uniforms=uniforms[row], budget=size.new)
            for row, (_, prompt) in enumerate(rows)
        ]
    )
    return [
        TrainingSample(
            key=(group, 0),
            episode=row,
            ids=torch.tensor([*prompt, *answer.ids]),
            positions=len(prompt) + torch.arange(len(answer.ids)),
            logprobs=torch.tensor(answer.logprobs, dtype=torch.float64),
            turns=torch.zeros(len(answer.ids), dtype=torch.int64),
            offsets=torch.arange(len(answer.ids)),
        )
        for row, ((group, prompt), answer) in enumerate(zip(rows, answers, strict=True))
    ]


# -- agreement -----------------------------------------------------------------------------------------------------


@torch.no_grad()
def trainer_logprobs(loaded: LoadedModel, sequences: Sequence[TrainingSample]) -> list[Tensor]:
    """What the trainer computes, sequence by sequence."""
    share = supports_tree(loaded.model)
    result: dict[int, Tensor] = {}
    with precision(loaded, TrainerConfig()):
        batches = microbatches(sequences, budget=4096, share=share, vocabulary=vocabulary_size(loaded.model))
        for batch in batches:
            scores = score_tokens(loaded.model, batch.to(loaded.device), SamplingConfig()).logprobs.float().cpu()
            for row, index in enumerate(batch.sequences):
                result[index] = scores[batch.labels.row == row]
    return [result[index] for index in range(len(sequences))]


@torch.no_grad()
def plain_logprobs(loaded: LoadedModel, sequences: Sequence[TrainingSample]) -> list[Tensor]:
    """The definition: one row at a time through transformers' own forward pass."""
    result: list[Tensor] = []
    for one in sequences:
        ids = one.ids[None].to(loaded.device)
        logits = loaded.model(input_ids=ids, use_cache=False).logits[0, one.positions - 1].float()
        chosen = ids[0, one.positions]
        result.append(logits.log_softmax(-1).gather(1, chosen[:, None])[:, 0].cpu())
    return result


def gap(left: Sequence[Tensor], right: Sequence[Tensor]) -> dict[str, float]:
    """Absolute differences of log-probs, nats."""
    difference = (torch.cat(list(left)) - torch.cat(list(right))).abs().double()
    return {
        "mean": float(difference.mean()),
        "p99": float(difference.quantile(0.99)),
        "max": float(difference.max()),
    }


def agreement(config: Any, size: Size, dtype: torch.dtype) -> dict[str, Any]:
    """Sampler against trainer against plain forward pass, for one architecture in one dtype."""
    loaded = build(config, size.device, dtype)
    few = Size(**{**vars(size), "prompts": 4, "members": 4, "prompt": 40, "new": min(48, 4 * size.new)})
    sequences = sample(loaded, few, prompts_of(few, config.vocab_size), seed=1)
    sampled = [one.logprobs.float() for one in sequences]
    trained, plain = trainer_logprobs(loaded, sequences), plain_logprobs(loaded, sequences)
    return {
        "shares_prefixes": supports_tree(loaded.model),
        "sampler_trainer": gap(sampled, trained),
        "trainer_plain": gap(trained, plain),
        "sampler_plain": gap(sampled, plain),
    }


# -- one step ------------------------------------------------------------------------------------------------------


def synchronize(device: str) -> None:
    """Wait until the device has done what it was given."""
    if device != "cpu":
        torch.cuda.synchronize()


@contextmanager
def measured(device: str, seconds: dict[str, float], memory: dict[str, float], name: str) -> Iterator[None]:
    """Seconds and peak memory in GiB of a phase; no memory on a CPU."""
    synchronize(device)
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    yield
    synchronize(device)
    seconds[name] = time.perf_counter() - started
    if device != "cpu":
        memory[name] = torch.cuda.max_memory_allocated() / 2**30


def our_step(name: str, size: Size) -> dict[str, Any]:
    """Sample, train and update, ``size.runs`` times after one that is not counted; medians."""
    config = qwen(name, size)
    settings = GrpoConfig(
        groups=size.prompts,
        group_size=size.members,
        max_turns=1,
        max_logp_diff=10.0,
        lr=1e-6,
        device=size.device,
        sampling=SamplingConfig(max_new_tokens=size.new),
    )
    loaded = prepare_model(build(config, size.device, size.dtype), settings)
    optimizer = make_optimizer(loaded.model, settings)
    prompts = prompts_of(size, config.vocab_size)
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for run in range(size.runs + 1):
        seconds: dict[str, float] = {}
        memory: dict[str, float] = {}
        with measured(size.device, seconds, memory, "sample"):
            sequences = sample(loaded, size, prompts, seed=run)
        samples = [replace(one, advantages=torch.full((one.actions,), rng.standard_normal())) for one in sequences]
        with measured(size.device, seconds, memory, "train"):
            result = policy_update(loaded, optimizer, samples, settings, 1e-6, options=UpdateOptions(key=(run,)))
        row: dict[str, Any] = {
            "sample_seconds": seconds["sample"],
            "train_seconds": seconds["train"],
            "step_seconds": seconds["sample"] + seconds["train"],
            "logp_diff_max": result.logp_diff_max,
            **{f"{phase}_peak_gib": value for phase, value in memory.items()},
        }
        rows.append(row)
    return medians(rows[1:])


def medians(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Column by column."""
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


# -- the run -------------------------------------------------------------------------------------------------------


def section(rows: dict[str, dict[str, Any]], name: str, work: Callable[[], dict[str, Any]]) -> None:
    """Runs one section and keeps its figures or its error."""
    try:
        rows[name] = work()
    except Exception as error:
        rows[name] = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    print(f"{name:24} {summary(rows[name])}", flush=True)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def summary(row: Mapping[str, Any]) -> str:
    """One section on one line."""
    if "error" in row:
        return f"ERROR {row['error'][:160]}"
    if "sampler_trainer" in row:
        pairs = ("sampler_trainer", "trainer_plain", "sampler_plain")
        return "  ".join(
            f"{pair} " + "/".join(f"{row[pair][key]:.1e}" for key in ("mean", "p99", "max")) for pair in pairs
        )
    return "  ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
    )


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints, and returns the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="folder for results")
    parser.add_argument("--toy", action="store_true", help="toy size on the CPU, to see that it works")
    options = parser.parse_args(arguments)
    size = TOY if options.toy or not torch.cuda.is_available() else FULL
    device = torch.cuda.get_device_name() if size is FULL else "cpu"
    print(f"{device}, torch {torch.__version__}, transformers {transformers.__version__}", flush=True)
    print("agreement is mean/p99/max in nats")
    rows: dict[str, dict[str, Any]] = {}
    for name in QWEN if size is FULL else ("0.5B",):
        section(rows, f"step {name}", partial(our_step, name, size))
    for dtype in (torch.bfloat16, torch.float32):
        precision_name = str(dtype).removeprefix("torch.")
        for name, config in architectures().items():
            section(rows, f"agree {name} {precision_name}", partial(agreement, config, size, dtype))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "gpu.json").write_text(json.dumps(rows, indent=1))
    line = {**last_line(rows), "runs": size.runs, "device": device}
    print(json.dumps(line))
    return line


def last_line(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The line for machines: seconds of a step of each shape, and the sections that failed."""
    steps = {name: row["step_seconds"] for name, row in rows.items() if "step_seconds" in row}
    return {"name": "gpu", "seconds": steps, "errors": [name for name, row in rows.items() if "error" in row]}


if __name__ == "__main__":
    main()
