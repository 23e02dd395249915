"""``reasoning-gym:NAME``: the data sets of reasoning-gym, judged by their own ``score_answer``.

Options of a data set stand behind a question mark, as in ``reasoning-gym:chain_sum?max_terms=2``; their values are JSON.
Items and scores come from a worker process: some graders evaluate the answer as code, some never end, and some sets depend on
the hash seed of the process.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path

from gradus.core import ConfigError, EnvironmentFault, EnvironmentSpec, Episode
from gradus.core.values import JsonDict
from gradus.environments.options import json_options
from gradus.environments.verifiable.environment import Judgement
from gradus.environments.verifiable.from_rows import score_grader
from gradus.environments.verifiable.items import TRAIN_SEEDS, Item, share_of
from gradus.environments.verifiable.spec import answering_of, one_turn_of
from gradus.interop.suites.naming import SuiteNames, started
from gradus.rewards import read_answer
from gradus.sandbox.worker import Worker, WorkerError

_SYSTEM = "Answer the question. Write the final answer between <answer> and </answer>."
_BLOCK = 1000
_ANSWERS = 60  # items for random answers
_TEXTS = 200  # items for the vocabulary, which is made when it is needed
_STEP = 37  # coprime to the block: a task that belongs to another split gives way to the one so many places on
_FIRST = {"train": 0, "in-distribution": 1_000_000_000, "held-out": 1_500_000_000}
_SHARES = {"train": (0.2, 1.0), "in-distribution": (0.1, 0.2), "held-out": (0.0, 0.1)}


@cache
def _worker() -> Worker:
    return Worker(Path(__file__).parent / "workers" / "reasoning_gym_worker.py")


def suite_names() -> SuiteNames:
    """Names of the data sets, each with a line about it."""
    return started(_worker(), "reasoning-gym", "reasoning-gym==0.1.25").call("names")


def load(argument: str | None = None) -> EnvironmentSpec:
    """``NAME`` or ``NAME?option=value&...``."""
    summaries = suite_names()
    name, _, query = (argument or "").partition("?")
    full_name = f"reasoning-gym:{argument}"
    if name not in summaries:
        raise ConfigError(
            f"reasoning-gym has no data set {name!r}; gradus envs reasoning-gym: lists all {len(summaries)}, "
            "for example reasoning-gym:leg_counting"
        )
    source = ReasoningGymTasks(name, json_options(full_name, query), full_name)
    try:
        items = source.examples(_ANSWERS)
    except EnvironmentFault as error:
        raise ConfigError(f"{full_name} makes no tasks: {error}") from error
    answering = answering_of(
        items,
        source.system_prompt,
        write=lambda _, answer: f"<answer> {answer} </answer>",
        texts=lambda: source.examples(_TEXTS),
    )
    spec = one_turn_of(
        source,
        answering,
        judge=source.judge,
        graders=[score_grader(f"score_answer of reasoning-gym's {name}")],
        summary=summaries[name] or f"reasoning-gym's {name}",
    )
    # Seeds that give way to each other's items meet one question several times: 200 of them about 50.
    conditions = {split: replace(condition, cluster=_question) for split, condition in spec.conditions.items()}
    return replace(spec, conditions=conditions)


def _question(episode: Episode) -> str:
    return episode.turns[0].observation if episode.turns else ""


class ReasoningGymTasks:
    """An endless source of items. Splits are disjoint by question: which one a question belongs to follows from its text."""

    system_prompt = _SYSTEM

    def __init__(self, dataset: str, options: JsonDict, name: str) -> None:
        self.name = name
        self._dataset = dataset
        self._options = options
        self._numbered = lru_cache(maxsize=4096)(self._make)

    def size(self, split: str) -> int | None:
        """No end."""
        return None

    def item(self, split: str, seed: int) -> Item:
        """The first item from the seed's place on that belongs to the split. An item whose right answer is empty is left out: it
        could not be told from silence."""
        start = _FIRST[split] + (seed - TRAIN_SEEDS if seed >= TRAIN_SEEDS else seed)
        low, high = _SHARES[split]
        block = start - start % _BLOCK
        # Steps stay in one block, whose items the worker makes together.
        for attempt in range(_BLOCK):
            number = block + (start + attempt * _STEP) % _BLOCK
            item = self._numbered(number)
            if item is not None and low <= share_of(item.question) < high:
                return item
        raise EnvironmentFault(f"{self.name} has too few different questions for a {split} task; give it other options")

    def examples(self, number: int) -> list[Item]:
        """Training items."""
        return [self.item("train", TRAIN_SEEDS + index) for index in range(number)]

    def judge(self, item: Item, text: str) -> Judgement:
        """Scores the marked answer by ``score_answer``. What that raises is an error of this answer."""
        reading = read_answer(text)
        try:
            score = _worker().call("score", **self._where(item.columns["number"]), answer=reading.text)
        except WorkerError as error:
            return Judgement(score=None, answer=reading.text, error=f"score_answer of {self._dataset}: {error}")
        return Judgement(score=score, answer=reading.text, problem=reading.problem)

    def _make(self, number: int) -> Item | None:
        """An item; None if its right answer is empty."""
        try:
            entry = _worker().call("item", **self._where(number))
        except WorkerError as error:
            raise EnvironmentFault(f"reasoning-gym's {self._dataset} made no item {number}: {error}") from error
        answer = "" if entry["answer"] is None else str(entry["answer"])
        # None is another thing: the data set names no answer, and score_answer judges all the same.
        if entry["answer"] is not None and not answer.strip():
            return None
        return Item(question=entry["question"], answer=answer, columns={"number": number})

    def _where(self, number: int) -> JsonDict:
        return {"name": self._dataset, "options": self._options, "number": number}
