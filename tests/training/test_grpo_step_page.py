"""The page that leads through a GRPO step names files and functions that exist, and at most eight files."""

from __future__ import annotations

import re
from functools import reduce
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]


def rows() -> list[tuple[str, str]]:
    """File and name of each row; a row without a file belongs to the one above."""
    page = (ROOT / "docs" / "grpo_step.md").read_text(encoding="utf-8")
    matches = re.findall(r"^\| (?:`(\S+\.py)`)? ?\| `([\w.]+)` \|", page, re.MULTILINE)
    listed: list[tuple[str, str]] = []
    for file, name in matches:
        listed.append((file or listed[-1][0], name))
    return listed


def test_every_name_exists_in_its_file() -> None:
    assert len(rows()) >= 12
    for file, name in rows():
        module = import_module("gradus." + file.removesuffix(".py").replace("/", "."))
        thing = reduce(getattr, name.split("."), module)
        source = (ROOT / "src" / "gradus" / file).read_text(encoding="utf-8")
        last = name.rpartition(".")[2]
        assert re.search(rf"^\s*(def|class) {last}\b|^{last}\b", source, re.MULTILINE), (file, name, thing)


def test_eight_files_are_enough() -> None:
    assert len({file for file, _ in rows()}) == 8
