"""TRL's documented way to write tools, environments and rewards, run here unchanged and rewarded as TRL does."""

import asyncio
import random
from typing import Any

import pytest

from gradus import FunctionPolicy
from gradus.core import ConfigError, ToolCall
from gradus.core.calls import write_calls
from gradus.interop.trl_tools import trl_environment
from gradus.rollouts import grade_episodes, roll_out


# As TRL's documentation writes them: GRPO trainer, "Agent training".
def multiply(a: int, b: int) -> int:
    """
    Multiplies two integers.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        The product of the two integers.
    """
    return a * b


async def async_add(a: int, b: int) -> int:
    """
    Asynchronously adds two integers.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        The sum of the two integers.
    """
    return a + b


class IncrementEnv:
    def reset(self, **kwargs) -> str | None:
        self.counter = 0
        self.target = random.randint(1, 6)
        return f"Increment the counter by {self.target}."

    def get_reward(self) -> float:
        return float(self.counter == self.target)

    def increment(self, step: int) -> int:
        """
        Increment the internal counter.

        Args:
            step: Value to add to the counter.

        Returns:
            The updated counter value.
        """
        self.counter += step
        return self.counter


def steps_left(environments, **kwargs):
    return [float(abs(environment.target - environment.counter)) for environment in environments]


def called(completions, answer, **kwargs):
    """1 for the answer, a tenth for each call, as a function of TRL's conversational completions."""
    calls = [sum(len(message.get("tool_calls", ())) for message in completion) for completion in completions]
    right = [
        float(completion[-1]["content"] == str(gold)) for completion, gold in zip(completions, answer, strict=True)
    ]
    return [1.0 * hit + 0.1 * count for hit, count in zip(right, calls, strict=True)]


def as_trl(rows, calls, functions):
    """What TRL's tool loop makes of these calls for each row, and the rewards of the functions."""
    by_name = {function.__name__: function for function in (multiply, async_add)}
    completions = []
    for _ in rows:
        messages = []
        for name, arguments in calls:
            function = {"name": name, "arguments": arguments}
            messages.append(
                {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
            )
            try:
                result = by_name[name](**arguments)
                result = asyncio.run(result) if asyncio.iscoroutine(result) else result
            except Exception as error:
                result = {"error": str(error)}
            messages.append({"role": "tool", "name": name, "content": str(result)})
        completions.append([*messages, {"role": "assistant", "content": messages[-1]["content"]}])
    columns = {"answer": [row["answer"] for row in rows]}
    return completions, [function(completions=completions, **columns) for function in functions]


def test_tools_and_reward_functions_give_the_rewards_that_trl_gives():
    rows = [
        {"prompt": [{"role": "user", "content": f"What is {a} times 4, plus 2?"}], "answer": a * 4 + 2}
        for a in (3, 4, 5, 6)
    ]
    seen = []

    def watched(completions, **kwargs):
        seen.extend(completions)
        return [0.0] * len(completions)

    calls = [("multiply", {"a": 3, "b": 4}), ("multiply", {"a": "x", "c": 1}), ("async_add", {"a": 12, "b": 2})]
    spec = trl_environment("sums", rows=rows, reward_funcs=[(called, 2.0), watched], tools=[multiply, async_add])

    def play(observation, script):
        turn = script.memory["turn"] = script.memory.get("turn", -1) + 1
        if turn == len(calls):
            return observation.text
        return write_calls([ToolCall(name=calls[turn][0], arguments=calls[turn][1])])

    tasks = [spec.train_task(index) for index in range(3)]
    episodes = roll_out(spec, FunctionPolicy("fixed", play), tasks).episodes
    completions, (rewards,) = as_trl(rows[:3], calls, [called])
    assert (
        [episode.reward.components["called"] for episode in episodes]
        == rewards
        == [1.3, pytest.approx(0.3), pytest.approx(0.3)]
    )
    assert [episode.reward.value for episode in episodes] == pytest.approx([2 * reward for reward in rewards])
    assert seen == completions
    assert episodes[0].turns[0].observation == "What is 3 times 4, plus 2?"
    assert {task.options["held_out"] for task in spec.tasks("main")} == {3}
    assert (
        roll_out(spec, FunctionPolicy("none", lambda o, s: o.text), spec.tasks("main"))
        .episodes[0]
        .turns[0]
        .observation.startswith("What is 6")
    )


def test_an_environment_class_runs_unchanged_and_owns_its_reward():
    spec = trl_environment("increment", environment_factory=IncrementEnv, reward_funcs=[steps_left])

    def play(observation, script):
        if observation.messages[-1].role == "tool":
            return "done"
        wanted = int(observation.text.rstrip(".").split()[-1])
        return write_calls([ToolCall(name="increment", arguments={"step": wanted - script.start.member})])

    before = random.getstate()
    groups = roll_out(spec, FunctionPolicy("counts", play), [spec.train_task(i) for i in range(6)], group_size=2).groups
    assert random.getstate() == before
    targets = {group.episodes[0].turns[0].observation for group in groups}
    assert len(targets) > 1
    for group in groups:
        assert group.episodes[0].turns[0].observation == group.episodes[1].turns[0].observation
        assert [dict(episode.reward.components) for episode in group.episodes] == [
            {"steps_left": 0.0, "IncrementEnv": 1.0},
            {"steps_left": 1.0, "IncrementEnv": 0.0},
        ]
        again = grade_episodes(spec, group.episodes, spec.grader())
        assert [episode.reward.value for episode in again] == [1.0, 1.0]
    assert [tool["function"]["name"] for tool in groups[0].episodes[0].tools] == ["increment"]


def test_parts_of_a_prompt_are_joined_and_class_methods_are_tools():
    class Named(IncrementEnv):
        @classmethod
        def name(cls) -> str:
            """
            Say the name.

            Returns:
                The name.
            """
            return cls.__name__

    said = [{"role": "user", "content": [{"type": "text", "text": "Begin. "}]}]
    spec = trl_environment("named", environment_factory=Named, rows=[{"prompt": said}] * 20)
    (episode,) = roll_out(spec, FunctionPolicy("says", lambda *_: "done"), [spec.train_task(0)]).episodes
    assert episode.turns[0].observation.startswith("Begin. Increment the counter by")
    assert [tool["function"]["name"] for tool in episode.tools] == ["increment", "name"]


def test_what_is_missing_is_named():
    with pytest.raises(ConfigError, match="nothing gives a reward"):
        trl_environment("x", tools=[multiply], rows=[{"prompt": "a"}] * 2)
    with pytest.raises(ConfigError, match="nothing says what to ask"):
        trl_environment("x", tools=[multiply], reward_funcs=[steps_left])
    with pytest.raises(ConfigError, match="two rows or more"):
        trl_environment("x", tools=[multiply], reward_funcs=[steps_left], rows=[{"prompt": "a"}])
    made: Any = IncrementEnv()  # a TypeError without a name, in the first episode
    with pytest.raises(ConfigError, match="give the class, IncrementEnv, got an instance"):
        trl_environment("x", environment_factory=made, reward_funcs=[steps_left])


@pytest.mark.parametrize("prompt", [[], "", None, 5, ["hi"], [{"role": "user", "content": None}], ...])
def test_a_row_that_asks_nothing_is_named(prompt):
    row = {"question": "hi"} if prompt is ... else {"prompt": prompt}
    with pytest.raises(ConfigError, match="row 2"):
        trl_environment("x", reward_funcs=called, rows=[{"prompt": "a"}, row, {"prompt": "b"}])


def test_a_class_may_say_itself_what_an_empty_prompt_asks():
    empty = [{"prompt": [{"role": "user", "content": ""}], "number": number} for number in range(5)]
    spec = trl_environment("x", environment_factory=IncrementEnv, rows=empty)
    assert spec.make().reset(seed=3).text.startswith("Increment")


def test_rows_that_ask_the_same_are_in_one_part():
    rows = [{"prompt": f"What is {n % 10}?", "answer": n} for n in range(50)]
    spec = trl_environment("x", reward_funcs=called, rows=rows)
    trained = {spec.make().reset(seed=i, **spec.train_task(i).options).text for i in range(50)}
    kept = [spec.make().reset(seed=task.seed, **task.options).text for task in spec.tasks("main")]
    assert len(trained) == 8
    assert sorted(kept) == ["What is 8?", "What is 9?"]
    assert trained.isdisjoint(kept)


def test_rows_that_are_all_the_same_leave_the_question_to_the_seed():
    spec = trl_environment("x", environment_factory=IncrementEnv, rows=[{"prompt": "Begin."}] * 20)
    trained = {spec.identify(spec.train_task(index)).id for index in range(40)}
    assert len(trained) == 40
    assert trained.isdisjoint(spec.identify(task).id for task in spec.tasks("main"))
