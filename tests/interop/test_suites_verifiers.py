"""``verifiers:MODULE`` as an environment: verifiers itself, in a process with a Python of its own."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gradus import environments
from gradus.core import ConfigError, EnvironmentSpec, Observation
from gradus.policies.scripted import FunctionPolicy, Script
from gradus.rollouts import roll_out
from gradus.runs.job import resolve
from gradus.runs.recipe.record import Recipe
from gradus.runs.sources import data_sources, environment_sources


def sources_of(name: str, spec: EnvironmentSpec) -> dict[str, str]:
    """The digests of the data and the code of a run in this environment."""
    job = replace(resolve(Recipe(environment=name), environment=spec), named=True)
    return {**data_sources(job), **environment_sources(job)}


ADD = """
import verifiers.v1 as vf
from weights import weight

class Bonus(vf.State):
    bonus: float = 0.0

class Data(vf.TaskData):
    answer: str

class Add(vf.Task[Data, Bonus]):
    async def setup(self, trace) -> None:
        trace.state.bonus = 1.0 + len(trace.nodes)

    @vf.reward
    async def correct(self, trace) -> float:
        if trace.last_reply == "crash":
            raise ValueError("this grader broke")
        return float(trace.last_reply == self.data.answer) + trace.state.bonus

    @vf.reward(weight=weight)
    async def shown(self, trace) -> float:
        return float(len(trace.messages))

    async def finalize(self, trace) -> None:
        trace.state.bonus += 10

class AddTaskset(vf.Taskset[Add]):
    def load(self):
        for n in range(80):
            question, answer = vf.UserMessage(content=f"What is {n} + 1?"), str(n + 1)
            if n % 2:
                yield Add(Data(prompt=question.content, answer=answer, system_prompt="In words."))
            else:
                shots = [vf.UserMessage(content="What is 1 + 1?"), vf.AssistantMessage(content="2")]
                yield Add(Data(prompt=[*shots, question], answer=answer, system_prompt="In digits."))

__all__ = ["AddTaskset"]
"""


def test_without_verifiers_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADUS_VERIFIERS_PYTHON", raising=False)
    with pytest.raises(ConfigError, match=r"pip install verifiers.*GRADUS_VERIFIERS_PYTHON"):
        environments.load("verifiers:some_taskset")


@pytest.fixture
def write(stock_python: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Write a taskset for a Python that has verifiers 0.4; returns its name as an environment."""
    if "GRADUS_VERIFIERS_PYTHON" not in os.environ:
        monkeypatch.setenv("GRADUS_VERIFIERS_PYTHON", str(stock_python("verifiers==0.4.0")))

    def write(text: str, weight: float = 100.0) -> str:
        (tmp_path / "weights.py").write_text(f"weight = {weight}\n")
        (tmp_path / "mine.py").write_text(text)
        return f"verifiers:{tmp_path / 'mine.py'}"

    return write


def says(answers: Callable[[int], Sequence[str]]) -> FunctionPolicy:
    """The answers to a question with a number in it, one after another."""

    def answer(seen: Observation, script: Script) -> str:
        if "rest" not in script.memory:
            asked = seen.text.rsplit("hat is ", 1)[-1].replace("Buy 3", "").replace("+ 1", "")
            script.memory["rest"] = list(answers(int("".join(filter(str.isdigit, asked)))))
        return script.memory["rest"].pop(0)

    return FunctionPolicy("scripted", answer)


def paid(spec: EnvironmentSpec, count: int = 8) -> dict[str, float | None]:
    """The reward of the right answer by the system prompt of its task."""
    found = roll_out(spec, says(lambda n: [str(n + 1)]), spec.tasks("held-out", count)).episodes
    return {each.system_prompt: each.reward.value for each in found if each.reward}


@pytest.mark.slow
def test_a_task_of_one_reply_has_its_own_prompt_and_messages_and_its_hooks_run(write: Callable[..., str]) -> None:
    name = write(ADD)
    spec = environments.load(name)
    assert spec.teacher == "gold"
    found = roll_out(spec, spec.policy("gold"), spec.tasks("held-out", 8)).episodes
    roles = {each.system_prompt: [message.role for message in each.turns[0].messages] for each in found}
    assert roles == {"In words.": [], "In digits.": ["user", "assistant", "user"]}
    hooks, right = 11.0, 1.0
    assert paid(spec) == {"In words.": hooks + right + 300.0, "In digits.": hooks + right + 500.0}, "all messages count"
    broken = roll_out(spec, spec.policy("constant:crash"), spec.tasks("held-out", 1)).episodes[0]
    assert broken.reward
    assert broken.reward.value is None
    assert "this grader broke" in (broken.reward.error or "")
    before = sources_of(name, spec)
    assert sorted(before) == ["code of mine.py", "code of weights.py", "rows of mine.py"]
    edited = environments.load(write(ADD.replace("range(80)", "range(82)"), weight=0.0))  # in a new process
    assert paid(edited) == {"In words.": hooks + right, "In digits.": hooks + right}
    after = sources_of(name, edited)
    assert {key for key in before if before[key] == after[key]} == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("setup(self, trace)", "setup(self, trace, runtime)", "it has a sandbox"),
        (
            "    @vf.reward\n",
            "    @vf.intercept\n    async def cut(self, it): ...\n\n    @vf.reward\n",
            "it has interceptors",
        ),
        ("prompt=question.content", "prompt=None", "a user who speaks first"),
        ("class AddTaskset", "class NoTaskset", "cannot be loaded"),
        (
            "    @vf.reward\n",
            "    @classmethod\n    def toolsets(cls, config):\n        return [vf.Toolset]\n\n    @vf.reward\n",
            "it has tools, and tasks here take a prompt and one reply",
        ),
    ],
)
def test_what_a_taskset_needs_and_does_not_get_is_refused(
    write: Callable[..., str], old: str, new: str, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        environments.load(write(ADD.replace(old, new)))
