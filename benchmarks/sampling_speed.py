"""Playing many turns: a session that keeps its caches, against transformers' ``generate`` called at every turn.

Both play the same conversations with the same nano model: a system prompt, and at each turn an observation of 18 words and
an answer of five tokens. ``generate`` gets the whole history at every turn, left-padded, as a rollout loop without a session
has to; ours reads what is new. With a Python that has vLLM, vLLM plays them too, in a process of its own that waits while another
plays; its prefix cache is on, and heads are of 64, which its kernels for CPUs know. Runs alternate, so that whatever else the machine
does meets all.

    python benchmarks/sampling_speed.py [--episodes 64] [--turns 28] [--runs 3] [--vllm PYTHON]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from gradus.core import EpisodeStart, Observation, Request, Task, Vocabulary
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.nano.model import NanoConfig, make_nano

WORDS = [f"w{i}" for i in range(500)]
ANSWER, OBSERVED, SYSTEM, GROUP = 5, 18, 40, 8


def text(words: int, *key: int) -> str:
    rng = random.Random(repr(key))
    return " ".join(rng.choice(WORDS) for _ in range(words))


def observations(episodes: int, turns: int) -> list[list[str]]:
    """By turn and episode; a group's members begin with the same one."""
    return [[text(OBSERVED, t, i if t else i // GROUP) for i in range(episodes)] for t in range(turns)]


def play_ours(loaded: LoadedModel, said: list[list[str]]) -> tuple[float, int]:
    """Seconds and sampled tokens."""
    begun = time.perf_counter()
    policy = LocalPolicy(loaded, SamplingConfig(max_new_tokens=ANSWER))
    none: Any = None
    session = policy.start(
        [
            EpisodeStart(
                task=Task(environment="benchmark", seed=i // GROUP),
                system_prompt=text(SYSTEM),
                key=(0, i),
                group=i // GROUP,
                member=i % GROUP,
                environment=none,
            )
            for i in range(len(said[0]))
        ]
    )
    tokens = 0
    for turn in said:
        answers = session.act([Request(row=i, observation=Observation(text=t)) for i, t in enumerate(turn)])
        tokens += sum(len(a.tokens.action_ids) for a in answers if a.tokens)
    return time.perf_counter() - begun, tokens


@torch.inference_mode()
def play_theirs(loaded: LoadedModel, said: list[list[str]]) -> tuple[float, int]:
    """Seconds and sampled tokens."""
    begun = time.perf_counter()
    renderer, pad = loaded.renderer, loaded.tokenizer.pad_token_id
    rows: list[list[int]] = [[] for _ in said[0]]
    tokens = 0
    for turn in said:
        for row, observed in zip(rows, turn, strict=True):
            row.extend(renderer.following(observed) if row else renderer.first(text(SYSTEM), observed))
        width = max(map(len, rows))
        ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows], device=loaded.device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=loaded.device)
        out = loaded.model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=ANSWER, do_sample=True, top_k=0, pad_token_id=pad
        )
        for row, answer in zip(rows, out[:, width:].tolist(), strict=True):
            end = next((n + 1 for n, token in enumerate(answer) if token in renderer.stop_ids), None)
            row.extend(answer[:end] if end else [*answer, renderer.stop_id])
            tokens += end or len(answer)
    return time.perf_counter() - begun, tokens


@contextmanager
def vllm_player(python: Path, loaded: LoadedModel, said: list[list[str]]) -> Iterator[Callable[[], tuple[float, int]]]:
    """A function that plays the conversations with vLLM; seconds and sampled tokens."""
    renderer = loaded.renderer
    first = [[list(renderer.first(text(SYSTEM), observed)) for observed in said[0]]]
    turns = first + [[list(renderer.following(observed)) for observed in turn] for turn in said[1:]]
    told = {"model": str(loaded.path), "context": loaded.context, "answer": ANSWER, "turns": turns}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
    }
    command = [str(python), str(Path(__file__).with_name("_vllm_player.py"))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdin is not None
    assert process.stdout is not None
    reads, writes = process.stdout, process.stdin

    def ask(line: str) -> str:
        writes.write(line + "\n")
        writes.flush()
        answer = reads.readline()
        if not answer:
            raise RuntimeError(f"vLLM's process ended with {process.wait()}; its error stands above")
        return answer

    def play() -> tuple[float, int]:
        played = json.loads(ask("play"))
        return played["seconds"], played["tokens"]

    try:
        ask(json.dumps({**told, "stops": sorted(renderer.stop_ids)}))
        yield play
    finally:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--turns", type=int, default=28)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--vllm", type=Path, help="A Python that has vLLM.")
    options = parser.parse_args()
    shape = NanoConfig(hidden_size=256, heads=4, intermediate_size=768) if options.vllm else NanoConfig()
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Vocabulary(words=WORDS, pieces=list("abcdefghijklmnopqrstuvwxyz0123456789"))
        loaded = load_model(make_nano(Path(folder) / "nano", vocabulary, shape))
        said = observations(options.episodes, options.turns)
        players: dict[str, Callable[[], tuple[float, int]]] = {
            "gradus session": lambda: play_ours(loaded, said),
            "generate each turn": lambda: play_theirs(loaded, said),
        }
        if options.vllm is None:
            compare(players, loaded, options)
            return
        with vllm_player(options.vllm, loaded, said) as play:
            compare({**players, "vLLM": play}, loaded, options)


def compare(
    players: dict[str, Callable[[], tuple[float, int]]], loaded: LoadedModel, options: argparse.Namespace
) -> None:
    torch.manual_seed(0)  # generate draws from the global generator
    for play in players.values():
        play()  # warm up
    seconds: dict[str, list[float]] = {name: [] for name in players}
    sampled: dict[str, int] = {}
    for _ in range(options.runs):
        for name, play in players.items():
            taken, sampled[name] = play()
            seconds[name].append(taken)
    size = sum(p.numel() for p in loaded.model.parameters())
    print(
        f"{options.episodes} episodes x {options.turns} turns, {size / 1e6:.2f} M parameters, {torch.get_num_threads()} threads"
    )
    print(f"{'':20} {'median s':>9} {'min s':>7} {'max s':>7} {'sampled tokens/s':>17}")
    middles = {name: statistics.median(runs) for name, runs in seconds.items()}
    for name, runs in seconds.items():
        rate = sampled[name] / middles[name]
        print(f"{name:20} {middles[name]:9.2f} {min(runs):7.2f} {max(runs):7.2f} {rate:17.0f}")
    ours, *others = middles
    for other in others:
        line = {"name": f"sampling_speed, {other}", "ratio": middles[other] / middles[ours], "unit": "s"}
        print(json.dumps({**line, "ours": middles[ours], "other": middles[other], "runs": options.runs}))


if __name__ == "__main__":
    main()
