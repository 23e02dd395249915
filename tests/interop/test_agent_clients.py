"""The clients and frameworks of docs/agents.md, each in an environment of its own: what the table says of them is what they do.

Environments are made once, in GRADUS_CLIENTS or in the cache folder; that takes a package index.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent / "clients"
PAGE = Path(__file__).parents[2] / "docs" / "agents.md"
sys.path.insert(0, str(HERE))
from candidates import CANDIDATES, HELD_BACK  # noqa: E402
from frameworks import AGENTS, REQUIREMENTS  # noqa: E402

ENVIRONMENTS = Path(os.environ.get("GRADUS_CLIENTS", Path.home() / ".cache" / "gradus-clients"))


def python_with(requirements: tuple[str, ...]) -> Path:
    """The interpreter of an environment that has these packages, and this one's behind them."""
    folder = ENVIRONMENTS / (re.sub(r"\W+", "-", "-".join(requirements)) or "bare")
    python = folder / "bin" / "python"
    if not (folder / "done").exists():
        venv.create(folder, with_pip=True)
        done = subprocess.run(
            [python, "-m", "pip", "install", "-q", *requirements, "pip"], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"{requirements} cannot be installed here: {done.stderr[-300:]}")
        packages = next(folder.glob("lib/python*/site-packages"))
        ours = [path for path in sys.path if path.endswith("site-packages")]
        (packages / "zz_behind.pth").write_text("\n".join(ours) + "\n")
        (folder / "done").touch()
    return python


def said_by(script: str, client: str, *arguments: str) -> dict[str, Any]:
    """The JSON that a script of ``clients`` prints last."""
    source = str(Path(__file__).parents[2] / "src")
    line = [python_with(REQUIREMENTS[client]), HERE / script, client, *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=900, env={**os.environ, "PYTHONPATH": source})
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def table() -> dict[str, dict[str, str]]:
    """The rows of the page's table of clients."""
    lines = [
        [cell.strip() for cell in line.strip("|\n").split("|")]
        for line in PAGE.read_text().splitlines()
        if line.startswith("|")
    ]
    head = next(number for number, cells in enumerate(lines) if cells[0] == "client")
    rows = [dict(zip(lines[head], cells, strict=True)) for cells in lines[head + 2 :] if len(cells) == len(lines[head])]
    return {row["client"]: row for row in rows if row["client"] in AGENTS}


def test_two_of_ten_candidates_were_held_back_and_the_table_has_them() -> None:
    assert len(CANDIDATES) == 10
    assert set(HELD_BACK) < set(CANDIDATES)
    assert set(HELD_BACK) < set(table())
    assert len(table()) >= 12
    assert set(table()) == set(REQUIREMENTS)


@pytest.mark.slow
@pytest.mark.parametrize("client", REQUIREMENTS)
def test_a_client_does_what_the_table_says(client: str) -> None:
    row = said_by("matrix.py", client)
    assert row.pop("looks, then answers") == "yes"
    assert {name: table()[client][name] for name in row} == row


@pytest.mark.slow
@pytest.mark.parametrize("client", REQUIREMENTS)
def test_a_nano_model_learns_in_a_clients_agent(client: str) -> None:
    """From random weights: it looks before it answers, and then says what it saw."""
    if table()[client]["reward"] == "-":
        pytest.skip("not shown")
    result = said_by("learn.py", client, "60", "1")
    assert result["low"] > 0, result


@pytest.mark.slow
def test_an_evaluation_by_log_likelihood_runs_against_the_server() -> None:
    """lm-eval's own client, on a task of ours: its sums are those of the model."""
    python = python_with(("lm-eval[api]",))
    source = str(Path(__file__).parents[2] / "src")
    path = os.pathsep.join((source, str(Path(__file__).parents[1])))
    done = subprocess.run(
        [python, HERE / "log_likelihoods.py"], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1])["worst"] < 1e-4
