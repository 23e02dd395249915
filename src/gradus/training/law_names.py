"""The laws by name. Nothing here loads torch, so that a recipe is read and refused at once."""

from __future__ import annotations

from typing import Literal

LawName = Literal[
    "first_update",
    "credit",
    "tokens",
    "cuts",
    "optimizer",
    "reference",
    "sampler",
    "independence",
    "grading",
    "saved",
]

LAWS: dict[LawName, str] = {
    "first_update": "at ratio 1 the gradient is minus the sum of advantage x weight x grad log pi over the denominator",
    "credit": "advantages follow from the stored rewards by the algorithm's formula, their scale too",
    "tokens": "what is trained is what the sampler returned, token by token, each by its advantage",
    "cuts": "the gradient does not depend on how a step is cut into microbatches",
    "optimizer": "each tensor moves by its gradient as the optimizer, its rate and the clip say, and no frozen one moves",
    "reference": "the reference stays as it was",
    "sampler": "with fresh weights sampler and trainer have the same log-probs",
    "independence": "members of a group are sampled independently",
    "grading": "stored episodes that are graded again get the same rewards",
    "saved": "a saved model is the one in memory",
}
