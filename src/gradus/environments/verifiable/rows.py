"""Reads rows as people have them: columns, chat messages, cells of tables, classes of a data set."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from gradus.core import ConfigError
from gradus.core.printing import quiet
from gradus.environments.verifiable.items import Item

Row = Mapping[str, Any]
QUESTIONS = ("question", "prompt", "text")
# Names that mean the right answer and nothing else.
ANSWERS = ("answer", "solution", "target", "gold", "ground_truth", "correct_answer", "answerkey", "label")


@dataclass(frozen=True, kw_only=True)
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
    names = {str(name).lower(): name for name in reversed(list(rows[0]))} if rows else {}
    usual = [names[name] for name in ANSWERS if name in names]
    return next((name for name in usual if all(cell_text(plain(row.get(name))) for row in rows)), None)


@cache
def tell_column(place: str, column: str, way_out: str) -> None:
    """Says once on standard error which column was taken, if it has another name than ``answer``."""
    if column != "answer" and not quiet():
        print(f"{place}: gold answers are taken from the column {column!r}; {way_out}", file=sys.stderr)


def usual_columns(
    rows: Sequence[Row], place: str, way_out: str, *, question: str | None = None, answer: str | None = None
) -> Columns:
    """Finds the columns of rows by their usual names, if they are not given. ``way_out``: what to do if they are others."""
    question = question or next((name for name in QUESTIONS if name in rows[0]), "question")
    if answer is None:
        answer = gold_column(rows) or ""
        tell_column(place, answer or "answer", way_out)
    return Columns(question=question, answer=answer)


def read_items(rows: Sequence[Row], columns: Columns, *, place: str = "", way_out: str = "") -> list[Item]:
    """Makes the tasks of rows. Raises ConfigError that names the row if it has no question, or the column that is missing.

    ``way_out``: how columns are mapped, with FIRST and LAST for the columns that the example names.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    if other := next((name for name in names if not isinstance(name, str)), None):
        raise ConfigError(f"column names are texts, got {other!r}; rename the column")
    wanted = [columns.question, columns.answer, *([] if columns.worked == "worked" else [columns.worked])]
    if missing := next((name for name in wanted if name and name not in names), None):
        first, *_, last = [*names, *names]
        example = way_out.replace("FIRST", first).replace("LAST", last)
        raise ConfigError(f"no row of {place or 'the data'} has a column {missing!r}, only {', '.join(names)}{example}")
    items: list[Item] = []
    for number, row in enumerate(rows, 1):
        try:
            items.append(_item({**dict.fromkeys(names), **row}, columns))
        except ConfigError as error:
            raise ConfigError(f"{place} row {number}: {error}".lstrip()) from error
    return items


def _item(row: Row, columns: Columns) -> Item:
    """Makes the task of a row, which has all columns: reward functions get each of them by name."""
    asked = plain(row[columns.question])
    if columns.question == columns.answer and is_chat(asked):
        asked = asked[:-1]  # the last message is the answer
    question, system = read_messages(asked)
    if not question:
        raise ConfigError("the question is empty; leave the row out")
    own = plain(row[columns.answer]) if columns.answer else None
    answer = cell_text(own)
    return Item(
        question=question,
        answer=answer,
        worked=cell_text(plain(row.get(columns.worked))) or None,
        columns={**row, **({"answer": answer if is_chat(own) else own} if columns.answer else {})},
        system=system,
        chat=is_chat(asked),
    )


def list_rows(data: Any) -> list[Row]:
    """Returns the rows of a list, of a data set or of a table of pandas. Raises ConfigError for anything else."""
    rows: Any = data
    if hasattr(data, "iterrows"):
        rows = data.to_dict("records")
    listed = hasattr(rows, "__getitem__") and hasattr(rows, "__len__") and not isinstance(rows, str | Mapping)
    rows = list(rows) if listed or isinstance(rows, Iterator) else []
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        splits = (
            [key for key, each in data.items() if hasattr(each, "column_names")] if isinstance(data, Mapping) else []
        )
        way_out = f"; give one of its splits, as in data[{splits[0]!r}]" if splits else ""
        raise ConfigError(
            "data is the name of an environment, a file, or a list of rows such as {'question': ..., 'answer': ...}, got "
            f"{type(data).__name__}{'' if rows or not listed else ' without rows'}{way_out}"
        )
    return rows


# -- cells ----------------------------------------------------------------------------------------------------------


def plain(cell: Any) -> Any:
    """Returns a cell as JSON has it: tables hold lists as arrays and what is missing as NaN. None if it is missing."""
    if hasattr(cell, "tolist"):  # arrays and numbers of numpy
        cell = cell.tolist()
    if isinstance(cell, Mapping):
        return {key: plain(each) for key, each in cell.items()}
    if isinstance(cell, list | tuple):
        return [plain(each) for each in cell]
    missing = (isinstance(cell, float) and cell != cell) or type(cell).__name__ in ("NAType", "NaTType")
    return None if missing else cell


def cell_text(cell: Any) -> str:
    """Returns a cell as text: the last of chat messages, JSON for other lists and objects."""
    if is_chat(cell) and "content" in cell[-1]:
        return read_content(cell[-1]["content"]).strip()
    if isinstance(cell, list | Mapping):
        return json.dumps(cell, ensure_ascii=False, default=str)
    return "" if cell is None else str(cell).strip()


def is_chat(cell: Any) -> bool:
    """True for chat messages, one at least."""
    return isinstance(cell, list) and bool(cell) and all(isinstance(each, Mapping) for each in cell)


def read_messages(cell: Any) -> tuple[str, str | None]:
    """Reads question and system prompt of a cell: text, or chat messages. Turns before the last stand in the question, as an example.

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
    if odd := next(
        (each for each in cell if "role" not in each or "content" not in each or each.get("tool_calls")), None
    ):
        raise ConfigError(
            f"a message of the question has {', '.join(map(str, odd))}; expected role and content, and no calls"
        )
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


def read_content(content: Any) -> str:
    """Returns the text of a message: a text, or a list of parts of the type text. Raises ConfigError for parts of another type."""
    if not isinstance(content, list):
        return str(content or "")
    return "".join(map(_part, content))


def _part(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type", "text") == "text" else part
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise ConfigError(f"a message has a part of the type {kind!r}; expected parts of the type 'text' alone")
    return text
