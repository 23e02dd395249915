"""Names of environments: registered, installed by another package, or one's own code."""

import subprocess
import sys

import pytest

from gradus import environments
from gradus.core import ConfigError

SPEC = """
from gradus.core import Condition, EnvironmentSpec, Grader, Observation, Task
import helper_beside_it

spec = EnvironmentSpec(
    name="coin", summary=helper_beside_it.TEXT, make=object, max_turns=1,
    graders={"right": Grader(name="right", compute=lambda episodes: [0.0] * len(episodes))},
    conditions={"main": Condition(name="main", seeds=range(3))},
    train_task=lambda index: Task(environment="coin", seed=index),
)
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "helper_beside_it.py").write_text("TEXT = 'heads or tails'")
    path = tmp_path / "coin.py"
    path.write_text(SPEC)
    return path


def test_a_file_and_a_name_are_an_environment(file):
    assert environments.load(f"{file}:spec").summary == "heads or tails"


@pytest.mark.parametrize(("folder", "way"), [(".", "./"), ("below", "../")])
def test_a_file_may_be_named_from_the_folder_here_or_the_one_above(folder, way, file, monkeypatch):
    (here := file.parent / folder).mkdir(exist_ok=True)
    monkeypatch.chdir(here)
    for name in (f"{way}coin.py:spec", f"{way}coin.py"):
        assert environments.load(name).summary == "heads or tails"
    with pytest.raises(ConfigError, match=r"'\.coin:spec' should be module:attribute or FILE\.py:NAME"):
        environments.load(".coin:spec")


def test_a_mistyped_name_gets_a_suggestion(file):
    with pytest.raises(ConfigError, match="did you mean rhythm"):
        environments.load("rythm")
    with pytest.raises(ConfigError, match=r"did you mean spec\?; it holds spec$"):
        environments.load(f"{file}:spek")
    with pytest.raises(ConfigError, match="no file"):
        environments.load("nowhere.py:spec")


def test_a_name_from_a_data_file_runs_no_code(file):
    with pytest.raises(ConfigError, match="unknown environment"):
        environments.load_registered(f"{file}:spec")


def test_another_package_brings_an_environment_by_its_entry_point(tmp_path, file):
    """An installed distribution is a folder with metadata on the path."""
    info = tmp_path / "coin_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: coin-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gradus.environments]\ncoin = coin:spec\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from gradus import environments\n"
        "assert 'coin' in environments.names()\n"
        "print(environments.load('coin').summary)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert said.stdout == "heads or tails\n", said.stderr
