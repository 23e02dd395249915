"""Every door takes code of one's own as FILE.py:NAME, and says what is there if the name is not."""

from pathlib import Path

import pytest

import gradus
from gradus.commands.training import make_job
from gradus.core import ConfigError
from gradus.core.naming import import_object

CODE = """
import gradus
from gradus.algorithms import find_algorithm
from gradus.policies.local.policy import LocalPolicy

always = gradus.FunctionPolicy("always", lambda seen, script: "<answer> 4 </answer>")
mine = find_algorithm("grpo")


def make(argument):
    return always


class Engine(LocalPolicy):
    synced = []

    def __init__(self, loaded, sampling):
        super().__init__(loaded, sampling, name="own")

    def sync_weights(self, loaded, step):
        self.synced.append(step)
"""
TINY = {
    "model.nano.hidden_size": 16, "model.nano.layers": 1, "model.nano.heads": 2, "model.nano.intermediate_size": 32,
    "teach.episodes": 8, "sft.max_steps": 1, "grpo.max_steps": 2, "grpo.groups": 2, "grpo.group_size": 2, "eval.episodes": 2,
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


@pytest.mark.parametrize("name", ["always", "make"])
def test_a_policy_and_a_teacher_may_be_code_of_ones_own(file: Path, name: str) -> None:
    episodes = gradus.roll_out("arithmetic", f"{file}:{name}", episodes=2).episodes
    assert {episode.turns[0].action for episode in episodes} == {"<answer> 4 </answer>"}


def test_a_name_that_a_file_does_not_have_is_refused_with_those_that_it_has(file: Path) -> None:
    for call in (
        lambda: gradus.roll_out("arithmetic", f"{file}:allways"),
        lambda: make_job("arithmetic", settings={"grpo.algorithm": f"{file}:minee"}),
        lambda: make_job("arithmetic", rewards=[f"{file}:makee"]),
    ):
        with pytest.raises(ConfigError, match=r"mine\.py has no .*(always|mine|make)"):
            call()


def test_a_run_takes_an_algorithm_and_an_engine_of_ones_own(file: Path, tmp_path: Path) -> None:
    own = {"grpo.algorithm": f"{file}:mine", "grpo.sampler": f"{file}:Engine", "grpo.correction": "truncate"}
    run = gradus.run("arithmetic", quick=True, out=tmp_path / "run", settings={**TINY, **own})
    assert [record["step"] for record in run.metrics()] == [1, 2]
    engine = import_object(f"{file}:Engine", "engine")
    assert engine.synced == [0, 1, 2]
