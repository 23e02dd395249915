"""Registration of Rhythm: everything the rest of Gradus needs to know of it."""

from __future__ import annotations

from gradus.core import (
    AuditHints,
    Condition,
    ConfigError,
    EnvironmentSpec,
    Language,
    Panel,
    Presentation,
    Task,
)
from gradus_worlds.rhythm.environment import RhythmEnvironment
from gradus_worlds.rhythm.graders import GRADERS
from gradus_worlds.rhythm.scripted import POLICIES, random_answer
from gradus_worlds.rhythm.tables import ACTIONS, FIGURES, STEPS
from gradus_worlds.rhythm.teacher import bayes, heuristic_and_bayes
from gradus_worlds.rhythm.text import vocabulary
from gradus_worlds.rhythm.view import curves, metrics, view

TRAIN_SEED = 1_000_000  # the first seed of training; conditions stay below
_DIGITS = tuple("0123456789")

_CONDITIONS = {
    "in-distribution": Condition(
        name="in-distribution", seeds=range(100), summary="persons as in training", options={"persons": "continuous"}
    ),
    "held-out": Condition(
        name="held-out",
        seeds=range(10_000, 10_050),
        summary="same sampler, other seeds (the original called this OOD)",
        options={"persons": "continuous"},
    ),
    "ood": Condition(
        name="ood",
        seeds=range(20_000, 20_100),
        summary="persons whom the training sampler cannot give",
        options={"persons": "ood"},
    ),
    "discrete-3": Condition(
        name="discrete-3",
        seeds=range(30_000, 30_060),
        summary="the three persons of the original",
        options={"persons": "discrete"},
        cluster=lambda episode: str(episode.outcome.get("person", "unknown")),
    ),
}


def load(argument: str | None = None) -> EnvironmentSpec:
    """The specification of Rhythm; it takes no argument."""
    if argument:
        raise ConfigError(f"rhythm takes no argument, got {argument!r}; choose persons by condition")
    policies = {**POLICIES, "bayes": bayes, "heuristic+bayes": heuristic_and_bayes}
    return EnvironmentSpec(
        name="rhythm",
        summary="a week with a person you do not know: infer who it is, and plan for them",
        make=RhythmEnvironment,
        graders=GRADERS,
        default_grader="v3",
        conditions=_CONDITIONS,
        train_task=lambda index: Task(environment="rhythm", seed=TRAIN_SEED + index, options={"persons": "continuous"}),
        policies=policies,
        true_reward=lambda episode: episode.env_return,  # what the person felt
        true_reward_name="episode reward",
        max_turns=STEPS,
        audit=AuditHints(
            panel=Panel(
                ladder=("random", "heuristic", "profile-blind", "bayes", "clairvoyant"),
                reflexes=("heuristic",),
                exploits=(
                    "heuristic+constant",
                    "sandbagger",
                    "silence",
                    "two-cycle",
                    *(f"constant:{action}" for action in ACTIONS),
                ),
            ),
            random_answers=random_answer,
            hidden=("person", "weights", "modifiers", "beliefs"),
        ),
        teacher="bayes",
        metrics=metrics,
        presentation=Presentation(
            watched={"belief error": "belief_mae"}, curves=curves, view=view, reference=FIGURES["reference"]
        ),
        language=Language(vocabulary=vocabulary, grammar=(_DIGITS, _DIGITS, _DIGITS, ACTIONS)),
        recipe="rhythm.toml",
    )
