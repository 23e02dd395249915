"""Check the docs and build the site.

Every relative link must lead somewhere, every block of code must have a language, every block must parse, every example must name a command, and options
of it, that exist, the generated reference must be up to date, mkdocs must build without a warning, and no link of the HTML may be dead. ``--check`` leaves the site out.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import blocks
from cyclopts import App
from links import dead_links
from reference import inner, shown

from gradus.commands.app import app

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)#:\s]+)(#[^)]*)?\)")
LINE = re.compile(r"^\s*(?:\.venv/bin/)?(gradus [a-z][^\n]*)", re.MULTILINE)  # in a block
INLINE = re.compile(r"`(?:\.venv/bin/)?(gradus [a-z][^`]*)`")

_ANYWHERE = {"--help", "--version", "--json", "--quiet", "--verbose"}


def main() -> int:
    """Print what is wrong; the exit code is the number of faults, at most 1."""
    faults: list[str] = []
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.md")]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        result = [f"no {target}" for target, _ in LINK.findall(text) if not (page.parent / target).exists()]
        result.extend(f"no language on the block in line {line}" for line in _bare(text))
        joined = text.replace("\\\n", " ")  # a command that goes on in the next line
        past = page.name in ("CHANGELOG.md", "learned.md")  # which name commands that are gone
        for example in () if past else (*LINE.findall(joined), *INLINE.findall(joined)):
            result.extend(_wrong(app, example))
        result.extend(blocks.malformed(page))
        faults.extend(f"{page.relative_to(ROOT)}: {fault}" for fault in result)
    for fault in faults:
        print(fault)
    print(f"{len(pages)} pages, {len(faults)} faults")
    stale = subprocess.run([sys.executable, str(ROOT / "docs/reference.py"), "--check"], check=False).returncode
    if faults or stale or "--check" in sys.argv:
        return int(bool(faults or stale))
    return _build(ROOT / "build/site")


def _build(site: Path) -> int:
    """Builds the site and prints its dead links; returns the exit code."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    built = subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=False)
    dead = list(dead_links(site)) if built.returncode == 0 else []
    for line in dead:
        print(line)
    return built.returncode or int(bool(dead))


def _bare(text: str) -> Iterator[int]:
    """Yields the lines in which a block of code without a language begins."""
    fences = [(line, rest) for line, rest in enumerate(text.splitlines(), 1) if rest.lstrip().startswith("```")]
    yield from (line for line, rest in fences[::2] if not rest.lstrip().strip("`"))


def _wrong(root: App, example: str) -> Iterator[str]:
    """What an example asks for that is not there."""
    try:
        words = shlex.split(example, comments=True)[1:]
    except ValueError:  # an example in prose may hold a lone quotation mark
        words = example.split()[1:]
    command = root
    for word in takewhile(lambda word: word != "--", words):  # what follows is another program's
        names = inner(command)
        if names and word not in names and not word.startswith("-"):
            yield f"no command {word} in: {example.strip()}"
            return
        if word in names:
            command = command[word]
            continue
        options = {name for argument in shown(command) for name in argument.names} if not names else set()
        option = word.split("=")[0]
        if re.fullmatch(r"--?[a-z][a-z-]*", option) and option not in {*options, *_ANYWHERE}:
            yield f"no option {option} in: {example.strip()}"


if __name__ == "__main__":
    sys.exit(main())
