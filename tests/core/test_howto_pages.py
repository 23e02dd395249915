"""Each how-to page, followed to the letter: its files are written, installed, and its commands run."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"```(toml|python|sh)\n(.*?)```", re.DOTALL)
NAMED = re.compile(r"`([\w.]+\.(?:py|toml))`")
# One process for the commands of a page: each would import all that they need anew.
RUN = """
import runpy, shlex, sys
from gradus.commands.app import main
for command in sys.argv[1:]:
    sys.argv = shlex.split(command)
    code = 0
    try:
        main() if sys.argv[0] == "gradus" else runpy.run_path(sys.argv[1], run_name="__main__")
    except SystemExit as ended:
        code = ended.code
    print(f"{command}: ended with {code or 0}", flush=True)
"""


def follow(page: str, folder: Path) -> list[str]:
    """Write each file that the page names before a block, and return its commands and scripts in order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    written: set[str] = set()
    todo: list[str] = []
    before = 0
    for block in BLOCK.finditer(text):
        kind, code = block.groups()
        names = [name for name in NAMED.findall(text[before : block.start()]) if name not in written]
        before = block.end()
        if kind == "sh":
            todo += [line for line in code.splitlines() if line]
        elif names:
            (folder / names[0]).write_text(code, encoding="utf-8")
            written.add(names[0])
        else:
            (folder / f"script{len(todo)}.py").write_text(code, encoding="utf-8")
            todo.append(f"python script{len(todo)}.py")
    return todo


@pytest.mark.parametrize(
    "page",
    [
        "howto_environment.md",
        "howto_reward.md",
        pytest.param("howto_algorithm.md", marks=pytest.mark.slow),
        "howto_engine.md",
    ],
)
def test_a_page_works_as_it_is_written(page, tmp_path):
    installs, commands = [], []
    for command in follow(page, tmp_path):
        (installs if command.startswith("pip ") else commands).append(command)
    assert commands
    source = Path(__file__).parents[2] / "src"
    path = os.pathsep.join([str(source), str(tmp_path / "site")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    into_site = ["--quiet", "--no-deps", "--no-build-isolation", "--target", "site"]
    calls = [["-m", *shlex.split(command), *into_site] for command in installs]
    for words in [*calls, ["-c", RUN, *commands]]:
        said = subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert said.returncode == 0, said.stdout + said.stderr
    for command in commands:
        fails = " audit " in command and page == "howto_reward.md"  # a verdict of fail is what that page is about
        assert f"{command}: ended with {int(fails)}\n" in said.stdout, said.stdout + said.stderr
