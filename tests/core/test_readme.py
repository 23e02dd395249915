"""The README runs as printed in an empty folder, and stays short."""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCKS = runpy.run_path(str(ROOT / "docs/blocks.py"))
README = ROOT / "README.md"


def test_the_readme_runs_as_printed():
    assert sum(block.reason is None for block in BLOCKS["blocks"](README)) >= 3
    assert BLOCKS["run"](README) is None


def test_the_readme_is_short_and_has_few_figures():
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert len(re.findall(r"\d\.\d", text)) <= 15
