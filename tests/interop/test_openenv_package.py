"""The package that carries an environment to OpenEnv."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gradus import environments
from gradus.core import ConfigError
from gradus.environments import load
from gradus.interop.openenv.package import _needs, _reward_range, write_package
from gradus.interop.openenv.package_files import _name_parts
from gradus.interop.openenv.package_trajectories import trajectories
from gradus.interop.openenv.sessions import Session, SessionSlots
from gradus.interop.openenv.validation.trajectories import read_trajectories


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages") / "rhythm_env"
    write_package("rhythm", folder, sessions=5)
    return folder


def test_it_has_what_openenv_looks_for(package: Path) -> None:
    project = tomllib.loads((package / "pyproject.toml").read_text())
    assert project["project"]["scripts"]["server"] == "rhythm_env.server.app:main"
    assert any(each.startswith("openenv") for each in project["project"]["dependencies"])
    assert not any("torch" in each or "math" in each for each in project["project"]["dependencies"])
    manifest = yaml.safe_load((package / "openenv.yaml").read_text())
    assert manifest["app"] == "server.app:app"
    said = " ".join((package / "README.md").read_text().split())
    assert "If it gives none in an episode, the last step brings the whole episode's reward, by the grader" in said
    low, high = manifest["validation"]["reward"]["range"]
    assert low < high
    locked = {each["name"] for each in tomllib.loads((package / "uv.lock").read_text())["package"]}
    assert project["project"]["name"] in locked
    for package_name in project["tool"]["setuptools"]["packages"]:
        if package_name.startswith("gradus"):
            assert (package / package_name.replace(".", "/") / "__init__.py").is_file()
    for source in package.rglob("*.py"):
        ast.parse(source.read_text())


def test_its_server_runs_on_what_it_carries(package: Path) -> None:
    code = (
        "import runpy, sys; sys.argv = ['app']; started = runpy.run_path('server/app.py', run_name='app');"
        "import gradus, gradus_worlds.rhythm as rhythm;"
        "print(gradus.__file__); print(rhythm.__file__); print(started['app'].state.places.capacity);"
        "print('torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=package, capture_output=True, text=True, check=True)
    gradus, rhythm, capacity, torch = ran.stdout.split()
    assert Path(gradus).is_relative_to(package)
    assert Path(rhythm).is_relative_to(package)
    assert (capacity, torch) == ("5", "False")


def test_a_file_that_the_environment_is_made_of_travels_along(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    rows = [json.dumps({"question": f"what is {number} + 1?", "answer": str(number + 1)}) for number in range(200)]
    tasks.write_text("\n".join(rows) + "\n")
    write_package(f"jsonl:{tasks}", tmp_path / "package")
    assert (tmp_path / "package" / "data" / "tasks.jsonl").read_text() == tasks.read_text()
    assert 'ROOT / "data/tasks.jsonl"' in (tmp_path / "package" / "server" / "app.py").read_text()
    project = tomllib.loads((tmp_path / "package" / "pyproject.toml").read_text())["project"]
    assert any(each.startswith("math-verify") for each in project["dependencies"])  # it grades in a process of its own
    assert project["name"] == "openenv-jsonl-tasks"


def test_a_package_of_an_extra_is_declared(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    write_package("gymnasium:Blackjack-v1", tmp_path / "package")
    project = tomllib.loads((tmp_path / "package" / "pyproject.toml").read_text())["project"]
    names = [each.partition(">")[0] for each in project["dependencies"]]
    assert [each for each in names if "gym" in each or "gradus" in each] == ["gymnasium"]
    assert (tmp_path / "package/gradus/interop/suites/workers/reasoning_gym_worker.py").is_file()


def test_a_suite_whose_name_is_none_in_python_is_packaged(tmp_path: Path) -> None:
    """The client had a class called Reasoning-gymEnv, so nothing could be imported or installed."""
    pytest.importorskip("reasoning_gym")
    write_package("reasoning-gym:chain_sum", tmp_path / "package")
    for path in (tmp_path / "package").glob("*.py"):
        compile(path.read_text(), path.name, "exec")
    assert "class ReasoningGymChainSumEnv" in (tmp_path / "package" / "client.py").read_text()
    assert "reasoning_gym_chain_sum_env" in (tmp_path / "package" / "pyproject.toml").read_text()


def test_packages_of_one_suite_have_different_names() -> None:
    rows = [Path("data/some rows.jsonl"), "?answer=", "target"]
    assert _name_parts("jsonl", rows) == ["jsonl", "some", "rows"]
    assert _name_parts("memory", ["babi:", Path("data/qa1.txt")]) == ["memory", "babi", "qa1"]
    assert _name_parts("reasoning-gym", ["chain_sum"]) == ["reasoning", "gym", "chain", "sum"]
    assert _name_parts("shop", []) == ["shop"]


def test_a_package_with_tools_needs_no_torch() -> None:
    """The library that describes tools loads it where it is installed, and so it was declared."""
    modules, requirements = _needs("shop")
    assert "gradus.environments.tools" in modules
    assert not any("torch" in each for each in requirements)


@pytest.mark.parametrize("kind", ["options", "folder"])
def test_what_options_and_folders_name_travels_along(kind: str, tmp_path: Path) -> None:
    rows = [{"question": f"what is {number} + 1?", "target": str(number + 1)} for number in range(60)]
    more = [{"question": f"what is {number} + 2?", "target": str(number + 2)} for number in range(20)]
    place = tmp_path / "my rows"
    place.mkdir()
    for name, several in (("train", rows), ("test", more)):
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in several))
    (place / "other.txt").write_text("Be brief.")
    if kind == "options":
        name = f"jsonl:{place}/train.jsonl?answer=target&test={place}/test.jsonl&system={place}/other.txt"
    else:
        name = f"gsm8k:{place}?answer=target"
    write_package(name, tmp_path / "package")
    shutil.rmtree(place)
    moved = shutil.move(tmp_path / "package", tmp_path / "moved + 1")
    code = (
        "import runpy, sys; sys.path.insert(0, '.'); import gradus.interop.openenv.server as server;"
        "server.create_app = lambda spec, **_: spec; spec = runpy.run_path('server/app.py', run_name='app')['app'];"
        "task = spec.tasks('held-out', 1)[0]; environment = spec.make();"
        "print(environment.reset(seed=task.seed, **task.options).text, '/', len(spec.conditions['held-out'].seeds),"
        "'/', environment.system_prompt[:9], '/', environment.outcome()['answer'])"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=moved, capture_output=True, text=True)
    said = "Be brief." if kind == "options" else "Answer th"
    assert ran.stdout.strip() == f"what is 0 + 2? / 20 / {said} / 2", ran.stderr
    assert not (Path(moved) / "data" / "my rows" / "other.txt").exists()


def test_an_oracle_earns_the_full_reward_and_stored_hacks_nothing(package: Path, tmp_path: Path) -> None:
    assert write_package("arithmetic", tmp_path / "sums").oracle
    manifest = yaml.safe_load((tmp_path / "sums" / "openenv.yaml").read_text())["validation"]
    shown = manifest["capabilities"]
    assert shown["oracle"] == {"form": "script", "location": "oracle.jsonl"}
    session = Session(load("arithmetic"), SessionSlots(1))

    def ends(name: str) -> set[float | None]:
        rewards: set[float | None] = set()
        for each in read_trajectories(tmp_path / "sums" / name):
            session.reset(each.reset)
            rewards.add([session.step(action) for action in each.actions][-1].reward)
        return rewards

    assert ends(shown["oracle"]["location"]) == {manifest["reward"]["range"][1]}
    assert ends(shown["canaries"]) == {0.0}
    without = yaml.safe_load((package / "openenv.yaml").read_text())["validation"]["capabilities"]
    assert set(without) == {"verifier"}  # no policy of Rhythm earns the full reward


def test_an_environment_without_a_panel_ships_its_oracle_alone() -> None:
    spec = load("arithmetic")
    shown = trajectories(replace(spec, audit=replace(spec.audit, panel=None)))
    assert shown.oracle
    assert not shown.canaries


def test_an_oracle_of_an_environment_with_tools_ends_with_its_graders_reward() -> None:
    shown = trajectories(load("shop"))
    assert shown.top == 0.96  # 1, and a little less for each call
    assert shown.oracle
    assert _reward_range(load("shop"), shown.top)[1] == shown.top


def test_what_gives_no_episode_a_reward_is_not_packaged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spec = load("arithmetic")
    grader = replace(spec.grader(), compute=lambda episodes: [None] * len(episodes))
    silent = replace(spec, graders={"none": grader}, default_grader="none", make=lambda: _Silent(spec.make()))
    monkeypatch.setattr("gradus.environments.load", lambda name: silent)
    with pytest.raises(ConfigError, match="has no reward"):
        write_package("arithmetic", tmp_path / "package")
    assert not (tmp_path / "package").exists()


class _Silent:
    """The same environment without rewards of its own."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def step(self, action: str) -> Any:
        return replace(self._inner.step(action), reward=None)


def test_nothing_is_overwritten_and_strangers_are_refused(package: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not an empty folder"):
        write_package("rhythm", package)
    with pytest.raises(ConfigError, match="come with Gradus"):
        write_package("somewhere.else:spec", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_an_environment_whose_code_is_no_part_of_gradus_is_not_packaged(tmp_path: Path) -> None:
    """A package of an installed environment was written without its code, and could not start."""
    spec = environments.load("arithmetic")
    environments.register("installed", lambda _: spec)
    with pytest.raises(
        ConfigError, match=r"only environments that come with Gradus .* got 'installed'; `gradus serve-env"
    ):
        write_package("installed", tmp_path / "package")
    assert not (tmp_path / "package").exists()
