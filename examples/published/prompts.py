"""Tries prompts for the base model on training tasks: ``python examples/published/prompts.py sums`` (messages, chain_sum)."""

from __future__ import annotations

import sys
from importlib import import_module

from asking import prompted

import gradus

TASKS = 64


def main(name: str) -> None:
    """Prints the share of right answers, greedy and sampled, under each prompt of a set."""
    chosen = import_module(name)
    for title, prompt in chosen.PROMPTS.items():
        shares: list[str] = []
        for kind in ("prompted-greedy", "prompted"):
            policy = prompted(prompt, kind)
            episodes = gradus.roll_out(chosen.spec, policy, episodes=min(TASKS, len(chosen.rows()[0]))).episodes
            shares.append(f"{sum(episode.outcome['correct'] for episode in episodes) / len(episodes):.2f}")
        print(f"{title:32} greedy {shares[0]}  sampled {shares[1]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
