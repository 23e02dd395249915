"""Reads rows as people have them: columns, chat messages, tables of pandas, splits of a data set."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeGuard, cast

from gradus.core import ConfigError
from gradus.core.frozen_record import frozen_record
from gradus.core.printing import quiet
from gradus.core.values import Json, JsonDict, check_unicode, plain
from gradus.environments.verifiable.items import Item

Row = Json
QUESTIONS = ("question", "prompt", "problem", "query", "instruction", "text")
# Names that mean the right answer; the last ones are those of data for SFT.
ANSWERS = (
    *("answer", "solution", "target", "gold", "ground_truth", "correct_answer", "answerkey", "label"),
    *("reference", "expected", "completion", "output"),
)
_LONGEST = 2**20  # letters of a cell
_SYSTEM_ROLES = ("system", "developer")


@frozen_record
class Columns:
    """The columns of a table of rows. ``answer`` is empty if the rows have no gold answers; ``worked`` need not be there."""

    question: str
    answer: str
    worked: str = "worked"


def gold_column(rows: Sequence[Row]) -> str | None:
    """Returns ``answer`` if a row has it, else the first column of a usual name in which every row has an answer; else None.

    >>> gold_column([{"prompt": "2 + 2?", "solution": "4"}]), gold_column([{"prompt": "2 + 2?", "category": "sums"}])
    ('solution', None)
    """
    if any("answer" in row for row in rows):
        return "answer"
    names = _by_lower_case(rows[0]) if rows else {}
    for usual in ANSWERS:
        name = names.get(usual)
        if name is not None and all(cell_text(plain(row.get(name))) for row in rows):
            return name
    return None


def _by_lower_case(row: Row) -> dict[str, str]:
    """Columns by their names in small letters; of two that differ in case the first one stays."""
    return {str(name).lower(): name for name in reversed(list(row))}


def question_column(rows: Sequence[Row]) -> str | None:
    """Returns the column of a usual name that holds the questions, or that of chat messages; None without one.

    An instruction with an ``input`` of its own beside it is half of a question, so it is none.

    >>> question_column([{"Problem": "2 + 2?", "solution": "4"}]), question_column([{"a": 1}])
    ('Problem', None)
    """
    names = _by_lower_case(rows[0])
    column = next((names[name] for name in QUESTIONS if name in names), None)
    if column is None and is_chat(plain(rows[0].get("messages"))):
        return "messages"
    if column == names.get("instruction") and any(row.get(names.get("input", "")) for row in rows):
        return None
    return column


def _ends_with_answer(cell: Any) -> bool:
    """True for chat messages of which the last is the assistant's."""
    return is_chat(cell) and cell[-1].get("role") == "assistant"


@cache
def tell_column(place: str, column: str, way_out: str) -> None:
    """Says once on standard error which column was taken, if it has another name than ``answer``."""
    if column != "answer" and not quiet():
        print(f"{place}: gold answers are taken from the column {column!r}; {way_out}", file=sys.stderr)


def usual_columns(
    rows: Sequence[Row], place: str, way_out: str, *, question: str | None = None, answer: str | None = None
) -> Columns:
    """Finds the columns of rows by their usual names, if they are not named. ``way_out``: what to do if they are others."""
    question = question or question_column(rows) or "question"
    if answer is None:
        answer = gold_column(rows) or ""
        if not answer and _ends_with_answer(plain(rows[0].get(question))):
            answer = question
        tell_column(place, answer or "answer", way_out)
    return Columns(question=question, answer=answer)


def read_items(rows: Sequence[Row], columns: Columns, *, place: str = "", way_out: str = "") -> list[Item]:
    """Makes the tasks of rows. Raises ConfigError that names the row if it has no question, or the column that is missing.

    ``way_out``: how columns are mapped, with FIRST and LAST for the columns that the example names.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    needed = [columns.question, columns.answer]
    # The usual name may be missing; one that was named must be there.
    if columns.worked != "worked":
        needed.append(columns.worked)
    missing = [name for name in needed if name and name not in names]
    if missing:
        answer = columns.answer if columns.answer in names else names[-1]
        example = way_out.replace("FIRST", names[0]).replace("LAST", answer)
        raise ConfigError(
            f"no row of {place or 'the data'} has a column {missing[0]!r}, only {', '.join(names)}{example}"
        )
    items: list[Item] = []
    for number, row in enumerate(rows, 1):
        try:
            # Rows of JSONL may leave columns out, and reward functions take all by name.
            items.append(_item({**dict.fromkeys(names), **row}, columns))
        except ConfigError as error:
            raise ConfigError(f"{place} row {number}: {error}".lstrip()) from error
    return items


def check_answers(items: Sequence[Item], place: str) -> None:
    """Raises ConfigError that names the first item without an answer: a teacher would teach an empty one."""
    missing = [number for number, item in enumerate(items, 1) if not item.answer]
    if missing:
        raise ConfigError(
            f"{place}row {missing[0]} has no answer, as {len(missing)} of its {len(items)} rows; leave these rows out, or give "
            "all an answer"
        )


def _item(row: Row, columns: Columns) -> Item:
    """Makes the task of a row, which has all columns: reward functions get each of them by name."""
    prompt = plain(row[columns.question])
    # A chat that ends with its answer is question and answer in one column.
    if columns.question == columns.answer and is_chat(prompt):
        prompt = prompt[:-1]  # the last message is the answer
    question, system = read_messages(prompt)
    if not question:
        raise ConfigError("the question is empty; leave the row out")
    gold = plain(row[columns.answer]) if columns.answer else None
    answer = cell_text(gold)
    values = dict(row)
    for name, cell in values.items():
        _check_cell(name, cell)
    if columns.answer:
        # Whatever the column is called, reward functions find it as answer.
        values["answer"] = answer if is_chat(gold) else gold
    return Item(
        question=question,
        answer=answer,
        worked=cell_text(plain(row.get(columns.worked))) or None,
        columns=values,
        system=system,
        chat=is_chat(prompt),
    )


def _check_cell(name: str, cell: Any) -> None:
    """Raises ConfigError for a text that cannot be stored, or that no model reads."""
    text = cell_text(cell) if isinstance(cell, str) or is_chat(cell) else ""
    try:
        check_unicode(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None
    if len(text) > _LONGEST:
        raise ConfigError(
            f"{name} has {len(text)} letters, expected at most {_LONGEST}; shorten it, or leave the row out"
        )


def list_rows(data: Any) -> list[Row]:
    """Returns the rows of a list, of a data set or of a table of pandas. Raises ConfigError for anything else."""
    rows: list[Any] = []
    kind = type(data).__name__
    if hasattr(data, "iterrows"):
        # What is missing is None, not NaN, which no column of numbers can hold.
        rows = data.astype(object).where(data.notna(), None).to_dict("records")
    # Data sets of Hugging Face are no lists, but they have places.
    elif isinstance(data, Iterator) or (hasattr(data, "__getitem__") and not isinstance(data, str | Mapping)):
        rows = list(cast(Iterator[Any], data))
    if rows and all(isinstance(row, Mapping) for row in rows):
        return rows
    hint = ""
    if isinstance(data, Mapping):
        for name, table in cast(Mapping[Any, Any], data).items():
            if hasattr(table, "column_names"):
                hint = f"; give one of its splits, as in data[{name!r}]"
                break
    elif isinstance(data, list) and not data:
        hint = " without rows"
    raise ConfigError(
        "data is the name of an environment, a file, or a list of rows such as {'question': ..., 'answer': ...}, got "
        f"{kind}{hint}"
    )


# -- cells ----------------------------------------------------------------------------------------------------------


def cell_text(cell: Any) -> str:
    """Returns a cell as text: the last of chat messages, JSON for other lists and objects."""
    if is_chat(cell) and "content" in cell[-1]:
        return read_content(cell[-1]["content"]).strip()
    if isinstance(cell, list | Mapping):
        return json.dumps(cast(Any, cell), ensure_ascii=False)
    return "" if cell is None else str(cell).strip()


def is_chat(cell: Any) -> TypeGuard[list[JsonDict]]:
    """True for chat messages, one at least."""
    parts = cast(list[Any], cell) if isinstance(cell, list) else []
    return bool(parts) and all(isinstance(part, Mapping) for part in parts)


def read_messages(cell: Any) -> tuple[str, str | None]:
    """Reads question and system prompt of a cell: text, or chat messages. Turns before the last stand in the question, as an example.

    >>> read_messages([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}])
    ('2 + 2?', 'Be brief.')
    """
    if not is_chat(cell):
        if isinstance(cell, list | Mapping):
            raise ConfigError(
                f"the question is a {type(cast(Any, cell)).__name__} and no chat; expected text, or messages such as "
                "[{'role': 'user', 'content': ...}]"
            )
        return cell_text(cell), None
    for message in cell:
        if message.get("tool_calls") or not message.keys() >= {"role", "content"}:
            raise ConfigError(
                f"a message of the question has {', '.join(message)}; expected role and content, and no calls"
            )
    # Otherwise the model would be shown what it is asked for.
    if cell[-1]["role"] == "assistant":
        raise ConfigError(
            "the question ends with what the assistant says, so it would hold the answer; put the messages before it and the "
            "answer into columns of their own"
        )
    messages = [(str(message["role"]), read_content(message["content"]).strip()) for message in cell]
    systems = [text for role, text in messages if role in _SYSTEM_ROLES]
    # Earlier turns are examples; the last one asks.
    turns = [message for message in messages if message[0] not in _SYSTEM_ROLES] or [("user", "")]
    examples = [f"{role.capitalize()}: {text}" for role, text in turns[:-1]]
    return "\n\n".join([*examples, turns[-1][1]]), "\n\n".join(systems) or None


def read_content(content: Any) -> str:
    """Returns the text of a message: a text, or a list of parts of the type text. Raises ConfigError for parts of another type."""
    if not isinstance(content, list):
        return str(content or "")
    texts: list[str] = []
    for part in cast(list[Any], content):
        kind = "text" if isinstance(part, str) else type(part).__name__
        if isinstance(part, dict):
            fields = cast(JsonDict, part)
            kind = fields.get("type", "text")
            part = fields.get("text")
        if kind != "text" or not isinstance(part, str):
            raise ConfigError(f"a message has a part of the type {kind!r}; expected parts of the type 'text' alone")
        texts.append(part)
    return "".join(texts)
