"""Files of verifiers as they are written and edited: on verifiers itself where it is installed, elsewhere on a stand-in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from verifiers_stand_in import write_package

from gradus import environments
from gradus.core import ConfigError, Episode
from gradus.interop.suites.verifiers import _worker as processes
from gradus.policies.scripted import FunctionPolicy
from gradus.rollouts import roll_out
from gradus.runs.stages.sources import environment_sources

Write = Callable[..., str]

RUBRIC = """
import verifiers as vf

listed = __import__("datasets").Dataset.from_list if hasattr(vf, "Parser") else list
rows = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(60)]
kept = [{"question": f"Kept: what is {n} + 5?", "answer": str(n + 5)} for n in range(40)]


def right(completion, answer):
    if completion[-1].content == "boom":
        raise ValueError("this grader broke")
    return float(completion[-1].content == f"<think>x</think>\\n{answer} ")


def load_environment(dataset=True, eval_dataset=False):
    more = {"dataset": listed(rows) if dataset else None, "eval_dataset": listed(kept) if eval_dataset else None}
    return vf.SingleTurnEnv(rubric=vf.Rubric(funcs=[right], weights=[2.0]), **more)
"""

TASKSET = """
import verifiers.v1 as vf


class Bonus(vf.State):
    bonus: float = 0.0


class Data(vf.TaskData):
    answer: str


class Add(vf.Task[Data, Bonus]):
    async def setup(self, trace) -> None:
        trace.state.bonus = 1.0 + len(trace.nodes)

    @vf.reward
    async def correct(self, trace) -> float:
        return float(trace.last_reply == self.data.answer) + trace.state.bonus

    @vf.reward(weight=100.0)
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


@cache  # before a test changes the variable
def installed() -> str:
    """The release of verifiers in the Python that is named; empty if it has none."""
    python = os.environ.get("GRADUS_VERIFIERS_PYTHON") or sys.executable
    code = "from importlib.metadata import version\nprint(version('verifiers'))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()[:3]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a file for a release of verifiers that is there; returns its name as an environment."""

    def write(text: str, name: str = "mine.py", *, release: str) -> str:
        if installed() != release and not (tmp_path / "packages").exists():
            monkeypatch.setenv("GRADUS_VERIFIERS_PYTHON", sys.executable)
            monkeypatch.setenv("PYTHONPATH", write_package(tmp_path / "packages"))
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        return f"verifiers:{file}"

    return write


def episodes(name: str, reply: str | Callable[[str], str], count: int = 4) -> list[Episode]:
    """Held-out episodes; ``reply`` is one text, or made of the answer."""
    spec = environments.load(name)
    policy = FunctionPolicy("replies", lambda seen, _: reply if isinstance(reply, str) else reply(answer_of(seen.text)))
    return list(roll_out(spec, policy, spec.tasks("held-out", count)).episodes)


def answer_of(question: str) -> str:
    number, _, added = question.rsplit("hat is ", 1)[1].rstrip("?").partition(" + ")
    return str(int(number) + int(added))


def values(found: list[Episode]) -> set[float | None]:
    return {each.reward.value for each in found if each.reward}


def test_a_reply_reaches_a_rubric_as_it_was_said(write: Write) -> None:
    name = write(RUBRIC, release="0.3")
    assert values(episodes(name, lambda answer: f"<think>x</think>\n{answer} ")) == {2.0}
    assert values(episodes(name, lambda answer: answer)) == {0.0}


def test_what_a_function_of_a_rubric_raises_is_an_error_of_its_episode(write: Write) -> None:
    found = episodes(write(RUBRIC, release="0.3"), "boom", count=1)[0]
    assert found.reward is not None
    assert (found.reward.value, "this grader broke" in str(found.reward.error)) == (None, True)


def test_rows_that_an_environment_keeps_for_evaluation_are_held_out(write: Write) -> None:
    name = write(RUBRIC, release="0.3")
    both = environments.load(f"{name}?eval_dataset=true")
    assert (len(both.tasks("held-out")), both.summary[:9]) == (40, "100 tasks")
    found = episodes(f"{name}?eval_dataset=true", lambda answer: f"<think>x</think>\n{answer} ", count=7)
    assert [each.turns[0].observation[:5] for each in found] == ["Kept:"] * 7
    assert values(found) == {2.0}
    trained = roll_out(both, both.policy("gold"), [both.train_task(place) for place in range(60)]).episodes
    assert not any(each.turns[0].observation.startswith("Kept:") for each in trained)
    assert environments.load(f"{name}?dataset=false&eval_dataset=true").summary.startswith("40 tasks")


def test_files_of_one_name_are_environments_of_their_own(write: Write) -> None:
    one = write(RUBRIC, "one/mine.py", release="0.3")
    other = write(RUBRIC.replace("2.0", "3.0"), "other/mine.py", release="0.3")
    paid = [values(episodes(each, lambda answer: f"<think>x</think>\n{answer} ")) for each in (one, other)]
    assert paid == [{2.0}, {3.0}]


def test_a_file_that_was_edited_is_the_new_one_with_other_digests(write: Write, tmp_path: Path) -> None:
    helper = "weight = {}\n"
    text = "from weights import weight\n" + RUBRIC.replace("[2.0]", "[weight]")
    write(helper.format(2.0), "weights.py", release="0.3")
    name = write(text, release="0.3")
    before = environment_sources(name, environments.load(name))
    assert sorted(before) == ["code of mine.py", "code of weights.py", "rows of mine.py"]
    write(helper.format(5.0), "weights.py", release="0.3")
    assert values(episodes(name, lambda answer: f"<think>x</think>\n{answer} ")) == {5.0}
    write(text.replace("range(60)", "range(61)"), release="0.3")
    after = environment_sources(name, environments.load(name))
    assert {key for key in before if before[key] == after[key]} == set()


def test_the_digest_of_a_module_is_that_of_its_package(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sources(weight: str) -> dict[str, str]:
        write("from my_rubrics.rubric import load_environment\n", "my_rubrics/__init__.py", release="0.3")
        write(RUBRIC.replace("2.0", weight), "my_rubrics/rubric.py", release="0.3")
        path = os.environ.get("PYTHONPATH", "")
        monkeypatch.setenv("PYTHONPATH", path if str(tmp_path) in path.split(":") else f"{tmp_path}:{path}")
        processes.cache_clear()  # what is imported stays what it is
        return environment_sources("verifiers:my_rubrics", environments.load("verifiers:my_rubrics"))

    before, same, other = sources("2.0"), sources("2.0"), sources("3.0")
    assert before == same
    assert before["code of my_rubrics"] != other["code of my_rubrics"]
    processes.cache_clear()


def test_a_task_of_one_reply_has_its_own_system_prompt_and_messages_and_its_hooks_run(write: Write) -> None:
    found = episodes(write(TASKSET, release="0.4"), lambda answer: answer, count=8)
    roles = {each.system_prompt: [message.role for message in each.turns[0].messages] for each in found}
    assert roles == {"In words.": [], "In digits.": ["user", "assistant", "user"]}
    paid = {each.system_prompt: each.reward.value for each in found if each.reward}
    hooks, right = 11.0, 1.0
    assert paid == {"In words.": hooks + right + 100.0 * 3, "In digits.": hooks + right + 100.0 * 5}, (
        "all messages count"
    )


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("setup(self, trace)", "setup(self, trace, runtime)", r"Add\.setup needs a runtime"),
        (
            "    @vf.reward\n",
            "    @vf.intercept\n    async def cut(self, it): ...\n\n    @vf.reward\n",
            r"Add\.cut intercepts",
        ),
        ("prompt=question.content", "prompt=None", "has no prompt"),
        (
            '["AddTaskset"]',
            '["AddTaskset", "OwnEnv"]\n\n\nclass OwnEnv(vf.Env):\n    pass',
            "OwnEnv; expected a taskset",
        ),
    ],
)
def test_what_a_taskset_needs_and_does_not_get_is_refused(write: Write, old: str, new: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        environments.load(write(TASKSET.replace(old, new), release="0.4"))
