"""``verifiers:MODULE`` as an environment, in a process with a Python of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradus import environments
from gradus.core import ConfigError
from gradus.interop.suites.verifiers import _item
from gradus.rollouts import roll_out

PYTHON = os.environ.get("GRADUS_VERIFIERS_PYTHON") or sys.executable

TASKSET = """
import verifiers.v1 as vf

class AddData(vf.TaskData):
    answer: str

class AddTask(vf.Task[AddData]):
    @vf.reward
    async def correct(self, trace) -> float:
        if trace.last_reply == "crash":
            raise ValueError("this grader broke")
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.5)
    async def short(self, trace) -> float:
        return float(len(trace.last_reply) < 5)

class AddTaskset(vf.Taskset[AddTask]):
    def load(self):
        for n in range(200):
            yield AddTask(AddData(prompt=f"What is {n} + 1?", answer=str(n + 1), system_prompt="Give a number."))

__all__ = ["AddTaskset"]
"""


def has_verifiers() -> bool:
    code = "import importlib.util as u, sys; sys.exit(not (u.find_spec('verifiers') and u.find_spec('verifiers.v1')))"
    return subprocess.run([PYTHON, "-c", code], capture_output=True).returncode == 0


def test_without_verifiers_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.executable == PYTHON and has_verifiers():
        pytest.skip("verifiers is installed here")
    monkeypatch.delenv("GRADUS_VERIFIERS_PYTHON", raising=False)
    with pytest.raises(ConfigError, match=r"pip install verifiers.*GRADUS_VERIFIERS_PYTHON"):
        environments.load("verifiers:some_taskset")


def test_a_taskset_is_scored_by_its_own_rewards(tmp_path: Path) -> None:
    if not has_verifiers():
        pytest.skip("needs verifiers 0.4 in the Python that GRADUS_VERIFIERS_PYTHON names")
    file = tmp_path / "add_taskset.py"
    file.write_text(TASKSET)
    spec = environments.load(f"verifiers:{file}")
    assert spec.teacher == "gold"
    for policy, expected in (("gold", 1.5), ("constant:none", 0.5), ("constant:a long text", 0.0)):
        episodes = roll_out(spec, spec.policy(policy), spec.tasks("held-out", 5)).episodes
        assert [each.reward.value for each in episodes if each.reward] == [expected] * 5
        assert episodes[0].system_prompt == "Give a number."
    broken = roll_out(spec, spec.policy("constant:crash"), spec.tasks("held-out", 1)).episodes[0]
    assert broken.reward
    assert broken.reward.value is None
    assert "this grader broke" in (broken.reward.error or "")


@pytest.mark.parametrize(("answer", "text"), [(0, "0"), (False, "False"), (None, ""), ("7", "7")])
def test_an_answer_of_0_is_an_answer(answer: object, text: str) -> None:
    assert _item({"question": "q", "answer": answer, "system": "", "messages": []}, 0).answer == text


def test_what_is_missing_is_said() -> None:
    with pytest.raises(ConfigError, match=r"no file none\.py"):
        environments.load("verifiers:none.py")
    with pytest.raises(ConfigError, match="takes a module"):
        environments.load("verifiers")
