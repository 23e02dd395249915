"""``verifiers:MODULE`` as an environment: verifiers itself, in a process with a Python of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gradus import environments
from gradus.core import ConfigError, EnvironmentSpec, Observation, ToolCall
from gradus.core.calls import write_calls
from gradus.interop.suites.verifiers import _item
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.nano.model import NanoConfig, make_nano
from gradus.policies.scripted import FunctionPolicy, Script
from gradus.rollouts import roll_out
from gradus.runs.stages.sources import environment_sources
from gradus.training.config import GrpoConfig
from gradus.training.grpo import train_grpo
from gradus.training.run.options import GrpoOptions

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

BUY = '''
import verifiers.v1 as vf

class Basket(vf.State):
    total: int = 0

class Prices(vf.TaskData):
    answer: str
    price: int

class ShopTools(vf.Toolset[vf.ToolsetConfig, Basket]):
    TOOL_PREFIX = "shop"

    async def setup_task(self, task):
        self.price = task.price

    @vf.tool
    async def put(self, count: int) -> str:
        """Put things into the basket."""
        if count < 0:
            raise ValueError("less than nothing")
        self.state.total += count * self.price
        return f"the basket costs {self.state.total}"

class Buy(vf.Task[Prices, Basket]):
    @classmethod
    def toolsets(cls, config):
        return [ShopTools(vf.ToolsetConfig())]

    @vf.reward
    async def total(self, trace) -> float:
        return float(trace.state.total)

    @vf.reward(weight=0.5)
    async def told(self, trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.stop
    async def broke(self, trace) -> bool:
        return trace.state.total > 50

class BuyTaskset(vf.Taskset[Buy]):
    def load(self):
        for price in range(1, 61):
            yield Buy(Prices(prompt=f"Buy 3 things at {price}.", answer=str(3 * price), price=price, system_prompt="Buy."))

__all__ = ["BuyTaskset"]
'''


def test_without_verifiers_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADUS_VERIFIERS_PYTHON", raising=False)
    with pytest.raises(ConfigError, match=r"pip install verifiers.*GRADUS_VERIFIERS_PYTHON"):
        environments.load("verifiers:some_taskset")


@pytest.mark.parametrize(("answer", "text"), [(0, "0"), (False, "False"), (None, ""), ("7", "7")])
def test_an_answer_of_0_is_an_answer(answer: object, text: str) -> None:
    assert _item({"question": "q", "answer": answer, "system": "", "messages": []}, 0).answer == text


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("verifiers:none.py", r"no file none\.py"),
        ("verifiers", "takes a module"),
        ("verifiers:m?turns=many", "turns=NUMBER"),
    ],
)
def test_what_is_missing_is_said(name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        environments.load(name)


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


def call(name: str, **arguments: object) -> str:
    return write_calls([ToolCall(name=name, arguments=arguments)])


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
    before = environment_sources(name, spec)
    assert sorted(before) == ["code of mine.py", "code of weights.py", "rows of mine.py"]
    edited = environments.load(write(ADD.replace("range(80)", "range(82)"), weight=0.0))  # in a new process
    assert paid(edited) == {"In words.": hooks + right, "In digits.": hooks + right}
    after = environment_sources(name, edited)
    assert {key for key in before if before[key] == after[key]} == set()


@pytest.mark.slow
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
        ("class AddTaskset", "class NoTaskset", "cannot be loaded"),
    ],
)
def test_what_a_taskset_needs_and_does_not_get_is_refused(
    write: Callable[..., str], old: str, new: str, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        environments.load(write(ADD.replace(old, new)))


@pytest.mark.slow
def test_a_taskset_with_tools_keeps_its_state_rewards_and_stops(write: Callable[..., str]) -> None:
    spec = environments.load(write(BUY))
    policy = says(
        lambda n: [call("shop_put", count=1), call("shop_put", count=-1), call("shop_put", count=2), str(3 * n)]
    )
    episodes = roll_out(spec, policy, spec.tasks("held-out"), group_size=2).episodes
    for each in episodes:
        price = int(each.turns[0].observation.rsplit(" ", 1)[1].rstrip("."))
        stopped = 3 * price > 50  # behind the third call, if not the first
        assert each.reward is not None
        assert each.reward.value == (price if price > 50 else 3 * price + (0 if stopped else 0.5))
        assert len(each.turns) == (1 if price > 50 else 3 if stopped else 4)
    whole = next(each for each in episodes if len(each.turns) == 4)
    assert "less than nothing" in whole.turns[2].messages[0].content
    assert whole.system_prompt == "Buy."
    odd = says(lambda n: ["{'name':", call("nothing"), "0"])
    faults = roll_out(spec, odd, spec.tasks("held-out", 1)).episodes[0]
    assert [[each.fault for each in turn.calls] for turn in faults.turns] == [["malformed"], ["refused"], []]
    assert faults.turns[1].messages[0].content.startswith("Error: the call is not JSON")
    cut = environments.load(f"{spec.name}?turns=1")
    (ended,) = roll_out(cut, policy, cut.tasks("held-out", 1)).episodes
    assert (ended.stop, ended.reward is not None) == ("turn_limit", True)


@pytest.mark.slow
def test_such_episodes_can_be_trained_on(write: Callable[..., str], tmp_path: Path) -> None:
    spec = environments.load(write(BUY))
    assert spec.language.vocabulary is not None
    shape = NanoConfig(hidden_size=32, layers=2, heads=2, kv_heads=1, intermediate_size=64, context=1024)
    model = make_nano(tmp_path / "nano", spec.language.vocabulary(), shape, seed=1)
    config = GrpoConfig(
        max_steps=2,
        groups=2,
        group_size=4,
        validation_every=0,
        device="cpu",
        sampling=SamplingConfig(max_new_tokens=20),
    )
    assert train_grpo(model, spec, config, tmp_path / "run", options=GrpoOptions(live=False)).steps == 2
