"""One GRPO step on one-turn tasks, Gradus against TRL: 8 prompts of 160 tokens, 8 members, at most 32 new tokens.

2.3 million parameters (d 192, 4 layers, a vocabulary of 512), two threads, float32 or, with --bf16, autocast; generation, loss and update are all timed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from _against_trl import Alternate, OurSteps, arguments, compare, nano, our_config, trl_trainer

import gradus
from gradus.core import EnvironmentSpec, Language, Vocabulary, child_rng
from gradus.policies.nano.model import NanoConfig

GROUPS, SIZE, NEW, PROMPT = 8, 8, 32, 160
WORDS = tuple(f"w{number}" for number in range(512 - 5 - 256 - 2))
NUMBER = {word: number for number, word in enumerate(WORDS)}
SHAPE = NanoConfig(hidden_size=192, layers=4, heads=6, intermediate_size=768, context=1024)
RATE = 3e-4


@cache
def prompt_text(seed: int) -> str:
    """158 words and two frame tokens around them: 160 tokens."""
    rng = child_rng(seed, "prompt")
    return " ".join(rng.choice(WORDS) for _ in range(PROMPT - 2))


def score(text: str) -> float:
    """Something that differs between answers and costs nothing: the share of even words."""
    words = [word for word in text.split() if word in NUMBER]
    return sum(NUMBER[word] % 2 == 0 for word in words) / max(1, len(words))


class OneTurn:
    """A prompt of random words; any answer ends it and earns its score."""

    max_turns = 1

    def reset(self, seed: int) -> str:
        return prompt_text(seed)

    def step(self, action: str) -> tuple[str, float, bool]:
        return "", score(action), True


def spec() -> EnvironmentSpec:
    """The environment of this benchmark."""
    language = Language(vocabulary=lambda: Vocabulary(words=WORDS))
    return replace(gradus.load_environment(OneTurn), language=language)


def prompts(count: int) -> list[str]:
    """The prompts of the first training tasks."""
    train_task = spec().train_task
    return [prompt_text(train_task(index).seed) for index in range(count)]


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__ or "").parse_args()
    steps = options.steps + 1

    def ours(folder: Path) -> OurSteps:
        config = our_config(options, new=NEW, groups=GROUPS, group_size=SIZE, lr=RATE)
        return OurSteps(nano(folder, spec(), SHAPE), spec(), config, folder / "run")

    def theirs(folder: Path, watch: Alternate) -> Any:
        return trl_trainer(
            nano(folder, spec(), SHAPE),
            prompts(GROUPS * steps),
            lambda completions, **_: [score(completion[0]["content"]) for completion in completions],
            folder / "trl",
            steps=steps,
            groups=GROUPS,
            group_size=SIZE,
            max_tokens=NEW,
            lr=RATE,
            rows=GROUPS * SIZE,
            callback=watch,
            bf16=options.bf16,
        )

    compare("trl_one_turn", options, ours, theirs)


if __name__ == "__main__":
    main()
