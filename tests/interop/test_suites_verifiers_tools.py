"""Tools and several turns of verifiers: environments up to 0.3 and tasksets of 0.4, each where it is installed."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gradus import environments
from gradus.core import ConfigError, EnvironmentSpec, Observation, ToolCall
from gradus.core.calls import write_calls
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.nano.model import NanoConfig, make_nano
from gradus.policies.scripted import FunctionPolicy, Script
from gradus.rollouts import roll_out
from gradus.training.config import GrpoConfig
from gradus.training.grpo import train_grpo

PYTHON = os.environ.get("GRADUS_VERIFIERS_PYTHON") or sys.executable

ENVIRONMENT = '''
import verifiers as vf
from datasets import Dataset


def double(x: int) -> int:
    """Double a number.

    Args:
        x: The number.
    """
    return 2 * x


def fail(x: int) -> int:
    """Raise.

    Args:
        x: A number.
    """
    raise ValueError("the tool is broken")


class Buttons(vf.StatefulToolEnv):
    def __init__(self, **more):
        super().__init__(max_turns=6, **more)
        self.add_tool(self.press, args_to_skip=["state"])

    async def setup_state(self, state, **more):
        state["pressed"] = 0
        return state

    async def press(self, times: int, state: dict) -> str:
        """Press the button.

        Args:
            times: How often.
        """
        state["pressed"] += times
        return f"pressed {state['pressed']}"

    def update_tool_args(self, tool_name, tool_args, messages, state, **more):
        return {**tool_args, "state": state}


class Guess(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **more):
        if messages[-1].content == state["answer"]:
            state["final_env_response"] = [{"role": "user", "content": "right"}]
            return state["final_env_response"]
        return [{"role": "user", "content": f"not {messages[-1].content}"}]


def load_environment(kind="tools", largest=60):
    question = "Double {}, then double it again."
    rows = [{"question": question.format(n), "answer": str(4 * n)} for n in range(largest)]

    def right(completion, answer):
        return float(any(m.content == answer for m in completion if m.role == "assistant"))

    def calls(completion):
        return float(sum(len(m.tool_calls or []) for m in completion if m.role == "assistant"))

    def pressed(state):
        return float(state["pressed"])

    more = {"dataset": Dataset.from_list(rows), "rubric": vf.Rubric(funcs=[right, calls], weights=[1.0, 0.125])}
    if kind == "tools":
        return vf.ToolEnv(tools=[double, fail], max_turns=6, system_prompt="Use the tools.", **more)
    if kind == "state":
        return Buttons(**{**more, "rubric": vf.Rubric(funcs=[pressed])})
    return Guess(max_turns=4, **more)
'''

TASKSET = '''
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


def version() -> str:
    """That of verifiers; empty where it is not installed."""
    code = "from importlib.metadata import version\nprint(version('verifiers'))"
    return subprocess.run([PYTHON, "-c", code], capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> str:
    if not version().startswith("0.3"):
        pytest.skip("needs verifiers 0.3 in the Python that GRADUS_VERIFIERS_PYTHON names")
    file = tmp_path_factory.mktemp("verifiers") / "double_env.py"
    file.write_text(ENVIRONMENT)
    return f"verifiers:{file}"


@pytest.fixture(scope="module")
def taskset(tmp_path_factory: pytest.TempPathFactory) -> EnvironmentSpec:
    if not version().startswith("0.4"):
        pytest.skip("needs verifiers 0.4 in the Python that GRADUS_VERIFIERS_PYTHON names")
    file = tmp_path_factory.mktemp("verifiers") / "buy_taskset.py"
    file.write_text(TASKSET)
    return environments.load(f"verifiers:{file}")


def call(name: str, **arguments: object) -> str:
    return write_calls([ToolCall(name=name, arguments=arguments)])


def says(answers: Callable[[int], Sequence[str]]) -> FunctionPolicy:
    """The answers to a question with a number in it, one after another."""

    def answer(seen: Observation, script: Script) -> str:
        if "rest" not in script.memory:
            number = int("".join(filter(str.isdigit, seen.text.replace("Buy 3", ""))))
            script.memory["rest"] = list(answers(number))
        return script.memory["rest"].pop(0)

    return FunctionPolicy("scripted", answer)


def test_a_tool_environment_gives_the_rewards_that_it_gives_itself(environment: str) -> None:
    spec = environments.load(environment)
    policy = says(lambda n: [call("double", x=n) + "\n" + call("nothing"), call("fail", x=1), "{'name':", str(4 * n)])
    episodes = roll_out(spec, policy, spec.tasks("held-out", 2), group_size=2).episodes
    assert [each.reward.value for each in episodes if each.reward] == [1 + 3 * 0.125] * 4  # right, and three calls
    first = episodes[0]
    assert first.system_prompt == "Use the tools."
    assert [schema["function"]["name"] for schema in first.tools] == ["double", "fail"]
    shown = [[(message.role, message.content) for message in turn.messages] for turn in first.turns]
    number = int(first.outcome["reward"] > 0 and first.turns[3].action) // 4
    assert shown[1] == [("tool", str(2 * number)), ("tool", "'nothing'")]
    assert shown[2] == [("tool", "the tool is broken")]
    assert shown[3][0][1].startswith("Error: the call is not JSON")
    assert [[each.fault for each in turn.calls] for turn in first.turns] == [
        [None, "refused"],
        [None],
        ["malformed"],
        [],
    ]
    ids = [each.id for each in first.turns[0].calls]
    assert [message.call_id for message in first.turns[1].messages] == ids


def test_hidden_arguments_and_state_stay_with_the_environment(environment: str) -> None:
    spec = environments.load(f"{environment}?kind=state")
    policy = says(lambda n: [call("press", times=2), call("press", times=3), "done"])
    episode = roll_out(spec, policy, spec.tasks("held-out", 1)).episodes[0]
    assert episode.reward is not None
    assert episode.reward.value == 5.0
    assert list(episode.tools[0]["function"]["parameters"]["properties"]) == ["times"]
    assert [turn.messages[0].content for turn in episode.turns[1:]] == ["pressed 2", "pressed 5"]


def test_turns_without_tools_end_as_the_environment_says_or_at_our_limit(environment: str) -> None:
    spec = environments.load(f"{environment}?kind=guess&largest=40")
    policy = says(lambda n: ["7x", str(4 * n)])
    episode = roll_out(spec, policy, spec.tasks("held-out", 1)).episodes[0]
    assert (episode.stop, episode.reward and episode.reward.value) == ("terminated", 1.0)
    assert episode.turns[1].messages[0].content == "not 7x"
    assert episode.final is not None
    assert episode.final.text == "right"
    short = environments.load(f"{environment}?kind=guess&turns=2")
    cut = roll_out(short, says(lambda n: ["7x", "8x"]), short.tasks("held-out", 1)).episodes[0]
    assert (cut.stop, len(cut.turns), cut.reward and cut.reward.value) == ("turn_limit", 2, 0.0)


def test_a_taskset_with_tools_keeps_its_state_rewards_and_stops(taskset: EnvironmentSpec) -> None:
    policy = says(
        lambda n: [call("shop_put", count=1), call("shop_put", count=-1), call("shop_put", count=2), str(3 * n)]
    )
    episodes = roll_out(taskset, policy, taskset.tasks("held-out"), group_size=2).episodes
    for each in episodes:
        price = int(each.turns[0].observation.rsplit(" ", 1)[1].rstrip("."))
        stopped = 3 * price > 50  # behind the third call, if not the first
        assert each.reward is not None
        assert each.reward.value == (price if price > 50 else 3 * price + (0 if stopped else 0.5))
        assert len(each.turns) == (1 if price > 50 else 3 if stopped else 4)
    whole = next(each for each in episodes if len(each.turns) == 4)
    assert "less than nothing" in whole.turns[2].messages[0].content
    assert whole.system_prompt == "Buy."


def test_such_episodes_can_be_trained_on(environment: str, tmp_path: Path) -> None:
    spec = environments.load(f"{environment}?kind=state")
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
    result = train_grpo(model, spec, config, tmp_path / "run", live=False)
    assert result.steps == 2


def test_what_cannot_be_loaded_says_why(environment: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"turns=NUMBER"):
        environments.load(f"{environment}?turns=many")
    with pytest.raises(ConfigError, match=r"unexpected keyword argument 'depth'"):
        environments.load(f"{environment}?depth=3")
