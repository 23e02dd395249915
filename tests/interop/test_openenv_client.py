"""Any OpenEnv server as an environment: a rollout through it equals one in process."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gradus import FunctionPolicy
from gradus.core import ConfigError, EnvironmentFault, EnvironmentSpec, Observation, StopReason, Task, ToolCall
from gradus.core.calls import write_calls
from gradus.interop.openenv.client import load
from gradus.interop.openenv.server import create_app, server_config
from gradus.policies.scripted import Script
from gradus.rollouts import roll_out


def counting(seen: Observation, script: Script) -> str:
    """Answers 1, 2, 3, ... in every episode, and ``no`` at the third turn."""
    script.memory["turn"] = script.memory.get("turn", 0) + 1
    return "no" if script.memory["turn"] == 3 else str(script.memory["turn"])


COUNTING = FunctionPolicy("counting", counting)


@pytest.fixture(scope="module")
def address(make_adder: Callable[..., EnvironmentSpec], serve: Callable[..., Any]) -> Iterator[str]:
    with serve(server_config(create_app(make_adder([]), sessions=8))) as served:
        yield served


@pytest.mark.parametrize("scheme", ["ws", "http"])
def test_playing_through_a_server_is_playing_in_process(address: str, adder: EnvironmentSpec, scheme: str) -> None:
    there = load(f"{scheme}://{address}?turns=6&sessions=8")
    tasks = [Task(environment="adder", seed=seed) for seed in range(3)]
    remote = roll_out(there, COUNTING, tasks, group_size=2).episodes
    local = roll_out(adder, COUNTING, tasks, group_size=2).episodes
    assert len(remote) == 6
    for far, near in zip(remote, local, strict=True):
        assert far.stop is StopReason.TERMINATED
        assert far.system_prompt == near.system_prompt
        assert [turn.env_reward for turn in far.turns] == [turn.env_reward for turn in near.turns]
        assert [turn.observation for turn in far.turns] == [turn.observation for turn in near.turns]
        assert [turn.data for turn in far.turns] == [turn.data for turn in near.turns]
        assert [turn.valid for turn in far.turns] == [turn.valid for turn in near.turns]
        assert not far.turns[2].valid
        assert far.reward.value == pytest.approx(near.reward.value, abs=1e-12)
        assert far.outcome == {}  # hidden truth does not come over the wire


def test_the_system_prompt_names_the_tools_of_a_server_and_a_line_calls_one(
    pantry: EnvironmentSpec, serve: Callable[..., Any]
) -> None:
    """No tool was told and no reward came, so no episode could be graded."""

    def look(seen: Observation, script: Script) -> str:
        assert '"name":"count"' in script.start.system_prompt
        return seen.text if seen.text.isdigit() else write_calls([ToolCall(name="count", arguments={"item": "figs"})])

    with serve(server_config(create_app(pantry))) as address:
        there = load(f"ws://{address}")
        tasks = [Task(environment="pantry", seed=seed) for seed in range(3)]
        episodes = roll_out(there, FunctionPolicy("look", look), tasks).episodes
    assert [each.reward and each.reward.value for each in episodes] == [0.9] * 3


def test_a_full_server_says_so(make_adder: Callable[..., EnvironmentSpec], serve: Callable[..., Any]) -> None:
    with serve(server_config(create_app(make_adder([]), sessions=1))) as address:
        greedy = load(f"ws://{address}?turns=2&sessions=2")
        crowded = roll_out(greedy, COUNTING, greedy.tasks("main", 2)).episodes
        (refused,) = [episode for episode in crowded if episode.stop == StopReason.FAILED]  # whoever came second
        assert "?sessions=1" in refused.failure.message
        assert {episode.stop for episode in crowded} == {StopReason.TURN_LIMIT, StopReason.FAILED}
        patient = load(f"ws://{address}?turns=2")
        assert [one.stop for one in roll_out(patient, COUNTING, patient.tasks("main", 2)).episodes] == [
            StopReason.TURN_LIMIT
        ] * 2
        with pytest.raises(ConfigError, match="allows 1; lower the group size, or allow more"):
            roll_out(patient, COUNTING, patient.tasks("main", 1), group_size=2)


def test_a_server_that_goes_away_is_an_error_with_its_address(
    make_adder: Callable[..., EnvironmentSpec], serve: Callable[..., Any]
) -> None:
    with serve(server_config(create_app(make_adder([])))) as address:
        spec = load(f"ws://{address}")
        environment = spec.make()
        environment.reset(seed=1)
    with pytest.raises(EnvironmentFault, match="stopped answering"):
        environment.step("1")
    with pytest.raises(EnvironmentFault, match="no OpenEnv server"):
        environment.reset(seed=1)
    with pytest.raises(ConfigError, match="is it running"):
        load(f"ws://{address}")


@pytest.mark.parametrize("address", [None, "localhost:8000", "ws://"])
def test_an_address_that_is_none(address: str | None) -> None:
    with pytest.raises(ConfigError, match="address"):
        load(address)


@pytest.mark.parametrize("query", ["turns=0", "sessions=x", "color=red"])
def test_options_are_checked(query: str) -> None:
    with pytest.raises(ConfigError, match=query.split("=")[0]):
        load(f"ws://127.0.0.1:1?{query}")
