"""Registration of Rhythm: everything the rest of Gradus needs to know of it."""

from __future__ import annotations

from functools import partial

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
from gradus_worlds.rhythm.text import COMPACT, PLAIN, vocabulary
from gradus_worlds.rhythm.view import curves, metrics, view

TRAIN_SEED = 1_000_000  # the first seed of training; conditions stay below
_WORDINGS = {None: PLAIN, "compact": COMPACT}

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
    """The specification of ``rhythm``, or of ``rhythm:compact``, whose lines and answers take a third of the tokens."""
    if argument not in _WORDINGS:
        raise ConfigError(f"rhythm takes no argument or 'compact', got {argument!r}; choose persons by condition")
    wording = _WORDINGS[argument]
    name = f"rhythm:{argument}" if argument else "rhythm"
    factories = {**POLICIES, "bayes": bayes, "heuristic+bayes": heuristic_and_bayes}
    policies = {key: partial(factory, wording) for key, factory in factories.items()}
    levels = tuple(wording.levels)
    return EnvironmentSpec(
        name=name,
        summary="a week with a person you do not know: infer who it is, and plan for them",
        make=partial(RhythmEnvironment, wording),
        graders=GRADERS,
        default_grader="v3",
        conditions=_CONDITIONS,
        train_task=lambda index: Task(environment=name, seed=TRAIN_SEED + index, options={"persons": "continuous"}),
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
            random_answers=lambda seed: wording.reword(random_answer(seed)),
            hidden=("person", "weights", "modifiers", "beliefs"),
        ),
        teacher="bayes",
        metrics=metrics,
        presentation=Presentation(
            watched={"belief error": "belief_mae"}, curves=curves, view=view, reference=FIGURES["reference"]
        ),
        language=Language(vocabulary=partial(vocabulary, wording), grammar=(levels, levels, levels, wording.actions)),
        recipe="rhythm.toml",
    )
