"""Plays the conversations of sampling_speed.py with vLLM, for a Python that has it.

The first line of standard input says what to play; after each further line everything is played once, and its seconds and sampled
tokens come as a line of JSON. A turn's answers are drawn before the next turn is known, as in a rollout; vLLM's prefix cache keeps
what was read before.
"""

import json
import os
import sys
import time

from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt


def play(model: LLM, told: dict[str, object], params: SamplingParams) -> dict[str, float]:
    begun = time.perf_counter()
    rows: list[list[int]] = [[] for _ in told["turns"][0]]
    tokens = 0
    for turn in told["turns"]:
        for row, read in zip(rows, turn, strict=True):
            row.extend(read)
        answers = model.generate([TokensPrompt(prompt_token_ids=list(row)) for row in rows], params, use_tqdm=False)
        for row, answer in zip(rows, answers, strict=True):
            ids = list(answer.outputs[0].token_ids)
            tokens += len(ids)
            row.extend(ids if ids[-1] in told["stops"] else [*ids, told["stops"][0]])
    model.reset_prefix_cache()
    return {"seconds": time.perf_counter() - begun, "tokens": tokens}


def main() -> None:
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # vLLM's own lines go elsewhere
    told = json.loads(sys.stdin.readline())
    rows = len(told["turns"][0])
    model = LLM(
        told["model"],
        dtype="float32",
        max_model_len=told["context"],
        max_num_seqs=rows,
        enable_prefix_caching=True,
        seed=0,
        max_num_batched_tokens=max(8192, told["context"]),
        disable_log_stats=True,
    )
    params = SamplingParams(
        max_tokens=told["answer"], temperature=1.0, logprobs=0, detokenize=False, stop_token_ids=told["stops"]
    )
    results.write("ready\n")
    for _ in sys.stdin:
        results.write(json.dumps(play(model, told, params)) + "\n")


if __name__ == "__main__":
    main()
