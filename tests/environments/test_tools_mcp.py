"""Servers of the official MCP package as tools: one in this process, one started for each episode."""

import sys

import pytest

from gradus import FunctionPolicy
from gradus.core import ConfigError, StopReason, ToolCall
from gradus.core.calls import write_calls
from gradus.environments.tools import McpTools, ToolEnvironment, tool_environment
from gradus.rollouts import roll_out

pytest.importorskip("mcp")

SERVER = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("counter")
total = 0


@server.tool()
def add(number: int) -> str:
    \"\"\"Add a number to the total.\"\"\"
    global total
    if number < 0:
        raise ValueError("no negative numbers")
    total += number
    return f"the total is {total}"


@server.tool()
def total_so_far() -> int:
    \"\"\"The total.\"\"\"
    return total


if __name__ == "__main__":
    server.run()
"""


def call(name, /, **arguments):
    return write_calls([ToolCall(name=name, arguments=arguments)])


@pytest.fixture
def server_file(tmp_path):
    file = tmp_path / "counter_server.py"
    file.write_text(SERVER, encoding="utf-8")
    return file


def asking(*tools):
    class Asking:
        def reset(self):
            return "Add seven."

    Asking.tools = tools if len(tools) > 1 else tools[0]
    return Asking


def test_every_episode_has_a_server_of_its_own(server_file):
    spec = tool_environment(asking(f"mcp:{sys.executable} {server_file}"), name="counter", max_turns=3)
    policy = FunctionPolicy("adder", lambda seen, script: call("add", number=7) if script.start.member == 0 else "done")
    first, second = roll_out(spec, policy, spec.tasks("main", 1), group_size=2).groups[0].episodes
    assert [tool["function"]["name"] for tool in first.tools] == ["add", "total_so_far"]
    assert first.tools[0]["function"]["parameters"]["properties"]["number"]["type"] == "integer"
    assert [turn.messages[0].content for turn in first.turns[1:]] == ["the total is 7", "the total is 14"]
    assert (second.stop, second.failure) == (StopReason.TERMINATED, None)


def test_a_server_in_this_process_is_shared_and_its_errors_are_results():
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("greeter")

    @server.tool()
    def greet(name: str) -> str:
        """Greet."""
        if not name:
            raise ValueError("nobody is there")
        return f"hello {name}"

    tools = McpTools(server)
    environment = ToolEnvironment(asking(tools)())
    environment.reset(seed=0)
    assert environment.step(call("greet", name="Ada")).text == "hello Ada"
    failed = environment.step(call("greet", name=""))
    assert failed.action_calls[0].fault == "failed"
    assert "greet" in failed.text
    refused = environment.step(call("greet"))
    assert refused.action_calls[0].fault == "refused"
    environment.close()
    assert [tool.name for tool in tools.tools] == ["greet"], "what is shared is not closed by one episode"
    tools.close()
    with pytest.raises(ConfigError, match="has no tool 'wave'; it has greet"):
        McpTools(server, only=["wave"]).tools


def test_a_server_that_does_not_start_is_named():
    with pytest.raises(ConfigError, match=r"MCP server 'mcp:no-such-program' does not answer"):
        McpTools("mcp:no-such-program", timeout=10).tools
