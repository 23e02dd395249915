"""The examples run, whole, at toy size."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import jupytext
import pytest
from tiny_qwen2 import make_tiny_qwen2

import gradus

ROOT = Path(__file__).parents[2]


RUN = "import json, sys\nfor cell in json.load(open(sys.argv[1]))['cells']: exec(''.join(cell['source']) if cell['cell_type'] == 'code' else '')"


@pytest.mark.parametrize(
    "name",
    [
        "own_rewards",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("first_run", "own_environment", "reward_hack", "trl_port")
        ),
    ],
)
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


def test_the_lines_in_the_readme_train_on_rows_and_a_reward(tmp_path, monkeypatch):
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 8
    make_tiny_qwen2(tmp_path / "Qwen" / "Qwen2.5-0.5B-Instruct", context=512)  # a folder goes before the hub
    rows = [{"question": f"{number} + 1", "answer": str(number + 1)} for number in range(60)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(tmp_path)
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    toy = {
        "grpo.max_steps": 1,
        "grpo.groups": 2,
        "grpo.group_size": 2,
        "grpo.sampling.max_new_tokens": 4,
        "eval.episodes": 2,
    }
    monkeypatch.setattr(gradus, "train", partial(gradus.train, quick=True, settings=toy))
    names = {}
    exec(code, names)
    assert opened == [(tmp_path / "runs" / "rows-quick" / "report.html").as_uri()]
    assert set(names["run"].metrics()[0]["components"]) == {"right"}
