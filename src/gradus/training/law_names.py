"""The laws by name. Nothing here loads torch, so that a recipe is read and refused at once."""

from __future__ import annotations

from typing import Literal

LawName = Literal[
    "loss",
    "credit",
    "tokens",
    "cuts",
    "optimizer",
    "reference",
    "sampler",
    "independence",
    "grading",
    "tasks",
    "replay",
    "text",
    "draws",
    "saved",
    "checkpoint",
    "records",
]

LAWS: dict[LawName, str] = {
    "loss": "each token's factor in the gradient, each term and the denominators follow from advantages, log-probs and settings",
    "credit": "advantages follow from the stored rewards by the algorithm's formula, their scale too, and targets from what a teacher states",
    "tokens": "what is trained is what the sampler returned, token by token, each by its advantage",
    "cuts": "the gradient does not depend on how a step is cut into microbatches",
    "optimizer": "each tensor moves by its gradient as the optimizer, its rate and the clip say, and no frozen one moves",
    "reference": "the reference stays as it was",
    "sampler": "with fresh weights sampler and trainer have the same log-probs",
    "independence": "members of a group are sampled independently",
    "grading": "stored episodes that are graded again get the same rewards",
    "tasks": "tasks come one after another in the run's order, each row once an epoch, and none that judges",
    "replay": "an episode's answers, given to a new environment, have the same effect",
    "text": "the tokens that were read and said are the text that was shown and graded",
    "draws": "each sampled token is the one that its own random number points at",
    "saved": "a saved model is the one in memory",
    "checkpoint": "a checkpoint on the disk holds the weights, the optimizer and the place of the run in memory",
    "records": "episodes, metrics and the best step, read back from the disk, are those in memory",
}
