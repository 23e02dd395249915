"""Runs the blocks of a page as printed, in an empty folder: `python docs/blocks.py PAGE ...`; without a page, all of them.

- A block with a title (```` ```python title="mine.py" ````) is written to that file.
- `python` blocks without one run in one process, in order; `sh` and `console` blocks run line by line.
- `MODEL` and the Hub's `Qwen/Qwen2.5-0.5B-Instruct` are folders with a small model of that architecture; runs have the size of `--quick`.
- The comment `<!-- not run: REASON -->` before a block leaves it out: what needs a card, another host or a clone.

A command may end with a verdict (1, or 3 of an audit). A traceback, an error message or another code is a fault.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
HUB = "Qwen/Qwen2.5-0.5B-Instruct"
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^>]+) -->\n+)?```(?P<kind>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_RUN = ("python", "sh", "console")
# Commands of a page find this in place of `gradus`: a run is small, and a verdict is no failure of the page.
_GRADUS = """#!{python}
import sys
from pathlib import Path
from gradus.commands.app import main
line = sys.argv[1:]
small = line[:1] == ["run"] and "--quick" not in line
if small:
    sys.argv.append("--quick")
try:
    main()
    code = 0
except SystemExit as end:
    code = end.code or 0
for quick in Path("runs").glob("*-quick") if small else ():
    named = quick.with_name(quick.name.removesuffix("-quick"))
    if not named.exists():
        named.symlink_to(quick.name)
verdict = line[:1] == ["audit"] and code in (1, 3) or line[:1] in (["check"], ["doctor"]) and code == 1
sys.exit(0 if verdict else code)
"""
_SCRIPT = """
import functools, gradus
gradus.train = functools.partial(gradus.train, quick=True)
"""


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block of a page; ``line`` is that of its fence."""

    kind: str
    text: str
    title: str | None
    reason: str | None
    line: int

    @property
    def commands(self) -> str:
        """The lines that a shell gets; of a console those behind the prompt."""
        if self.kind == "sh":
            return self.text
        return "\n".join(line[2:] for line in self.text.splitlines() if line.startswith("$ "))


def pages() -> list[Path]:
    """The pages whose blocks run."""
    return [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("src/gradus_worlds/**/*.md"))]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page that are files or run, in order."""
    text = page.read_text(encoding="utf-8")
    if page.parent.name == "reference":
        return []
    listed: list[Block] = []
    for match in BLOCK.finditer(text):
        if match["title"] or match["kind"] in _RUN:
            line = text.count("\n", 0, match.start("kind")) + 1
            fields = {name: match[name] for name in ("kind", "text", "title", "reason")}
            listed.append(Block(**fields, line=line))
    return listed


def malformed(page: Path) -> Iterator[str]:
    """Says which blocks of a page a parser refuses, without running them."""
    for block in blocks(page):
        if block.kind == "python":
            try:
                ast.parse(block.text)
            except SyntaxError as error:
                yield f"block in line {block.line}: {error}"
        elif block.kind in _RUN:
            parsed = subprocess.run(["bash", "-n"], input=block.commands, capture_output=True, text=True, check=False)
            if parsed.returncode:
                yield f"block in line {block.line}: {parsed.stderr.strip()}"


def run(page: Path) -> str | None:
    """Runs the blocks of a page in an empty folder; returns what went wrong, or None."""
    with TemporaryDirectory() as name:
        folder = Path(name) / "work"
        folder.mkdir()
        script = Path(name) / "page.py"
        script.write_text(_script(page, folder, _make_command(Path(name) / "bin")), encoding="utf-8")
        done = subprocess.run([sys.executable, script], cwd=folder, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    if done.returncode or "Traceback (most recent call last)" in output:
        return f"{page.relative_to(ROOT)}:\n{output[-3000:]}"
    return None


def _make_command(folder: Path) -> Path:
    folder.mkdir()
    file = folder / "gradus"
    file.write_text(_GRADUS.format(python=sys.executable), encoding="utf-8")
    file.chmod(0o755)
    return folder


def _script(page: Path, folder: Path, commands: Path) -> str:
    """A program that does what the page says, one block after another."""
    path = f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    source = f"{ROOT / 'src'}:{ROOT / 'tests'}"
    lines = [
        "import os, subprocess, sys",
        f"os.environ.update({{'PATH': {path!r}, 'PYTHONPATH': {source!r}, 'BROWSER': 'true', 'OMP_NUM_THREADS': '1'}})",
        f"sys.path[:0] = [os.getcwd(), *{source!r}.split(':')]",
        "names = {'__name__': '__main__'}",
    ]
    listed = [block for block in blocks(page) if block.reason is None]
    if any(HUB in block.text or re.search(r"\bMODEL\b", block.text) for block in listed):
        lines.append(
            f"from tiny_qwen2 import make_tiny_qwen2\nfor each in ('MODEL', {HUB!r}): make_tiny_qwen2(each, context=512)"
        )
    if any(block.kind == "python" and not block.title for block in listed):
        lines.append(f"exec({_SCRIPT!r}, names)")
    lines += [_step(block) for block in listed]
    return "\n".join(lines)


def _step(block: Block) -> str:
    say = f"print('line {block.line}', flush=True)"
    if block.title:
        return (
            f"os.makedirs(os.path.dirname({block.title!r}) or '.', exist_ok=True)\n"
            f"open({block.title!r}, 'w', encoding='utf-8').write({block.text!r})"
        )
    if block.kind == "python":
        return f"{say}\nexec(compile({block.text!r}, 'block in line {block.line}', 'exec'), names)"
    return f"{say}\nsubprocess.run(['bash', '-e', '-c', {block.commands!r}], check=True, stdin=subprocess.DEVNULL)"


def main() -> int:
    """Runs the pages that the command line names, or all; the exit code is 1 if one has a fault."""
    failed = 0
    for page in [Path(name).resolve() for name in sys.argv[1:]] or pages():
        if not any(block.reason is None for block in blocks(page)):
            continue
        fault = run(page)
        failed += fault is not None
        print(fault or f"{page.relative_to(ROOT)}: runs", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
