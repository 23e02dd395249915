"""Playing many turns: a session that keeps its caches, against transformers' ``generate`` called at every turn.

Both play the same conversations with the same nano model: a system prompt, and at each turn an observation of 18 words and
an answer of five tokens. ``generate`` gets the whole history at every turn, left-padded, as a rollout loop without a session
has to; ours reads what is new. Runs alternate in one process, so that whatever else the machine does meets both.

    python benchmarks/sampling_speed.py [--episodes 64] [--turns 28] [--runs 3]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--turns", type=int, default=28)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Vocabulary(words=WORDS, pieces=list("abcdefghijklmnopqrstuvwxyz0123456789"))
        loaded = load_model(make_nano(Path(folder) / "nano", vocabulary, NanoConfig()))
    said = observations(options.episodes, options.turns)
    players = {"gradus session": play_ours, "generate each turn": play_theirs}
    for play in players.values():
        play(loaded, [turn[:8] for turn in said[:2]])  # warm up
    torch.manual_seed(0)  # generate draws from the global generator
    seconds: dict[str, list[float]] = {name: [] for name in players}
    sampled: dict[str, int] = {}
    for _ in range(options.runs):
        for name, play in players.items():
            taken, sampled[name] = play(loaded, said)
            seconds[name].append(taken)
    size = sum(p.numel() for p in loaded.model.parameters())
    print(
        f"{options.episodes} episodes x {options.turns} turns, {size / 1e6:.2f} M parameters, {torch.get_num_threads()} threads"
    )
    print(f"{'':20} {'median s':>9} {'min s':>7} {'max s':>7} {'sampled tokens/s':>17}")
    for name, runs in seconds.items():
        middle = statistics.median(runs)
        print(f"{name:20} {middle:9.2f} {min(runs):7.2f} {max(runs):7.2f} {sampled[name] / middle:17.0f}")
    ours, theirs = (statistics.median(runs) for runs in seconds.values())
    line = {"name": "sampling_speed", "ratio": theirs / ours, "ours": ours, "other": theirs, "unit": "s"}
    print(json.dumps({**line, "runs": options.runs}))


if __name__ == "__main__":
    main()
