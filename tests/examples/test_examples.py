"""The examples run, whole, at toy size."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["first_run.py", "own_rewards.py", "own_environment.py"])
def test_an_example_runs_and_leaves_a_report(name, tmp_path):
    script = ROOT / "examples" / name
    assert "\n# %%\n" in script.read_text(encoding="utf-8")  # cells, so that it opens as a notebook
    out = tmp_path / "run"
    environment = {**os.environ, "QUICK": "1", "OUT": str(out), "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    said = subprocess.run([sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert (out / "report.html").is_file()
