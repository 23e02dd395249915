"""The pages that lead through a GRPO step and along a reward name files and functions that exist, and few files."""

import re
from functools import reduce
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def rows(page: str) -> list[tuple[str, str]]:
    """File and name of each row; a row without a file belongs to the one above."""
    text = (ROOT / "src/gradus" / page).read_text(encoding="utf-8")
    listed: list[tuple[str, str]] = []
    for file, name in re.findall(r"^\| (?:`(\S+\.py)`)? ?\| `([\w.]+)` \|", text, re.MULTILINE):
        listed.append((file or listed[-1][0], name))
    return listed


@pytest.mark.parametrize("page", ["training/README.md", "rewards/README.md"])
def test_every_name_exists_in_its_file(page: str) -> None:
    assert len(rows(page)) >= 12
    for file, name in rows(page):
        module = import_module("gradus." + file.removesuffix(".py").replace("/", "."))
        thing = reduce(getattr, name.split("."), module)
        source = (ROOT / "src" / "gradus" / file).read_text(encoding="utf-8")
        last = name.rpartition(".")[2]
        assert re.search(rf"^\s*(def|class) {last}\b|^{last}\b", source, re.MULTILINE), (file, name, thing)


@pytest.mark.parametrize(("page", "files"), [("training/README.md", 9), ("rewards/README.md", 8)])
def test_few_files_are_enough(page: str, files: int) -> None:
    assert len({file for file, _ in rows(page)}) == files


def test_a_reward_climbs_once() -> None:
    """A run is data, then stages: the stages know the recipe, and the recipe knows no stage."""
    rooms = [file.split("/")[0] for file, _ in rows("rewards/README.md")]
    walk = [room for place, room in enumerate(rooms) if place == 0 or rooms[place - 1] != room]
    assert len(walk) <= 12
    order = ["commands", "runs", "training", "rollouts", "rewards", "algorithms"]
    climbs = [(a, b) for a, b in pairwise(walk) if order.index(b) < order.index(a)]
    assert len(climbs) == 1
