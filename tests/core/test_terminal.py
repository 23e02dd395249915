"""What others wrote is printed as it is, and obeyed by nothing."""

import io
from typing import Any

import pytest
from rich.table import Table

from gradus.core.printing import printable
from gradus.core.terminal import Terminal


class _File(io.StringIO):
    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def write(self, text: str) -> int:
        text.encode(self._encoding)  # raises as the file would
        return super().write(text)


def _printed(*values: Any, encoding: str = "utf-8", width: int = 60) -> str:
    file = _File(encoding)
    console = Terminal(file=file, width=width)
    for value in values:
        console.print(value)
    return file.getvalue()


def test_brackets_and_colons_are_no_markup() -> None:
    table = Table("f1[macro]", "[/red]", title="[/x]")
    table.add_row("[bold]a", ":smile:")
    said = _printed(table, "a [/b] :x:")
    assert all(each in said for each in ("f1[macro]", "[/red]", "[/x]", "[bold]a", ":smile:", "a [/b] :x:"))


def test_control_characters_are_shown_and_not_obeyed() -> None:
    said = _printed("a\x1b[2Jb\x00\x9b1m\tc\nd")
    assert "\x1b" not in said
    assert "\x00" not in said
    assert "\x9b" not in said
    assert "a␛[2Jb␀" in said
    assert printable("line\n\tindented") == "line\n\tindented"


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_no_character_ends_a_run(encoding: str) -> None:
    table = Table("שלום", "reward")
    table.add_row("🦊", "−0.48")
    assert "?0.48" in _printed(table, encoding=encoding)


def test_a_word_longer_than_its_column_is_not_cut() -> None:
    table = Table("name", box=None)
    table.add_row("openenv:ws://localhost:8000/and/so/on")
    said = _printed(table, width=20)
    assert "".join(said.split()) == "nameopenenv:ws://localhost:8000/and/so/on"
