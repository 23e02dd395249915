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
from gradus.interop.packages.writing import _words, write_package
from gradus.version import __version__


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages") / "rhythm_env"
    write_package("rhythm", folder, sessions=5)
    return folder


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def test_it_has_what_openenv_looks_for(package: Path) -> None:
    assert project(package)["scripts"]["server"] == "rhythm_env.server.app:main"
    assert project(package)["dependencies"] == ["openenv>=0.10", f"gradus-rl=={__version__}"]
    manifest = yaml.safe_load((package / "openenv.yaml").read_text())
    assert manifest["app"] == "server.app:app"
    low, high = manifest["validation"]["reward"]["range"]
    assert low < high
    said = " ".join((package / "README.md").read_text().split())
    assert "If it gives none in an episode, the last step brings the whole episode's reward, by the grader" in said
    locked = {each["name"] for each in tomllib.loads((package / "uv.lock").read_text())["package"]}
    assert project(package)["name"] in locked
    for source in package.rglob("*.py"):
        ast.parse(source.read_text())


def test_its_server_runs_without_torch(package: Path) -> None:
    code = (
        "import runpy, sys; sys.modules['torch'] = None; app = runpy.run_path('server/app.py', run_name='app')['app'];"
        "print(app.state.places.capacity)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=package, capture_output=True, text=True)
    assert ran.stdout.split() == ["5"], ran.stderr


@pytest.mark.parametrize("folder", [False, True])
def test_the_file_or_folder_of_an_environment_travels_along(folder: bool, tmp_path: Path) -> None:
    place = tmp_path / "my rows"
    place.mkdir()
    for name, added in (("train", 1), ("test", 2)):
        rows = [{"question": f"what is {n} + {added}?", "target": str(n + added)} for n in range(60)]
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = f"gsm8k:{place}?answer=target" if folder else f"jsonl:{place}/train.jsonl?answer=target"
    write_package(named, tmp_path / "package")
    assert project(tmp_path / "package")["name"] == ("openenv-gsm8k-my-rows" if folder else "openenv-jsonl-train")
    shutil.rmtree(place)
    moved = shutil.move(tmp_path / "package", tmp_path / "moved + 1")
    code = (
        "import runpy; import gradus.interop.openenv.server as server; server.create_app = lambda spec, **_: spec;"
        "spec = runpy.run_path('server/app.py', run_name='app')['app']; task = spec.train_task(0);"
        "print(spec.make().reset(seed=task.seed, **task.options).text)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=moved, capture_output=True, text=True)
    assert ran.stdout.startswith("what is "), ran.stderr


def test_a_file_that_an_option_names_is_refused(tmp_path: Path) -> None:
    rows, system = tmp_path / "rows.jsonl", tmp_path / "system.txt"
    rows.write_text("".join(json.dumps({"question": f"{n} + 1", "answer": str(n + 1)}) + "\n" for n in range(60)))
    system.write_text("Be brief.")
    with pytest.raises(ConfigError, match=r"only the file or folder that stands first .* got .*system\.txt"):
        write_package(f"jsonl:{rows}?system={system}", tmp_path / "package")
    assert not (tmp_path / "package").exists()


def test_a_suite_is_an_extra_and_its_name_becomes_one_of_python(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    write_package("gymnasium:Blackjack-v1", tmp_path / "package")
    assert f"gradus-rl[gymnasium]=={__version__}" in project(tmp_path / "package")["dependencies"]
    assert "class GymnasiumBlackjackV1Env" in (tmp_path / "package" / "client.py").read_text()
    assert _words("reasoning-gym", "chain_sum") == ["reasoning", "gym", "chain", "sum"]


class _Silent:
    """An environment without rewards of its own."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def step(self, action: str) -> Any:
        return replace(self._inner.step(action), reward=None)


def test_what_gives_no_episode_a_reward_is_not_packaged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spec = environments.load("arithmetic")
    grader = replace(spec.grader(), compute=lambda episodes: [None] * len(episodes), range=None)
    silent = replace(spec, graders={"none": grader}, default_grader="none", make=lambda: _Silent(spec.make()))
    monkeypatch.setattr("gradus.environments.load", lambda name: silent)
    with pytest.raises(ConfigError, match="has no reward"):
        write_package("arithmetic", tmp_path / "package")
    assert not (tmp_path / "package").exists()


def test_nothing_is_overwritten_and_code_of_others_is_refused(package: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not an empty folder"):
        write_package("rhythm", package)
    spec = environments.load("arithmetic")
    environments.register("of_this_session", lambda _: spec)
    for name in ("somewhere.else:spec", "of_this_session", "openenv:ws://x"):
        with pytest.raises(
            ConfigError,
            match=rf"only environments of Gradus and of installed packages .* got '{name}'; `gradus serve-env",
        ):
            write_package(name, tmp_path / "x")
        assert not (tmp_path / "x").exists()
