"""A tool environment: the page's own one, and what becomes of every kind of answer."""

import json
import re
from pathlib import Path
from typing import Literal

import pytest

from gradus import environments
from gradus.core import ConfigError, EnvironmentFault, Message, StopReason, ToolCall
from gradus.core.calls import write_calls
from gradus.environments.tools import ToolEnvironment, tool_environment
from gradus.environments.tools.schema import function_schema
from gradus.rollouts import roll_out
from gradus.rollouts.storage import read_episodes, write_episodes

PAGE = Path(__file__).parents[2] / "docs" / "tools.md"


@pytest.fixture
def pantry(tmp_path):
    code = re.search(r"```python[^\n]*\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "pantry.py").write_text(code.group(1), encoding="utf-8")
    return environments.load(f"{tmp_path / 'pantry.py'}:spec")


def test_the_environment_of_the_page_runs_is_graded_and_is_stored(pantry, tmp_path):
    episodes = roll_out(pantry, pantry.policy("teacher"), pantry.tasks("main", 20)).episodes
    assert {episode.stop for episode in episodes} == {StopReason.TERMINATED}
    assert {round(episode.reward.value, 6) for episode in episodes} == {-0.1, 0.9}
    episode = episodes[0]
    first, second = episode.turns
    (call,) = first.calls
    (result,) = second.messages
    assert (result.role, result.call_id, result.name) == ("tool", call.id, "count")
    assert first.spans[0].name == "call_1"
    assert first.action[first.spans[0].start : first.spans[0].end] == write_calls([call])
    assert [term.span for term in episode.reward.terms[0]] == ["call_1"]
    assert episode.metrics["calls"] == 1.0
    assert episode.tools[0]["function"]["parameters"]["required"] == ["item"]
    write_episodes(tmp_path / "e.jsonl", episodes, environment="pantry")
    assert list(read_episodes(tmp_path / "e.jsonl").episodes) == episodes


class Desk:
    """Two tools, a user who answers once, and a reward of two components."""

    def reset(self, seed):
        self.log, self.done = [], False
        return "Hello."

    def note(self, text: str, times: int = 1) -> dict:
        """Write something down.

        Args:
            text: What.
            times: How often.
        """
        self.log += [text] * times
        return {"noted": len(self.log)}

    async def leave(self) -> str:
        """Go home."""
        if not self.log:
            raise ValueError("nothing is noted yet")
        self.done = True
        return "bye"

    def reply(self, text):
        return None if "bye" in text else "Really?"

    def get_reward(self):
        return {"noted": float(len(self.log)), "done": 0.5 * self.done}

    def outcome(self):
        return {"log": list(self.log)}


def call(name, **arguments):
    return write_calls([ToolCall(name=name, arguments=arguments)])


def test_every_kind_of_answer():
    desk = ToolEnvironment(Desk())
    assert desk.reset(seed=0).messages == (Message(role="user", content="Hello."),)
    assert [tool["function"]["name"] for tool in desk.tools] == ["leave", "note"]

    both = desk.step(call("leave") + "\n" + call("note", text="a", times=2))
    assert [message.content for message in both.messages] == ["Error: nothing is noted yet", '{"noted": 2}']
    assert [each.fault for each in both.action_calls] == ["failed", None]
    assert both.action_valid
    assert [span.name for span in both.action_spans] == ["call_1", "call_2"]

    wrong = desk.step(call("note", text=3) + "\n" + call("nota", text="b"))
    assert not wrong.action_valid
    assert wrong.messages[0].content == "Error: note: argument text: 3 is not of type 'string'"
    assert "there is no tool nota; the tools are leave, note" in wrong.messages[1].content

    broken = desk.step(call("note", text="c") + '\n{"name": "note", "arguments": {"text"')
    assert not broken.action_valid
    assert broken.messages[0].role == "user"
    assert "not JSON" in broken.messages[0].content
    assert desk.outcome()["log"] == ["a", "a"], "no call of an answer that cannot be read is carried out"

    assert desk.step("<think>bye?</think>I am done.").text == "Really?"
    ids = [each.id for seen in (both, wrong, broken) for each in seen.action_calls]
    assert len(set(ids)) == len(ids)
    assert {len(each) for each in ids} == {9}
    last = desk.step(Message(role="assistant", calls=(ToolCall(name="leave", id="own"),)))
    assert last.messages == (Message(role="tool", content="bye", call_id="own", name="leave"),)
    assert (last.terminated, last.reward) == (True, 2.5)
    assert desk.outcome() == {
        "answer": "I am done.",
        "reward": 2.5,
        "components": {"noted": 2.0, "done": 0.5},
        "log": ["a", "a"],
    }
    with pytest.raises(EnvironmentFault, match="over"):
        desk.step("again")


def test_what_cannot_be_a_tool_is_named():
    def undescribed(a: int) -> int:
        """No line for a."""
        return a

    class Bad:
        tools = (undescribed,)

        def reset(self):
            return ""

    with pytest.raises(ConfigError, match="undescribed cannot be described"):
        ToolEnvironment(Bad()).reset()
    with pytest.raises(ConfigError, match="needs a method reset"):
        ToolEnvironment(object())
    with pytest.raises(ConfigError, match="seeds of conditions"):
        tool_environment(Desk, name="desk", conditions={"main": range(1_000_000, 1_000_010)})


def test_a_function_is_described_as_transformers_describes_it():
    from transformers.utils import get_json_schema

    def book(self, room: int, names: list[str], kind: Literal["day", "night"] = "day", note: str | None = None) -> bool:
        """Book a room.

        It is paid later.

        Args:
            room: The number of the room,
                as it stands on the door.
            names: Who comes.
            kind: Of stay.
            note: For the desk.

        Returns:
            Whether it is free.
        """
        return True

    def mixed(a: dict[str, float], b: int | str, c: list[int] | str) -> None:
        """Take all.

        Args:
            a: Weights.
            b: A number or a name.
            c: Either.
        """

    for function in (book, mixed, Desk.note):
        theirs = get_json_schema(function)
        theirs["function"].pop("return", None)
        assert json.dumps(function_schema(function)) == json.dumps(theirs)
