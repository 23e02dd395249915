"""The clients and frameworks of docs/agents.md, each in an environment of its own: what the table says of them is what they do.

Environments are made once, in GRADUS_CLIENTS or in the cache folder; that takes a package index.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent / "clients"
sys.path.insert(0, str(HERE))
from frameworks import AGENTS, REQUIREMENTS  # noqa: E402
from table import CannotInstallError, abilities, learned, python_with, read_table  # noqa: E402


def test_the_table_has_every_client_that_is_tried() -> None:
    assert set(read_table()) == set(REQUIREMENTS) == set(AGENTS)


@pytest.mark.slow
@pytest.mark.parametrize("client", REQUIREMENTS)
def test_a_client_does_what_the_table_says(client: str) -> None:
    row = made(abilities, client)
    assert row["calls a tool"] == "✓"
    assert {name: read_table()[client][name] for name in row} == row


@pytest.mark.slow
@pytest.mark.parametrize("client", REQUIREMENTS)
def test_a_nano_model_learns_in_a_clients_agent(client: str) -> None:
    """From random weights: it looks before it answers."""
    if "(+" not in read_table()[client]["reward"]:
        pytest.skip("not shown")
    result = made(learned, client)
    assert result["low"] > 0, result


def made(make: Callable[[str], dict[str, Any]], client: str) -> dict[str, Any]:
    """What the scripts of a client's row give."""
    try:
        return make(client)
    except CannotInstallError as error:
        pytest.skip(str(error))


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
