"""The examples run, whole, at toy size."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jupytext
import pytest

ROOT = Path(__file__).parents[2]


RUN = "import json, sys\nfor cell in json.load(open(sys.argv[1]))['cells']: exec(''.join(cell['source']) if cell['cell_type'] == 'code' else '')"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["own_rewards", "first_run", "own_environment", "reward_hack", "trl_port"])
def test_an_example_is_a_notebook_whose_cells_run_and_leave_a_report(name, tmp_path):
    notebook = jupytext.read(ROOT / "examples" / f"{name}.py")
    assert notebook.cells[0].cell_type == "markdown"
    assert [cell.cell_type for cell in notebook.cells].count("code") >= 3
    file, out = tmp_path / f"{name}.ipynb", tmp_path / "run"
    jupytext.write(notebook, file)
    environment = {**os.environ, "QUICK": "1", "OUT": str(out), "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    said = subprocess.run(
        [sys.executable, "-c", RUN, file], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr
    results = list(out.rglob("results.json"))
    assert results
    assert all((each.parent / "report.html").is_file() for each in results)
    conditions = [each for file in results for each in json.loads(file.read_text())["conditions"].values()]
    assert all({"mean", "low", "high"} <= set(each["pairs"]["grpo - sft"]["reward"]) for each in conditions)
