"""Every test that a promise of CONTRIBUTING.md names exists."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_promise_has_its_test():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    assert len(named) >= 15
    missing = [f"{file}::{test}" for file, test in named if not _defines(ROOT / file, test)]
    assert not missing


def _defines(file: Path, test: str) -> bool:
    return file.is_file() and f"def {test}(" in file.read_text(encoding="utf-8")
