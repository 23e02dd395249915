"""The memory environment as everything else sees it: one registration record for any source of worlds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from gradus.core import AuditHints, ConfigError, EnvironmentSpec, Language, Panel, Presentation, Task, Vocabulary
from gradus_worlds.memory.environment import MemoryEnvironment
from gradus_worlds.memory.graders import GRADERS, reader_accuracy
from gradus_worlds.memory.measures import curves, metrics, view
from gradus_worlds.memory.policies import scripted_policies
from gradus_worlds.memory.store.memory import NINE_BANKS
from gradus_worlds.memory.tools.writing import fragments, random_answer, system_prompt
from gradus_worlds.memory.worlds.babi import babi_source
from gradus_worlds.memory.worlds.jsonl import jsonl_source, locomo_source
from gradus_worlds.memory.worlds.records import Source
from gradus_worlds.memory.worlds.source_synthetic import synthetic_source


def load(argument: str | None = None) -> EnvironmentSpec:
    """The environment of ``memory[:WORLD]``: ``synthetic`` (default; knobs as ``synthetic:chunks=12,people=4``),
    ``locomo:PATH``, ``babi:PATH`` or ``jsonl:PATH``."""
    world = argument or "synthetic"
    head, _, rest = world.partition(":")
    if head not in _SOURCES or (head != "synthetic" and not rest):
        raise ConfigError(
            f"unknown memory world {world!r}; there are synthetic:KNOBS, locomo:PATH, babi:PATH and jsonl:PATH"
        )
    source = _SOURCES[head](rest)
    return make_spec(replace(source, name=f"memory:{argument}" if argument else "memory"))


_SOURCES: Mapping[str, Callable[[str], Source]] = {
    "synthetic": synthetic_source,
    "locomo": locomo_source,
    "babi": babi_source,
    "jsonl": jsonl_source,
}


def make_spec(source: Source) -> EnvironmentSpec:
    """The registration record over any source of worlds."""

    def train_task(index: int) -> Task:
        seed, options = source.train(index)
        return Task(environment=source.name, seed=seed, condition="train", options=options)

    policies = scripted_policies(source.responses)
    taught = "teacher" in policies
    return EnvironmentSpec(
        name=source.name,
        summary=f"keep a memory of a stream of dialogue and answer questions from it: {source.summary}",
        make=lambda: MemoryEnvironment(source.world),
        graders=GRADERS,
        default_grader="v2",
        conditions=source.conditions,
        train_task=train_task,
        content=source.content,
        policies=policies,
        true_reward=lambda episode: reader_accuracy(episode, "strict"),
        true_reward_name="strict accuracy",
        max_turns=source.max_chunks,
        teacher="teacher" if taught else None,
        metrics=metrics,
        presentation=Presentation(
            watched={"strict accuracy": "strict_accuracy", "memory share": "memory_share"},
            curves=curves,
            view=view,
        ),
        language=Language(vocabulary=lambda: _vocabulary(source)),
        audit=AuditHints(
            panel=Panel(
                ladder=("noop", "append-only", "teacher") if taught else ("noop", "append-only"),
                reflexes=("append-only", "heuristic"),
                exploits=("noop", "spam", "dump"),
            ),
            random_answers=random_answer,
            hidden=("asked",),  # the answers are said in the dialogue; what will be asked is not
        ),
        recipe=source.recipe,
    )


# The words of the refusals that are most common.
_TOLD = "Refused: entry entries there is no was deleted says that already in , not exactly hold holds of does name more one: ;"


def _vocabulary(source: Source) -> Vocabulary:
    """The source's words, the fragments of calls, digits for ids, and characters for everything else."""
    own = source.vocabulary()
    banks = list(NINE_BANKS.banks)
    prompt = system_prompt(NINE_BANKS).split()
    digits = [str(digit) for digit in range(10)]
    letters = [chr(code) for code in range(33, 127)]
    words = dict.fromkeys(
        (*own.words, *fragments(banks), *banks, *prompt, *_TOLD.split(), *digits, "Memory:", "Core:", "|")
    )
    return Vocabulary(words=tuple(words), pieces=tuple(dict.fromkeys((*own.pieces, *digits, *letters))))
