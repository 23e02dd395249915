"""The blocks of README.md run as they are printed, in an empty folder with the files that it shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```(console|json|python|sh)\n(.*?)```", re.DOTALL)
# The full recipe takes minutes; the call is the printed one.
TOY = """
import functools, runpy, gradus
gradus.train = functools.partial(gradus.train, quick=True)
runpy.run_path("block.py", run_name="__main__")
"""


def blocks(kind: str) -> list[str]:
    """The texts of the blocks of one kind."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [code for name, code in BLOCK.findall(text) if name == kind]


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """A Python process in the folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)


def write_files(folder: Path) -> list[list[str]]:
    """Writes the rows and each file that ``cat`` shows; returns the other commands."""
    (rows,) = blocks("json")
    (folder / "rows.jsonl").write_text(rows, encoding="utf-8")
    commands: list[list[str]] = []
    for block in blocks("console"):
        for part in block.split("$ ")[1:]:
            command, _, output = part.partition("\n")
            program, *arguments = command.split()
            if program == "cat":
                (folder / arguments[0]).write_text(output, encoding="utf-8")
            else:
                commands.append([program, *arguments])
    shell_lines = [line for block in blocks("sh") for line in block.splitlines() if not line.startswith("#")]
    commands += [line.split() for line in shell_lines if not line.startswith(("pip install ", "make "))]
    return commands


def test_the_commands_run_on_the_rows_that_are_shown(tmp_path):
    commands = write_files(tmp_path)
    assert commands == [["gradus", "audit", "mine.py:reward", "rows.jsonl"]]
    printed = run(["-m", *commands[0]], tmp_path)
    assert "error" not in printed.stderr, printed.stderr
    # Two rows show what pays, and are too few to settle it.
    assert printed.returncode == 3, printed.stdout
    assert printed.stdout.startswith("unresolved")
    assert "'repair or returns' for 'repair'" in " ".join(printed.stdout.split())


def test_the_python_block_trains_and_reports(tmp_path):
    write_files(tmp_path)
    (code,) = blocks("python")
    (tmp_path / "block.py").write_text(code, encoding="utf-8")
    printed = run(["-c", TOY], tmp_path)
    assert printed.returncode == 0, printed.stdout + printed.stderr
    assert "too few" in " ".join(printed.stdout.split())
    assert list(tmp_path.glob("runs/*/report.html"))
