"""A task with a checkable answer, and where tasks come from."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gradus.core import ConfigError, Message, Task, child_rng, child_seed
from gradus.core.printing import quiet
from gradus.environments.verifiable.telling import told

SYSTEM_PROMPT = (
    "Answer the question. Think inside <reasoning> and </reasoning>, then write only the final answer inside <answer> and "
    "</answer>. Write nothing else."
)
SPLITS = ("train", "in-distribution", "held-out", "harder")
TRAIN_SEEDS = 1_000_000_000  # training task i has this seed plus i; the seeds of conditions lie below


@dataclass(frozen=True, kw_only=True)
class Item:
    """One task. ``answer`` is the gold answer as the data set has it; ``worked`` a solution in words, if there is one.

    ``columns`` reach the reward functions by name, as the row has them, ``answer`` among them. ``system``: the row's own system prompt; None for that of
    the data set. ``content``: what tells the task apart, if that is not its question. ``chat``: the row asks in chat messages.
    ``messages``: what the model is shown in place of the question, if that is more than one message of the user.
    """

    question: str
    answer: str
    worked: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    system: str | None = None
    content: str | None = None
    chat: bool = False
    messages: tuple[Message, ...] = ()


class TaskSource(Protocol):
    """Where tasks come from. The same split and seed give the same item."""

    @property
    def name(self) -> str: ...

    @property
    def system_prompt(self) -> str: ...

    def item(self, split: str, seed: int) -> Item: ...

    def size(self, split: str) -> int | None:
        """How many different seeds a split has; None for no end."""
        ...


def read_messages(cell: Any) -> tuple[str, str | None]:
    """Question and system prompt of a cell: text, or chat messages. Turns before the last stand in the question, as an example.

    >>> read_messages([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}])
    ('2 + 2?', 'Be brief.')
    """
    if not is_chat(cell):
        if isinstance(cell, list | Mapping):
            raise ConfigError(
                f"the question is a {type(cell).__name__} and no chat; expected text, or messages such as "
                "[{'role': 'user', 'content': ...}]"
            )
        return ("" if cell is None else str(cell).strip()), None
    if any(each.get("tool_calls") for each in cell):
        raise ConfigError(
            "a message of the question calls a tool, which a question in words cannot show; leave the row out"
        )
    if odd := next((each for each in cell if "role" not in each or "content" not in each), None):
        raise ConfigError(f"a message of the question has {', '.join(map(str, odd))}; expected role and content")
    if cell[-1]["role"] == "assistant":
        raise ConfigError(
            "the question ends with what the assistant says, so it would hold the answer; put the messages before it and the "
            "answer into columns of their own"
        )
    messages = [(str(each["role"]), read_content(each["content"]).strip()) for each in cell]
    system = "\n\n".join(text for role, text in messages if role in ("system", "developer")) or None
    *shots, (_, question) = [each for each in messages if each[0] not in ("system", "developer")] or [("user", "")]
    shown = "".join(f"{role.capitalize()}: {text}\n\n" for role, text in shots)
    return shown + question, system


def is_chat(cell: Any) -> bool:
    """Whether a cell is chat messages, one at least."""
    return isinstance(cell, list) and bool(cell) and all(isinstance(each, Mapping) for each in cell)


def _chat_in(text: str) -> list[Any] | None:
    """The messages that a text holds, as JSON or as Python writes them, which pandas does; None if it holds none."""
    if not text.lstrip().startswith("[") or "role" not in text:
        return None
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        try:
            read = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
    return read if is_chat(read) and all("role" in each and "content" in each for each in read) else None


def cell_text(cell: Any) -> str:
    """A cell as text; the last of chat messages."""
    if is_chat(cell):
        return read_content(cell[-1].get("content")).strip()
    return "" if cell is None else str(cell).strip()


def plain(cell: Any) -> Any:
    """A cell as JSON has it: tables hold lists as arrays, CSV files chats as text, and what is missing is NaN. None if it is missing."""
    if isinstance(cell, str):
        return _chat_in(cell) or cell
    if hasattr(cell, "tolist"):  # arrays and numbers of numpy
        cell = cell.tolist()
    if isinstance(cell, Mapping):
        return {key: plain(each) for key, each in cell.items()}
    if isinstance(cell, list | tuple):
        return [plain(each) for each in cell]
    missing = (isinstance(cell, float) and cell != cell) or type(cell).__name__ in ("NAType", "NaTType")
    return None if missing else cell


def named_rows(table: Any, column: str) -> list[Mapping[str, Any]]:
    """The rows of a table; classes of the library datasets in ``column`` as their names, which is said on standard error."""
    rows: list[Mapping[str, Any]] = list(told(table, "rows taken from the table"))
    classes: Any = (getattr(table, "features", None) or {}).get(column)
    if type(classes).__name__ != "ClassLabel":
        return rows
    if not quiet():
        print(f"{column}: classes are taken by their names: {', '.join(classes.names)}", file=sys.stderr)
    return [{**row, column: classes.names[row[column]] if _is_class(row[column]) else None} for row in rows]


def _is_class(cell: Any) -> bool:
    return cell is not None and cell >= 0  # the library has -1 for a row without a class


def read_gold(cell: Any) -> tuple[str, Any]:
    """A gold answer as text, and as reward functions get it: the text of the last chat message, or the cell as it is."""
    cell = plain(cell)
    text = cell_text(cell)
    return text, text if is_chat(cell) else cell


def read_content(content: Any) -> str:
    """The text of a message: a text, or a list of parts of the type text. Raises ConfigError for parts of another type."""
    if not isinstance(content, list):
        return str(content or "")
    other = [each for each in content if not isinstance(each, str | Mapping) or not isinstance(_part(each), str)]
    if other:
        kind = other[0].get("type") if isinstance(other[0], Mapping) else type(other[0]).__name__
        raise ConfigError(f"a message has a part of the type {kind!r}; expected parts of the type 'text' alone")
    return "".join(map(_part, content))


def _part(part: Any) -> Any:
    return part if isinstance(part, str) else part.get("text") if part.get("type", "text") == "text" else None


def row_item(where: str, cell: Any, *, answer: str, columns: Mapping[str, Any], worked: str | None = None) -> Item:
    """The task of a row. ``cell`` is its question. Raises ConfigError that begins with ``where`` if it cannot be asked or stored."""
    try:
        if other := [key for key in columns if not isinstance(key, str)]:
            raise ConfigError(f"column names are texts, got {other[0]!r}; rename the column")
        asked = plain(cell)
        question, system = read_messages(asked)
        if not question:
            raise ConfigError("the question is empty; leave the row out")
        json.dumps([question, system, answer, worked, columns], ensure_ascii=False, default=str, skipkeys=True).encode()
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise ConfigError(
            f"{where} holds {half!a}, half of a character, which no file can hold; mend the row"
        ) from error
    return Item(question=question, answer=answer, worked=worked, columns=columns, system=system, chat=is_chat(asked))


class TableTasks:
    """Rows of a data set in splits. A training seed walks through shuffled epochs; any other is a row's number."""

    def __init__(self, name: str, splits: Mapping[str, Sequence[Item]], *, system_prompt: str = SYSTEM_PROMPT) -> None:
        self.name = name
        self.system_prompt = system_prompt
        self.splits = {split: tuple(items) for split, items in splits.items()}
        self.chats = any(item.chat for items in splits.values() for item in items)
        self._orders: dict[int, list[int]] = {}

    def size(self, split: str) -> int:
        """Number of rows."""
        return len(self.splits[split])

    def item(self, split: str, seed: int) -> Item:
        """The row for this seed; raises ConfigError for a split that is not there or empty."""
        rows = self.splits[split]
        if split != "train":
            return rows[seed % len(rows)]
        epoch, place = divmod(seed - TRAIN_SEEDS if seed >= TRAIN_SEEDS else seed, len(rows))
        return rows[self._order(epoch)[place]]

    def _order(self, epoch: int) -> list[int]:
        if epoch not in self._orders:
            order = list(range(len(self.splits["train"])))
            child_rng(0, "epoch", epoch).shuffle(order)
            self._orders = {epoch: order}  # one at a time: epochs are walked in order
        return self._orders[epoch]


def question_key(question: str) -> str:
    """What a question asks, by which tasks are told apart: neither case nor white space makes another question of it."""
    return " ".join(question.lower().split())


def content_of(source: TaskSource) -> Callable[[Task], str]:
    """What tells the tasks of a source apart, see :class:`~gradus.core.EnvironmentSpec`."""

    def content(task: Task) -> str:
        item = source.item(task.options["split"], task.seed)
        return question_key(item.question) if item.content is None else item.content

    return content


def prompt_of(item: Item) -> tuple[str | None, str]:
    """What the model is asked, white space aside: its case may matter ("the code of c"), and a system prompt may say in which language."""
    return item.system, " ".join(item.question.split()) if item.content is None else item.content


def seeds_asked_once(source: TaskSource, split: str, seeds: Sequence[int]) -> list[int]:
    """The first of the seeds for each prompt: what is asked twice is one task for an interval over tasks."""
    first: dict[tuple[str | None, str], int] = {}
    for seed in seeds:
        first.setdefault(prompt_of(source.item(split, seed)), seed)
    return list(first.values())


def share_of(text: str) -> float:
    """A number in [0, 1) that depends on what is asked alone, to split a data set so that added rows move no other."""
    return child_seed(0, "split", question_key(text)) / 2**128
