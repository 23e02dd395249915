"""One GRPO step on one-turn tasks, Gradus against TRL: 8 prompts of 160 tokens, 8 members, at most 32 new tokens.

2.3 million parameters (d 192, 4 layers, a vocabulary of 512), two threads, float32 or, with --bf16, autocast; generation, loss and update are all timed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from _against_trl import (
    Alternate,
    Elsewhere,
    OurSteps,
    arguments,
    is_ours,
    memory_of,
    nano,
    ours_alone,
    print_peak,
    report,
    trl_trainer,
    workplace,
)

from gradus.core import (
    Condition,
    EnvironmentSpec,
    Episode,
    Grader,
    Language,
    Observation,
    Reward,
    RewardTerm,
    Task,
    Vocabulary,
    child_rng,
)
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.nano.model import NanoConfig
from gradus.training.config import GrpoConfig

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
    """A prompt of random words; any answer ends it."""

    system_prompt = ""

    def __init__(self) -> None:
        self._text = ""

    @property
    def state(self) -> Mapping[str, Any]:
        return {"episode_id": "one", "step_count": 0}

    def reset(self, *, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        return Observation(text=prompt_text(seed or 0))

    def step(self, action: str) -> Observation:
        return Observation(text="", terminated=True)

    def outcome(self) -> Mapping[str, Any]:
        return {}

    def close(self) -> None:
        pass


def reward(episodes: Sequence[Episode]) -> Sequence[Reward]:
    """The score of the answer."""
    values = [score(episode.turns[0].action) for episode in episodes]
    return [Reward(grader="even", value=v, terms=((RewardTerm(component="even", value=v),),)) for v in values]


def spec() -> EnvironmentSpec:
    """The environment of this benchmark."""
    return EnvironmentSpec(
        name="one-turn",
        summary="random words in, random words out",
        make=OneTurn,
        graders={"even": Grader(name="even", summary="share of even words", weights={"even": 1.0}, compute=reward)},
        default_grader="even",
        conditions={"test": Condition(name="test", seeds=[0])},
        train_task=lambda index: Task(environment="one-turn", seed=1 + index),
        policies={},
        true_reward=lambda episode: episode.reward.value if episode.reward else None,
        true_reward_name="score",
        max_turns=1,
        language=Language(vocabulary=lambda: Vocabulary(words=WORDS)),
    )


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__ or "").parse_args()
    steps = options.steps + 1
    with workplace(options) as name:
        folder = Path(name)
        model = nano(folder, spec(), SHAPE)
        config = GrpoConfig(
            groups=GROUPS,
            group_size=SIZE,
            max_steps=steps,
            lr=RATE,
            sampling=SamplingConfig(max_new_tokens=NEW),
            backward=options.backward,
            autocast=options.bf16,
            validation_every=0,
            store_every=0,
            device="cpu",
        )
        if is_ours(options):
            ours_alone(OurSteps(model, spec(), config, folder / "run"), steps, options)
            return
        ours = Elsewhere() if options.only != "trl" else None
        watch = Alternate(ours)
        trainer = trl_trainer(
            model,
            [[{"role": "user", "content": prompt_text(1 + index)}] for index in range(GROUPS * steps)],
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
        trainer.train()
        if options.only == "trl" or ours is None:
            print_peak()
            return
        ours.close()
        memory = None
        if not options.no_memory:
            few = ["--steps", "1", "--backward", options.backward, *(["--bf16"] if options.bf16 else []), "--only"]
            memory = (memory_of(__file__, [*few, "ours"]), memory_of(__file__, [*few, "trl"]))
        report("trl_one_turn", options, watch.ours_seconds[1:], watch.theirs_seconds[1:], ours.records[-1], memory)


if __name__ == "__main__":
    main()
