"""What a GPU makes of it: agreement of sampler, trainer and plain forward pass, and one GRPO step of Qwen2.5's shapes.

    PYTHONPATH=src python3 benchmarks/gpu.py --out results

All weights are random, so nothing is downloaded. The other side of a step is TRL where it is installed, else plain transformers:
``generate`` on all rows and padded rows in training. ``--toy`` runs everything at toy size on the CPU. A section that fails is
reported in the table and the rest goes on. The last line is JSON; ``DIR/gpu.json`` holds every figure, ``DIR/profile-*.txt`` where
time goes.
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
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
import transformers
from _flops import matmul_peak, training_flops
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


def qwen(name: str, *, toy: bool) -> Any:
    """A config of one of Qwen2.5's shapes."""
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


def agreement(name: str, config: Any, size: Size, dtype: torch.dtype) -> dict[str, Any]:
    """Sampler against trainer against plain forward pass, for one architecture in one dtype."""
    loaded = build(config, size.device, dtype)
    few = Size(**{**vars(size), "prompts": 4, "members": 4, "prompt": 40, "new": min(48, 4 * size.new)})
    sequences = sample(loaded, few, prompts_of(few, config.vocab_size), seed=1)
    sampled = [one.logprobs.float() for one in sequences]
    trained, plain = trainer_logprobs(loaded, sequences), plain_logprobs(loaded, sequences)
    return {
        "architecture": name,
        "dtype": str(dtype).removeprefix("torch."),
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


def our_step(name: str, size: Size, *, toy: bool, out: Path) -> dict[str, Any]:
    """Sample, train and update, ``size.runs`` times after one that is not counted; medians."""
    config = qwen(name, toy=toy)
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
    samples: list[TrainingSample] = []
    for run in range(size.runs + 1):
        seconds: dict[str, float] = {}
        memory: dict[str, float] = {}
        with measured(size.device, seconds, memory, "sample"):
            sequences = sample(loaded, size, prompts, seed=run)
        samples = [replace(one, advantages=torch.full((one.actions,), rng.standard_normal())) for one in sequences]
        with measured(size.device, seconds, memory, "train"):
            result = policy_update(loaded, optimizer, samples, settings, 1e-6, options=UpdateOptions(key=(run,)))
        passes = microbatches(samples, budget=settings.token_budget, share=supports_tree(loaded.model))
        tokens = sum(one.actions for one in sequences)
        peak = matmul_peak(size.device, size.dtype)
        row: dict[str, Any] = {
            "sample_seconds": seconds["sample"],
            "train_seconds": seconds["train"],
            "step_seconds": seconds["sample"] + seconds["train"],
            "optimizer_seconds": result.seconds["update"],
            "sampled_tokens_per_second": tokens / seconds["sample"],
            "trained_tokens_per_second": sum(batch.tokens for batch in passes) / seconds["train"],
            "mfu": training_flops(loaded.model, passes) / (peak * result.seconds["train"]),
            "logp_diff_max": result.logp_diff_max,
            **{f"{phase}_peak_gib": value for phase, value in memory.items()},
        }
        rows.append(row)
    profile(out / f"profile-{name}.txt", size, lambda: policy_update(loaded, optimizer, samples, settings, 1e-6))
    few = Size(**{**vars(size), "new": min(size.new, 24)})
    profile(out / f"profile-{name}-sample.txt", size, lambda: sample(loaded, few, prompts, seed=0))
    return medians(rows[1:])


def profile(path: Path, size: Size, work: Callable[[], Any]) -> None:
    """Write down which kernels a piece of work spends its time in."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if size.device != "cpu":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as record:
        work()
        synchronize(size.device)
    key = "self_cpu_time_total" if size.device == "cpu" else "self_device_time_total"
    path.write_text(record.key_averages().table(sort_by=key, row_limit=25, max_name_column_width=80))


def medians(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Column by column."""
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def plain_step(name: str, size: Size, *, toy: bool) -> dict[str, Any]:
    """The same step by transformers alone: ``generate``, then rows of eight through the model with all their logits."""
    config = qwen(name, toy=toy)
    model = build(config, size.device, size.dtype).model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    prompts = prompts_of(size, config.vocab_size)
    longest = max(map(len, prompts))
    rows = [prompt for prompt in prompts for _ in range(size.members)]
    ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows], device=size.device)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=size.device)
    results: list[dict[str, Any]] = []
    for _ in range(size.runs + 1):
        seconds: dict[str, float] = {}
        memory: dict[str, float] = {}
        with measured(size.device, seconds, memory, "sample"), torch.no_grad():
            model.eval()
            done = model.generate(
                ids,
                attention_mask=mask,
                do_sample=True,
                top_k=0,
                max_new_tokens=size.new,
                min_new_tokens=size.new,
                pad_token_id=0,
                eos_token_id=None,
            )
        with measured(size.device, seconds, memory, "train"):
            _plain_update(model, optimizer, done, mask, longest, size)
        tokens = len(rows) * size.new
        results.append(
            {
                "sample_seconds": seconds["sample"],
                "train_seconds": seconds["train"],
                "step_seconds": seconds["sample"] + seconds["train"],
                "sampled_tokens_per_second": tokens / seconds["sample"],
                **{f"{phase}_peak_gib": value for phase, value in memory.items()},
            }
        )
    return {**medians(results[1:]), "other": "transformers"}


def _plain_update(
    model: Any, optimizer: torch.optim.Optimizer, ids: Tensor, mask: Tensor, start: int, size: Size
) -> None:
    seen = torch.cat([mask, mask.new_ones(len(ids), ids.shape[1] - start)], dim=1)
    positions = (seen.cumsum(1) - 1).clamp(min=0)
    for first in range(0, len(ids), 8):
        rows = slice(first, first + 8)
        logits = model(
            input_ids=ids[rows],
            attention_mask=seen[rows],
            position_ids=positions[rows],
            use_cache=False,
            logits_to_keep=size.new + 1,
        ).logits[:, :-1]
        chosen = ids[rows, start:]
        logprobs = logits.float().log_softmax(-1).gather(-1, chosen[..., None])[..., 0]
        advantages = torch.linspace(-1, 1, len(chosen), device=ids.device)[:, None]
        (-((logprobs - logprobs.detach()).exp() * advantages).sum() / (len(ids) * size.new)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def trl_step(
    config: Any, size: Size, out: Path, *, rows: int = 8, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Any]:
    """The same step by TRL's GRPOTrainer, ``rows`` a pass, with vLLM in the same process where that is installed."""
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    words = {f"w{number}": number for number in range(config.vocab_size)}
    core = Tokenizer(models.WordLevel(words, unk_token="w0"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=core, eos_token="w1", pad_token="w2")
    texts = [" ".join(f"w{token}" for token in prompt) for prompt in prompts_of(size, config.vocab_size)]
    settings = GRPOConfig(
        output_dir=str(out / "trl"),
        per_device_train_batch_size=min(rows, size.prompts * size.members),
        gradient_accumulation_steps=max(1, size.prompts * size.members // rows),
        num_generations=size.members,
        max_completion_length=size.new,
        max_steps=size.runs + 1,
        learning_rate=1e-6,
        beta=0.0,
        bf16=size.device != "cpu",
        use_cpu=size.device == "cpu",
        use_vllm=find_spec("vllm") is not None and size.device != "cpu",
        gradient_checkpointing=False,
        report_to=[],
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
    )
    watch = StepClock(size.device, clock)
    trainer = GRPOTrainer(
        model=build(config, size.device, torch.float32).model,
        reward_funcs=lambda completions, **_: [float(len(set(one.split()))) for one in completions],
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": text} for text in texts * (size.runs + 1)]),
        processing_class=tokenizer,
        callbacks=[watch],
    )
    trainer.train()
    return {"step_seconds": statistics.median(watch.seconds[1:]), "other": "trl"}


class StepClock(transformers.TrainerCallback):
    """Seconds of each optimizer step, generation included."""

    def __init__(self, device: str, clock: Callable[[], float]) -> None:
        self.device, self.clock, self.seconds, self._began = device, clock, list[float](), 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        synchronize(self.device)
        self._began = self.clock()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        synchronize(self.device)
        self.seconds.append(self.clock() - self._began)


def other_step(name: str, size: Size, *, toy: bool, out: Path, other: str) -> dict[str, Any]:
    """TRL where it is installed, else transformers alone."""
    if other == "trl" or (other == "auto" and find_spec("trl")):
        return trl_step(qwen(name, toy=toy), size, out)
    return plain_step(name, size, toy=toy)


# -- the run -------------------------------------------------------------------------------------------------------


class Report:
    """What came of every section; errors included."""

    def __init__(self, out: Path, minutes: float, device: str) -> None:
        self.out, self.ends, self.device = out, time.perf_counter() + 60 * minutes, device
        self.rows: dict[str, dict[str, Any]] = {}

    def section(self, name: str, work: Callable[[], dict[str, Any]]) -> None:
        """Run one section; keep its figures or its error, on the screen and in the file."""
        if time.perf_counter() > self.ends:
            self.rows[name] = {"error": "left out: the time limit (--minutes) was reached"}
        else:
            started = time.perf_counter()
            try:
                self.rows[name] = work()
            except Exception as error:
                self.rows[name] = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
            self.rows[name]["section_seconds"] = time.perf_counter() - started
        print(f"{name:24} {summary(self.rows[name])}", flush=True)
        (self.out / "gpu.json").write_text(json.dumps(self.rows, indent=1))
        gc.collect()
        if self.device != "cpu":
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


def device_name(device: str) -> str:
    """As the driver calls it."""
    return torch.cuda.get_device_name() if device != "cpu" else "cpu"


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, and return the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="folder for results")
    parser.add_argument("--minutes", type=float, default=8.0, help="no section begins after this")
    parser.add_argument("--toy", action="store_true", help="toy size on the CPU, to see that it works")
    parser.add_argument("--shapes", nargs="*", default=list(QWEN), choices=list(QWEN), help="which of Qwen2.5's shapes")
    parser.add_argument("--other", choices=("auto", "trl", "transformers", "none"), default="auto", help="other side")
    options = parser.parse_args(arguments)
    size = TOY if options.toy or not torch.cuda.is_available() else FULL
    toy = size is TOY
    options.out.mkdir(parents=True, exist_ok=True)
    report = Report(options.out, options.minutes, size.device)
    print(f"{device_name(size.device)}, torch {torch.__version__}, transformers {transformers.__version__}", flush=True)
    peak = matmul_peak(size.device, size.dtype)
    print(
        f"{'matmul peak':24} {peak / 1e12:.3g} TFLOP/s in {size.dtype}; agreement is mean/p99/max in nats", flush=True
    )
    for name in options.shapes[: 1 if toy else None]:
        report.section(f"step {name} gradus", lambda name=name: our_step(name, size, toy=toy, out=options.out))
        if options.other != "none":
            settings: dict[str, Any] = {"toy": toy, "out": options.out, "other": options.other}
            report.section(
                f"step {name} other", lambda name=name, settings=settings: other_step(name, size, **settings)
            )
    for dtype in (torch.bfloat16, torch.float32):
        for name, config in architectures().items():
            report.section(
                f"agree {name} {str(dtype).removeprefix('torch.')}",
                lambda name=name, config=config, dtype=dtype: agreement(name, config, size, dtype),
            )
    line = last_line(report.rows, size, peak)
    print(json.dumps(line))
    return line


def last_line(rows: Mapping[str, Mapping[str, Any]], size: Size, peak: float) -> dict[str, Any]:
    """The line for machines: the largest shape that both sides finished."""
    done = [name.split()[1] for name, row in rows.items() if name.endswith("gradus") and "error" not in row]
    both = [name for name in done if "error" not in rows.get(f"step {name} other", {"error": ""})]
    name = (both or done or [None])[-1]
    ours = rows[f"step {name} gradus"]["step_seconds"] if name else None
    theirs = rows[f"step {name} other"] if both else {}
    other = theirs.get("step_seconds")
    return {
        "name": f"gpu_step_{name}",
        "ratio": round(other / ours, 3) if other and ours else None,
        "ours": ours,
        "other": other,
        "other_name": theirs.get("other"),
        "unit": "seconds a step",
        "runs": size.runs,
        "device": device_name(size.device),
        "matmul_tflops": round(peak / 1e12, 3),
        "errors": [name for name, row in rows.items() if "error" in row],
    }


if __name__ == "__main__":
    main()
