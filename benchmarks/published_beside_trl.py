"""One GRPO step of a published model, Gradus against TRL: SmolLM2-135M-Instruct, 4 stories asked for, 8 members, 32 new tokens each.

The stories never end within 32 tokens, so both sides do the same work. All weights are trained in float32 on two threads; generation,
loss and update are all timed. Give the model as a folder or a GGUF file: ``published_beside_trl.py --model FILE.gguf``
(``examples/published/smollm2.py`` fetches it).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _against_trl import Alternate, OurSteps, arguments, compare, our_config, trl_trainer

import gradus
from gradus.core import EnvironmentSpec
from gradus.policies.local.gguf import dequantized, is_gguf

GROUPS, SIZE, NEW, RATE = 4, 8, 32, 1e-5
HEROES = ("a fox", "a baker", "a sailor", "two sisters", "an old clock", "a robot", "a gardener", "a young king")
PLACES = ("a lighthouse", "the desert", "a night train", "an empty city", "the north", "a deep wood", "a small island")
QUESTIONS = tuple(f"Tell a long story about {hero} in {place}." for hero in HEROES for place in PLACES)


def brief(completions: Sequence[Any], **_: Any) -> list[float]:
    """Something that differs between answers and costs nothing: fewer letters a token."""
    texts = [each if isinstance(each, str) else each[0]["content"] for each in completions]
    return [-len(text) / 100 for text in texts]


def spec() -> EnvironmentSpec:
    """The stories as an environment of one turn."""
    rows = [{"question": question} for question in QUESTIONS]
    return gradus.one_turn(rows, [brief], name="stories", test=[{"question": "Tell a long story about a whale."}])


def main() -> None:
    """Measures and prints."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--model", required=True, help="the model's folder, or a GGUF file")
    options = parser.parse_args()
    model = dequantized(options.model) if is_gguf(options.model) else Path(options.model)
    steps = options.steps + 1

    def ours(folder: Path) -> OurSteps:
        config = our_config(options, new=NEW, groups=GROUPS, group_size=SIZE, lr=RATE)
        return OurSteps(model, spec(), config, folder / "run")

    def theirs(folder: Path, watch: Alternate) -> Any:
        return trl_trainer(
            model,
            [QUESTIONS[index % len(QUESTIONS)] for index in range(GROUPS * steps)],
            brief,
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

    compare("published_beside_trl", options, ours, theirs, ["--model", options.model])


if __name__ == "__main__":
    main()
