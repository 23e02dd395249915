"""What decoding costs beside the matrix products that it cannot do without.

64 rows with prompts of 160 tokens answer with at most 32 each (2.3 million parameters, float32). The products are those of all linear layers
and of attention, of the same rows, keys and shapes as in that decoding, and nothing else; both are taken in turn. The prompts' own pass
is left out of both.

    python benchmarks/decoding_cost.py [--runs 9] [--threads 2]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gradus.core import Vocabulary
from gradus.policies.local.decoding import Answer, Decoder, Prompt
from gradus.policies.local.loading import LoadedModel, evaluating, load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.nano.model import NanoConfig, make_nano

ROWS, PROMPT, NEW, VOCABULARY = 64, 160, 32, 512
SHAPE = NanoConfig(hidden_size=192, layers=4, heads=6, intermediate_size=768, context=1024)


def prompts() -> list[Prompt]:
    """Different from their first token on, so that none is read for another."""
    chance = np.random.default_rng(0)
    ids = chance.integers(10, VOCABULARY // 2, (ROWS, PROMPT)).tolist()
    return [
        Prompt(row=row, past=0, new=tuple(ids[row]), uniforms=chance.random(NEW), budget=NEW) for row in range(ROWS)
    ]


def decode(decoder: Any, asked: list[Prompt]) -> tuple[float, list[Answer]]:
    """Seconds behind the prompts' pass, and the answers."""
    prompt_of = {prompt.row: prompt for prompt in asked}
    with evaluating(decoder._loaded):
        rows, logits = decoder._prefill(prompt_of)
        began = time.perf_counter()
        answers = decoder._decode(prompt_of, rows, logits)
        return time.perf_counter() - began, list(answers.values())


@torch.inference_mode()
def products(loaded: LoadedModel, rows: list[int]) -> float:
    """Seconds of the products alone; ``rows``: how many take part in each forward pass."""
    model: Any = loaded.model
    config, layers = model.config, model.model.layers
    heads, shared, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    keys = torch.randn(ROWS * shared, PROMPT + NEW, size)
    hidden, wide = torch.randn(ROWS, config.hidden_size), torch.randn(ROWS, config.intermediate_size)
    query, weights = torch.randn(ROWS * shared, heads // shared, size), torch.rand(ROWS * shared, heads // shared, 999)
    began = time.perf_counter()
    for step, count in enumerate(rows):
        past, some = PROMPT + step + 1, count * shared
        for layer in layers:
            for linear in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
                linear(hidden[:count])
            torch.bmm(query[:some], keys[:some, :past].mT)
            torch.bmm(weights[:some, :, :past], keys[:some, :past])
            layer.self_attn.o_proj(hidden[:count])
            layer.mlp.gate_proj(hidden[:count])
            layer.mlp.up_proj(hidden[:count])
            layer.mlp.down_proj(wide[:count])
        model.lm_head(hidden[:count])
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Vocabulary(words=[f"w{number}" for number in range(VOCABULARY - 263)])
        loaded = load_model(make_nano(Path(folder) / "nano", vocabulary, SHAPE, seed=0), device="cpu")
        policy, asked = LocalPolicy(loaded, SamplingConfig(max_new_tokens=NEW)), prompts()
        ours: list[float] = []
        alone: list[float] = []
        lengths: list[int] = []
        for _ in range(given.runs + 1):
            decoder = policy.decoder(ROWS)
            assert isinstance(decoder, Decoder)
            taken, answers = decode(decoder, asked)
            ours.append(taken)
            lengths = [len(answer.ids) for answer in answers]
            alone.append(products(loaded, [sum(length > step for length in lengths) for step in range(1, NEW)]))
    mine, other = statistics.median(ours[1:]), statistics.median(alone[1:])  # the first ones warm up
    print(f"{sum(lengths)} tokens: decoding {mine * 1e3:.1f} ms, its products alone {other * 1e3:.1f} ms")
    line = {"name": "decoding_cost", "ratio": round(mine / other, 3), "ours": round(mine, 4), "other": round(other, 4)}
    print(json.dumps({**line, "unit": "seconds, decoding over its products", "runs": given.runs}))


if __name__ == "__main__":
    main()
