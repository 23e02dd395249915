"""Run the examples at toy size and write each as a page with its outputs: `python docs/executed.py [NAME ...]`, docs/examples/NAME.md.

`docs/build.py --check` compares the code of the pages with that of the examples; a test runs them again and compares what they print,
less the digits.
"""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs/examples"
NAMES = ("first_run", "own_rewards", "trl_port")
OUTPUT = re.compile(r"\n\n```text\n(.*?)\n```(?=\n)", re.DOTALL)
_FIRST, _LAST = 5, 9  # lines of a long output that a page shows
CELL = re.compile(r"^# %%(.*)\n", re.MULTILINE)
_TOP = "*Run at toy size (`QUICK=1`) by `python docs/executed.py`; [the script](../../examples/{name}.py) is also a notebook.*"


def main() -> None:
    """Write the pages, each made by a process of its own."""
    PAGES.mkdir(exist_ok=True)
    for name in sys.argv[1:] or NAMES:
        (PAGES / f"{name}.md").write_text(executed(name), encoding="utf-8")
        print(f"docs/examples/{name}.md")


def executed(name: str) -> str:
    """Returns the page of an example, run in an empty folder."""
    environment = {**os.environ, "QUICK": "1", "COLUMNS": "80", "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    with TemporaryDirectory() as folder:
        return _output([__file__, "--cells", name], cwd=folder, env=environment)


def _output(arguments: list[str], **options: Any) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr}")
    return done.stdout


def outputs(page: str) -> list[str]:
    """Returns what the cells of a page print, less digits, times and the lines of single steps, which differ between machines."""
    kept = re.sub(r"^(?:step |it took |best so far ).*\n", "", page, flags=re.MULTILINE)
    return [" ".join(re.sub(r"[\d.]+", "#", text).split()) for text in OUTPUT.findall(kept)]


def stale() -> Iterator[str]:
    """Says which pages have other code than their example."""
    for name in NAMES:
        page = PAGES / f"{name}.md"
        if OUTPUT.sub("", page.read_text(encoding="utf-8")) != OUTPUT.sub("", _page(name, run=False)):
            yield f"docs/examples/{name}.md is out of date: run python docs/executed.py {name}"


def _page(name: str, *, run: bool) -> str:
    names: dict[str, Any] = {"__name__": "__main__"}
    parts = []
    _, *pieces = CELL.split((ROOT / f"examples/{name}.py").read_text(encoding="utf-8"))
    for kind, text in zip(pieces[::2], pieces[1::2], strict=True):
        if "markdown" in kind:
            parts.append("\n".join(line.removeprefix("#").removeprefix(" ") for line in text.strip().splitlines()))
            continue
        parts.append(f"```python\n{text.strip()}\n```")
        printed = _printed(text, names) if run else ""
        if printed:
            parts.append(f"```text\n{printed}\n```")
    return "\n\n".join([parts[0], _TOP.format(name=name), *parts[1:]]) + "\n"


def _printed(cell: str, names: dict[str, Any]) -> str:
    """Runs a cell and returns what it prints, or else its last expression, as a notebook shows it."""
    tree = ast.parse(cell)
    last = tree.body[-1] if tree.body else None
    shown = last.value if isinstance(last, ast.Expr) else None
    if shown is not None:
        tree.body.pop()
    with redirect_stdout(io.StringIO()) as said:
        exec(compile(tree, "cell", "exec"), names)
        value = eval(compile(ast.Expression(shown), "cell", "eval"), names) if shown is not None else None
        if value is not None and not said.getvalue():  # a training has printed its result
            print(value)
    lines = [line.rstrip() for line in said.getvalue().replace(f"{Path.cwd()}/", "").strip().splitlines()]
    if len(lines) > _FIRST + _LAST + 1:
        lines = [*lines[:_FIRST], "...", *lines[-_LAST:]]
    return "\n".join(lines)


if __name__ == "__main__":
    if "--cells" in sys.argv:
        print(_page(sys.argv[-1], run=True), end="")
    else:
        main()
