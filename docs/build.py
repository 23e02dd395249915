"""Check the docs: every relative link leads somewhere, and every shell example names a command that exists."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from typer.main import get_command

from gradus.cli.app import app
from gradus.cli.commands import attach

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)#:\s]+)(#[^)]*)?\)")
COMMAND = re.compile(r"^\s*(?:\.venv/bin/)?gradus ([a-z][a-z-]*)", re.MULTILINE)


def main() -> int:
    """Print what is wrong; the exit code is the number of faults, at most 1."""
    attach(app)
    known = set(getattr(get_command(app), "commands", {}))
    faults: list[str] = []
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/gradus/recipes/*.md")]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for target, _ in LINK.findall(text):
            if not (page.parent / target).exists():
                faults.append(f"{page.relative_to(ROOT)}: no {target}")
        faults.extend(
            f"{page.relative_to(ROOT)}: no command gradus {name}" for name in COMMAND.findall(text) if name not in known
        )
    for fault in faults:
        print(fault)
    print(f"{len(pages)} pages, {len(faults)} faults")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
