"""The pages: links, commands, blocks that run as printed, and the reference that is made from the code."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = runpy.run_path(str(ROOT / "docs/blocks.py"))
LINKS = runpy.run_path(str(ROOT / "docs/links.py"))
WORD = re.compile(r"\S*\w\S*")  # the bars of a table are none
HAND_WRITTEN, ALL = 20_000, 40_000  # words
_GENERATED = ("reference", "leaderboard.md")
_RUNS = [page for page in BLOCKS["pages"]() if any(block.reason is None for block in BLOCKS["blocks"](page))]


def test_pages_show_what_exists_and_the_reference_is_that_of_the_code() -> None:
    done = subprocess.run([sys.executable, "docs/build.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, (
        f"run docs/reference.py if a page of the reference is out of date:\n{done.stdout}{done.stderr}"
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", _RUNS, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run_as_printed_in_an_empty_folder(page: Path) -> None:
    assert BLOCKS["run"](page) is None


def test_a_page_with_a_block_that_does_not_run_is_named(tmp_path: Path) -> None:
    page = ROOT / "docs/none.md"
    good = '```python title="mine.py"\nX = 1\n```\n\n```python\nfrom mine import X\n```\n'
    for text, fault in ((good, None), (good + "\n```python\nassert X == 2\n```\n", "AssertionError")):
        page.write_text(text, encoding="utf-8")
        try:
            found = BLOCKS["run"](page)
        finally:
            page.unlink()
        assert found is None if fault is None else fault in found


def test_dead_links_of_a_site_are_found(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "index.html").write_text(
        '<h1 id="top"></h1><a href="deep/">x</a><a href="#top">x</a><a href="https://a.b">x</a>'
    )
    (tmp_path / "deep/index.html").write_text('<a href="../#top">x</a><a href="../#none">x</a><img src="no.png">')
    assert list(LINKS["dead_links"](tmp_path)) == [
        "deep/index.html: dead link ../#none",
        "deep/index.html: dead link no.png",
    ]


def test_the_pages_are_short() -> None:
    words = {page: len(WORD.findall(page.read_text(encoding="utf-8"))) for page in ROOT.glob("docs/**/*.md")}
    by_hand = sum(count for page, count in words.items() if not {page.name, page.parent.name} & set(_GENERATED))
    assert by_hand <= HAND_WRITTEN
    assert sum(words.values()) <= ALL
