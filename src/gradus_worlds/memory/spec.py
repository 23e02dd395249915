"""The memory environment as everything else sees it: its scripted policies, and one registration record for any source of worlds.

A scripted policy answers an observation from what stands in it, like a model would.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from string import digits

from gradus.core import (
    AuditHints,
    ConfigError,
    EnvironmentSpec,
    Language,
    Panel,
    Policy,
    Presentation,
    Stepping,
    Task,
    Vocabulary,
)
from gradus.environments.options import known_options
from gradus.policies.scripted import Answer, policy_factory
from gradus_worlds.memory.environment import MemoryEnvironment
from gradus_worlds.memory.graders import GRADERS, strict_accuracy
from gradus_worlds.memory.measures import curves, metrics, view
from gradus_worlds.memory.readers.frozen import ModelReader
from gradus_worlds.memory.store.memory import NINE_BANKS, SCHEMAS, Schema
from gradus_worlds.memory.text import count_words, cut_words, join_words
from gradus_worlds.memory.tools.writing import NOOP, fragments, random_answer, system_prompt_of, write_insert
from gradus_worlds.memory.worlds.jsonl import jsonl_source, locomo_source
from gradus_worlds.memory.worlds.records import Data, Respond, Source
from gradus_worlds.memory.worlds.source_synthetic import dialogue_vocabulary, synthetic_source

EXAM_SECONDS = 4 * 3600.0  # of a model on a CPU that reads a hundred questions


def load(argument: str | None = None) -> EnvironmentSpec:
    """The environment of ``memory[:WORLD]``: ``synthetic`` (default; knobs as ``synthetic:chunks=12,people=4``),
    ``locomo:PATH`` or ``jsonl:PATH``, each with the options ``?reader=NAME`` (:class:`ModelReader`) and ``schema=NAME``."""
    world, _, query = (argument or "synthetic").partition("?")
    options = known_options(f"memory:{argument}", query, {"reader": str, "schema": str})
    schema = SCHEMAS.get(options.get("schema", NINE_BANKS.name))
    if schema is None:
        raise ConfigError(f"unknown schema {options['schema']!r} of a memory; there are {', '.join(SCHEMAS)}")
    reader = ModelReader(options["reader"]) if "reader" in options else None
    kind, _, rest = world.partition(":")
    lacks_path = kind != "synthetic" and not rest
    if kind not in _SOURCES or lacks_path:
        raise ConfigError(f"unknown memory world {world!r}; there are synthetic:KNOBS, locomo:PATH and jsonl:PATH")
    source = _SOURCES[kind](rest)
    named = replace(source, name=f"memory:{argument}" if argument else "memory")
    return make_spec(named, schema=schema, reader=reader)


_SOURCES: Mapping[str, Callable[[str], Source]] = {
    "synthetic": synthetic_source,
    "locomo": locomo_source,
    "jsonl": jsonl_source,
}


def make_spec(source: Source, *, schema: Schema = NINE_BANKS, reader: ModelReader | None = None) -> EnvironmentSpec:
    """The registration record over any source of worlds."""

    def train_task(index: int) -> Task:
        seed, options = source.train(index)
        return Task(environment=source.name, seed=seed, condition="train", options=options)

    policies = scripted_policies(source.responses)
    teacher = ("teacher",) if "teacher" in policies else ()
    return EnvironmentSpec(
        name=source.name,
        summary=f"keep a memory of a stream of dialogue and answer questions from it: {source.summary}",
        make=lambda: MemoryEnvironment(source.world, schema=schema, reader=reader),
        graders=GRADERS,
        default_grader="v2",
        conditions=source.conditions,
        train_task=train_task,
        content=source.content,
        policies=policies,
        true_reward=strict_accuracy,
        true_reward_name="strict accuracy",
        max_turns=source.max_chunks,
        teacher="teacher" if teacher else None,
        metrics=metrics,
        presentation=Presentation(
            watched={
                "reader accuracy": "reader_accuracy",
                "strict accuracy": "strict_accuracy",
                "memory share": "memory_share",
            },
            curves=curves,
            view=view,
        ),
        language=Language(vocabulary=lambda: _vocabulary(schema)),
        audit=AuditHints(
            panel=Panel(
                ladder=("noop", "append-only", *teacher),
                reflexes=("append-only", "heuristic"),
                exploits=("noop", "spam", "dump"),
            ),
            random_answers=partial(random_answer, schema),
            hidden=("asked",),  # the answers are said in the dialogue; what will be asked is not
        ),
        recipe=source.recipe,
        asks=reader.model.servers if reader else (),
        stepping=Stepping(outcome_seconds=EXAM_SECONDS) if reader else Stepping(),
    )


# The words of the refusals that are most common.
_REFUSALS = "Refused: entry entries there is no was deleted says that already in , not exactly hold holds of does name more one: ;"


def _vocabulary(schema: Schema) -> Vocabulary:
    """The words of the dialogues, the fragments of calls, digits for ids, and characters for everything else."""
    vocabulary = dialogue_vocabulary()
    banks = list(schema.banks)
    words = [*vocabulary.words, *fragments(banks), *banks]
    words += [*system_prompt_of(schema).split(), *_REFUSALS.split()]
    words += [*digits, "Memory:", "Core:", "|"]
    # Characters spell the words of files that no vocabulary foresees; 33 to 126 are those of ASCII that can be seen.
    pieces = [*vocabulary.pieces, *digits, *map(chr, range(33, 127))]
    return Vocabulary(words=tuple(dict.fromkeys(words)), pieces=tuple(dict.fromkeys(pieces)))


def _noop(data: Data) -> list[str]:
    return []


def _lines(data: Data) -> list[str]:
    """The lines of the chunk, each in pieces that an entry holds."""
    pieces: list[str] = []
    for line in data["chunk"].splitlines():
        pieces += cut_words(line, data["entry_words"])
    return pieces


def _inserts(data: Data, texts: Iterable[str], first: int) -> list[str]:
    """Calls that insert texts, in one bank after the other."""
    banks: Sequence[str] = data["banks"]
    calls: list[str] = []
    for place, text in enumerate(texts, first):
        bank = banks[place % len(banks)]
        calls.append(write_insert(bank, text))
    return calls


def _dump(data: Data) -> list[str]:
    """The chunk as it came, in as few entries as its length needs."""
    bank = data["banks"][data["index"] % len(data["banks"])]
    return [write_insert(bank, text) for text in join_words(_lines(data), data["entry_words"])]


def _spam(data: Data) -> list[str]:
    """Every line as an entry, in two banks."""
    lines = _lines(data)
    return _inserts(data, lines, 0) + _inserts(data, lines, 1)


def _heuristic(data: Data) -> list[str]:
    """Sentences with a name or a number in them."""
    texts: list[str] = []
    for line in data["chunk"].splitlines():
        speaker, separator, words = line.partition(": ")
        for sentence in re.split(r"(?<=[.!?])\s+", words if separator else line):
            if _is_telling(sentence, spoken=bool(separator)):
                texts += cut_words(f"{speaker}: {sentence}" if separator else sentence, data["entry_words"])
    return _inserts(data, dict.fromkeys(texts), data["index"])


def _is_telling(sentence: str, *, spoken: bool) -> bool:
    """A digit, or a capital that is not the beginning of what somebody says; a narrator may well begin with a name."""
    name = r"(?<!^)\b[A-Z][a-z]+" if spoken else r"\b[A-Z][a-z]+"
    return bool(re.search(rf"\d|{name}", sentence))


def _append_lines(data: Data) -> list[str]:
    """Without a grammar: each line of at least five words, once, and never a change to an entry."""
    texts = [line for line in dict.fromkeys(_lines(data)) if count_words(line) >= 5]
    return _inserts(data, texts, data["index"])


def scripted_policies(
    responses: Mapping[str, Respond] | None = None,
) -> dict[str, Callable[[str | None], Policy]]:
    """Name -> factory: those of every source, and a source's own ``responses`` in their place or beside them."""
    by_name: dict[str, Respond] = {
        "noop": _noop,
        "spam": _spam,
        "dump": _dump,
        "heuristic": _heuristic,
        "append-only": _append_lines,
        **(responses or {}),
    }
    return {name: policy_factory(name, _answer(respond)) for name, respond in by_name.items()}


def _answer(respond: Respond) -> Answer:
    """Calls as a text; no call means ``memory_noop``."""
    return lambda observation, script: "\n".join(respond(observation.data) or [NOOP])
