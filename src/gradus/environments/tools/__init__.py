"""Environments whose actions are calls of tools: Python functions, methods of a class, or an MCP server."""

from gradus.environments.tools.environment import ToolEnvironment
from gradus.environments.tools.mcp import McpTools
from gradus.environments.tools.spec import by_call, call_vocabulary, tool_environment
from gradus.environments.tools.tool import Tool, check_arguments

__all__ = [
    "McpTools",
    "Tool",
    "ToolEnvironment",
    "by_call",
    "call_vocabulary",
    "check_arguments",
    "tool_environment",
]
