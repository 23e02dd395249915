"""Makes the table of clients in docs/agents.md: ``python table.py [CLIENT ...] [--learn]``, all clients if none is named.

Rows are clients and columns what they can do; each cell is what a client's agent did on a scripted model, or what a nano model earned in
it. Every client has an environment of its own, in GRADUS_CLIENTS or in the cache folder; to make them takes a package index.
"""

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

from frameworks import REQUIREMENTS

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PAGE = ROOT / "docs" / "agents.md"
ENVIRONMENTS = Path(os.environ.get("GRADUS_CLIENTS", Path.home() / ".cache" / "gradus-clients"))
STEPS, SEED = "60", "1"
_HEAD = "|client|"


class CannotInstallError(Exception):
    """The packages of a client cannot be installed here."""


def python_with(requirements: tuple[str, ...]) -> Path:
    """The interpreter of an environment that has these packages, and this one's behind them."""
    if not requirements:
        return Path(sys.executable)
    folder = ENVIRONMENTS / re.sub(r"\W+", "-", "-".join(requirements))
    python = folder / "bin" / "python"
    if not (folder / "done").exists():
        venv.create(folder, with_pip=True)
        install = [python, "-m", "pip", "install", "-q", *requirements, "pip"]
        done = subprocess.run(install, capture_output=True, text=True)
        if done.returncode:
            raise CannotInstallError(f"{requirements} cannot be installed here: {done.stderr[-300:]}")
        packages = next(folder.glob("lib/python*/site-packages"))
        ours = [path for path in sys.path if path.endswith("site-packages")]
        (packages / "zz_behind.pth").write_text("\n".join(ours) + "\n")
        (folder / "done").touch()
    return python


def output_of(script: str, client: str, *arguments: str) -> dict[str, Any]:
    """The JSON that a script beside this one prints last."""
    line = [python_with(REQUIREMENTS[client]), HERE / script, client, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(line, capture_output=True, text=True, timeout=1800, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def abilities(client: str) -> dict[str, str]:
    """What a client's agent does on a scripted model, a cell for each column."""
    return output_of("matrix.py", client)


def learned(client: str) -> dict[str, Any]:
    """What a nano model earns in a client's agent before and after training, and the interval of the difference."""
    return output_of("learn.py", client, STEPS, SEED)


def reward_cell(result: dict[str, Any]) -> str:
    """The cell of what was learned."""
    return f"{result['before']:.2f} → {result['after']:.2f} ({result['low']:+.2f}…{result['high']:+.2f})"


def read_table() -> dict[str, dict[str, str]]:
    """The rows of the page's table, by client."""
    lines = [line.strip("|").split("|") for line in _table_lines(PAGE.read_text())]
    return {cells[0]: dict(zip(lines[0], cells, strict=True)) for cells in lines[2:]}


def _table_lines(text: str) -> list[str]:
    lines = text[text.index(_HEAD) :].splitlines()
    return lines[: lines.index("")]


def write_table(rows: dict[str, dict[str, str]]) -> None:
    """Puts the rows into the page, in the order of the clients."""
    columns = max(map(list, rows.values()), key=len)
    lines = [columns, ["-"] * len(columns), *([row.get(name, "-") for name in columns] for row in rows.values())]
    text = PAGE.read_text()
    table = [f"|{'|'.join(cells)}|" for cells in lines]
    PAGE.write_text(text.replace("\n".join(_table_lines(text)), "\n".join(table)))


def main(arguments: list[str]) -> None:
    """Makes the rows of some clients anew. Without ``--learn`` their rewards stay as they are."""
    clients = [each for each in arguments if each != "--learn"] or list(REQUIREMENTS)
    rows = read_table()
    for client in clients:
        try:
            row = abilities(client)
        except CannotInstallError as error:
            print(f"{client} stays as it is: {error}", file=sys.stderr)
            continue
        is_trained = "--learn" in arguments
        row["reward"] = reward_cell(learned(client)) if is_trained else rows.get(client, {}).get("reward", "-")
        rows[client] = row
        print("  ".join(row.values()), flush=True)
        write_table({client: rows[client] for client in REQUIREMENTS if client in rows})


if __name__ == "__main__":
    main(sys.argv[1:])
