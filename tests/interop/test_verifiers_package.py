"""The package that carries an environment to verifiers."""

from __future__ import annotations

import ast
import inspect
import json
import os
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from gradus import environments
from gradus.core import ConfigError
from gradus.interop.packages.writing import write_package
from gradus.policies.remote.policy import RemotePolicy
from gradus.policies.scripted import constant_policy
from gradus.rollouts import roll_out
from gradus.version import __version__

ROOT = Path(__file__).parents[2]
ROLLOUT = Path(__file__).parent / "verifiers_rollout.py"


def test_it_has_what_verifiers_looks_for(tmp_path: Path) -> None:
    written = write_package("shop", tmp_path / "package")
    assert list(written.files) == ["README.md", "gradus_shop/__init__.py", "pyproject.toml"]
    project = tomllib.loads((tmp_path / "package/pyproject.toml").read_text())["project"]
    assert project["name"] == "gradus-shop"
    assert project["dependencies"] == ["verifiers==0.4.*", f"gradus-rl=={__version__}"]
    module = ast.parse((tmp_path / "package/gradus_shop/__init__.py").read_text())
    defined = {each.name: each for each in module.body if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    assert "load_environment" in defined
    (exported,) = (
        each.value for each in module.body if isinstance(each, ast.Assign) and each.targets[0].id == "__all__"
    )  # type: ignore[attr-defined]
    assert {ast.unparse(defined[name].bases[0]) for name in ast.literal_eval(exported)} == {  # type: ignore[union-attr]
        "SingleAgentEnv",
        "vf.Harness[vf.HarnessConfig]",
        "vf.Taskset[GradusTask, TasksetConfig]",
    }


def test_its_policy_takes_what_it_is_given(tmp_path: Path) -> None:
    written = write_package("arithmetic", tmp_path / "package")
    calls = ast.walk(ast.parse((written.folder / written.module / "__init__.py").read_text()))
    (call,) = [each for each in calls if isinstance(each, ast.Call) and ast.unparse(each.func) == "RemotePolicy"]
    inspect.signature(RemotePolicy).bind("model", **{str(each.arg): None for each in call.keywords})


def test_rows_travel_inside_the_module(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"question": f"{n} + 1?", "answer": str(n + 1)}) + "\n" for n in range(64)))
    written = write_package(f"{rows}?answer=answer", tmp_path / "package")
    assert "gradus_jsonl_rows/data/rows.jsonl" in written.files
    module = (tmp_path / "package/gradus_jsonl_rows/__init__.py").read_text()
    assert 'environments.load("jsonl:" + str(ROOT / "data/rows.jsonl") + "?answer=answer")' in module


def test_a_suite_is_an_extra_and_its_name_becomes_one_of_python(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    written = write_package("gymnasium:Blackjack-v1", tmp_path / "package")
    assert written.module == "gradus_gymnasium_blackjack_v1"
    project = tomllib.loads((tmp_path / "package/pyproject.toml").read_text())["project"]
    assert f"gradus-rl[gymnasium]=={__version__}" in project["dependencies"]


def test_nothing_is_overwritten_and_code_of_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").touch()
    with pytest.raises(ConfigError, match="not an empty folder"):
        write_package("rhythm", tmp_path / "full")
    for name in ("somewhere.else:spec", "of_this_session", "openenv:ws://x"):
        told = rf"only environments of Gradus and of installed packages .* got '{name}'; `gradus serve {name} --env"
        with pytest.raises(ConfigError, match=told):
            write_package(name, tmp_path / "x")
        assert not (tmp_path / "x").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("arithmetic", "<reasoning> a guess </reasoning> <answer> 60 </answer>"),
        ("rhythm", "sleep work rest social"),  # each turn is a prompt of its own
        ("shop", '{"name": "orders", "arguments": {"customer": "Ben"}}'),  # with tools
    ],
)
def test_verifiers_rolls_out_what_we_roll_out(
    name: str, text: str, stock_python: Callable[[str], Path], tmp_path: Path
) -> None:
    python = stock_python("verifiers==0.4.0")
    written = write_package(name, tmp_path / "package")
    base = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    pip = [python, "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, *base], check=True, timeout=600)
    subprocess.run([*pip, "--no-deps", tmp_path / "package"], check=True, timeout=600)
    condition = "in-distribution"
    command = [python, ROLLOUT, written.module, text, condition, "6"]
    own = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, env=own)
    assert ran.returncode == 0, ran.stderr[-3000:]
    spec = environments.load(name)
    ours = roll_out(spec, constant_policy(text), spec.tasks(condition, 6), grader=spec.grader()).episodes
    told = json.loads(ran.stdout.splitlines()[-1])
    assert [(each["seed"], each["ok"], each["turns"]) for each in told] == [
        (each.task.seed, True, len(each.turns)) for each in ours
    ]
    for each, episode in zip(told, ours, strict=True):
        assert episode.reward is not None
        assert each["reward"] == pytest.approx(episode.reward.value, abs=1e-12)
