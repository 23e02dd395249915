"""Tasks with a checkable answer, and sources of tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from itertools import chain
from typing import Protocol

from gradus.core import ConfigError, Message, Task, child_rng, child_seed
from gradus.core.frozen_record import frozen_record
from gradus.core.values import Json, JsonDict
from gradus.rewards.answers import gold_answer

SYSTEM_PROMPT = (
    "Answer the question. Think inside <reasoning> and </reasoning>, then write only the final answer inside <answer> and "
    "</answer>. Write nothing else."
)
_TENTH = 0.1
_QUARTER = 0.25
_SMALL = 400  # questions; a tenth of fewer is too few to prove a gain on
SPLITS = ("train", "in-distribution", "held-out", "harder")
TRAIN_SEEDS = 1_000_000_000  # training task i has this seed plus i; the seeds of conditions lie below


@frozen_record
class Item:
    """One task.

    ``answer``: the gold answer as the data set has it. ``worked``: a solution in words, if there is one.
    ``columns``: what reward functions get by name, as the row has it, ``answer`` among them.
    ``system``: the row's own system prompt; None for that of the data set.
    ``content``: what tells the task apart, if that is not its question.
    ``chat``: the row asks in chat messages.
    ``messages``: what the model is shown in place of the question, if that is more than one message of the user.
    """

    question: str
    answer: str
    worked: str | None = None
    columns: Json = field(default_factory=JsonDict)
    system: str | None = None
    content: str | None = None
    chat: bool = False
    messages: tuple[Message, ...] = ()


class TaskSource(Protocol):
    """A source of tasks. The same split and seed give the same item."""

    @property
    def name(self) -> str: ...

    @property
    def system_prompt(self) -> str: ...

    def item(self, split: str, seed: int) -> Item: ...

    def size(self, split: str) -> int | None:
        """Number of different seeds of a split; None for an endless one."""
        ...


class TableTasks:
    """Rows of a data set in splits. A training seed walks through shuffled epochs; any other is a row's number."""

    def __init__(self, name: str, splits: Mapping[str, Sequence[Item]], *, system_prompt: str = SYSTEM_PROMPT) -> None:
        self.name = name
        self.system_prompt = system_prompt
        self.splits = {split: tuple(items) for split, items in splits.items()}
        self.chats = any(item.chat for items in splits.values() for item in items)

    @property
    def items(self) -> list[Item]:
        """All rows, each once."""
        rows = chain.from_iterable(self.splits.values())
        return list({id(item): item for item in rows}.values())

    def size(self, split: str) -> int:
        """Number of rows."""
        return len(self.splits[split])

    def item(self, split: str, seed: int) -> Item:
        """Returns the row for this seed."""
        rows = self.splits[split]
        if split != "train":
            return rows[seed % len(rows)]
        # Small seeds are training tasks too, for those who count from 0.
        index = seed - TRAIN_SEEDS if seed >= TRAIN_SEEDS else seed
        epoch, place = divmod(index, len(rows))
        return rows[_order(epoch, len(rows))[place]]


@lru_cache(maxsize=4)  # epochs are walked in order
def _order(epoch: int, rows: int) -> list[int]:
    order = list(range(rows))
    child_rng(0, "epoch", epoch).shuffle(order)
    return order


def question_key(question: str) -> str:
    """Returns a question without the case and white space that make no other question of it."""
    return " ".join(question.lower().split())


def example_of(item: Item) -> str:
    """Writes a row as an example in a system prompt; a row whose example the prompt holds is not trained on."""
    return f"Question: {item.question}\nAnswer: {gold_answer(item.answer)}"


def content_of(source: TaskSource) -> Callable[[Task], str]:
    """Returns the function that tells the tasks of a source apart, see :class:`~gradus.core.EnvironmentSpec`."""

    def content(task: Task) -> str:
        item = source.item(task.options["split"], task.seed)
        return question_key(item.question) if item.content is None else item.content

    return content


def prompt_of(item: Item) -> tuple[str | None, str]:
    """Returns the prompt of an item, white space aside: its case may matter ("the code of c"), and so may its system prompt."""
    return item.system, " ".join(item.question.split()) if item.content is None else item.content


def seeds_asked_once(source: TaskSource, split: str, seeds: Sequence[int]) -> list[int]:
    """Returns the first of the seeds for each prompt: a prompt asked twice is one task for an interval over tasks."""
    first: dict[tuple[str | None, str], int] = {}
    for seed in seeds:
        first.setdefault(prompt_of(source.item(split, seed)), seed)
    return list(first.values())


def split_items(
    name: str, items: Sequence[Item], held_out: Sequence[Item] | None = None, *, system_prompt: str, way_out: str = ""
) -> TableTasks:
    """Splits items: a tenth is held out unless ``held_out`` has items, a tenth of the rest is only seen in evaluation.

    A quarter is held out of fewer than 400 questions. At least one of two questions is held out, and at least one is trained on.
    A single question is in every split: it can be audited and evaluated, and training refuses it, because it passes over what
    evaluation asks. ``harder`` is the quarter of the held-out items with the longest questions. ``way_out``: what to do if there
    are too few.
    """
    if held_out is None:
        questions = {question_key(item.question) for item in items}
        share = _QUARTER if len(questions) < _SMALL else _TENTH
        held_out, items = _part(items, "", share, least=1)
        held_out = held_out or items
    unseen, trained = _part(items, "seen ", _TENTH)
    if not trained or not held_out:
        raise ConfigError(
            f"{name} has {len(trained)} rows to train on and {len(held_out)} held out, by what they ask; expected some of both, "
            f"give more questions{way_out}"
        )
    # The first of equal prompts stays, wherever the file has the others.
    different = {prompt_of(item): item for item in reversed(held_out)}.values()
    longest_first = sorted(different, key=lambda item: (-len(item.question), item.question))
    splits = {
        "train": trained,
        # A small file may have no unseen tenth; the held-out rows then stand in.
        "in-distribution": mixed(unseen or held_out),
        "held-out": mixed(held_out),
        "harder": longest_first[: max(len(longest_first) // 4, 1)],
    }
    return TableTasks(name, splits, system_prompt=system_prompt)


def mixed(items: Sequence[Item]) -> list[Item]:
    """Orders items so that the first n of them are like all: each answer in its share, in a random order that no file order moves.

    Files are often sorted by their label; the first 200 rows of one would be judged on a few labels alone.
    """
    by_answer: dict[str, list[Item]] = {}
    # By the hash of the question, so that the order of the file does not matter.
    for item in sorted(items, key=lambda item: share_of("order " + item.question)):
        by_answer.setdefault(item.answer, []).append(item)
    placed: list[tuple[float, Item]] = []
    for answer, alike in by_answer.items():
        # Without it the first places of all answers would fall together.
        offset = share_of("offset " + answer)
        placed += [((place + offset) / len(alike), item) for place, item in enumerate(alike)]
    placed.sort(key=lambda pair: pair[0])
    return [item for _, item in placed]


def _part(items: Sequence[Item], key: str, portion: float, *, least: int = 0) -> tuple[list[Item], list[Item]]:
    """Parts about this portion of the items from the rest, by what they ask, so that added items move no other.

    The part has at least ``least`` of the questions, those with the smallest hash; the rest has at least one.
    """
    shares = [share_of(key + item.question) for item in items]
    in_order = sorted(set(shares))
    limit = max([portion, *in_order[: least + 1]])
    limit = min([limit, *in_order[-1:]])
    parts: tuple[list[Item], list[Item]] = [], []
    for item, share in zip(items, shares, strict=True):
        parts[share >= limit].append(item)
    return parts


def share_of(text: str) -> float:
    """Returns a number in [0, 1) that depends on the question alone, to split a data set so that added rows move no other."""
    return child_seed(0, "split", question_key(text)) / 2**128
