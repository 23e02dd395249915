"""An environment whose actions are calls of tools: the public methods of a plain class, and further functions."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import fsum
from typing import Any

from gradus.core import ConfigError, EnvironmentFault, GradusError, Message, Observation, ToolCall
from gradus.core.calls import call_spans, none_carried_out, read_message, without_thoughts
from gradus.core.values import stand_in
from gradus.core.waiting import settled
from gradus.environments.tools.mcp import McpTools
from gradus.environments.tools.tool import Tool, as_tool, check_arguments

HOOKS = ("reset", "get_reward", "reply", "outcome", "close")


class ToolEnvironment:
    """Runs an instance of a plain class, whose public methods are tools. All other members but ``reset`` may be left out.

    ``reset(seed, **options)`` begins an episode and returns what the user says first, or a list of messages; it gets the options that
    it names. ``system_prompt``: the rules. ``tools``: further tools: functions, :class:`Tool`, and MCP servers (``"mcp:COMMAND"`` starts
    one for each episode; a :class:`McpTools` is shared). ``done``: set it to end the episode. ``reply(text)`` returns what the user says to an
    answer without a call; None ends the episode. ``get_reward()`` returns the reward at the end, or its components by name.
    ``outcome()`` returns what may be known after the end, as JSON values. ``close()`` frees what is held. All may be coroutines.

    An answer with calls has them carried out in order and is shown the results, one message of role ``tool`` for each. An answer
    without a call goes to ``reply``, or ends the episode. A call that cannot be read, or that no tool takes, is an invalid action
    with a message that says what was expected; what a tool raises is its result, and counted.
    """

    def __init__(self, instance: Any) -> None:
        self.instance = instance
        if not callable(getattr(instance, "reset", None)):
            raise ConfigError(f"{type(instance).__name__} needs a method reset, which returns what the user says first")
        self._by_name: dict[str, Tool] = {}
        self._servers: dict[str, McpTools] = {}  # started here
        self._episode_id, self._steps, self._calls = "", 0, 0
        self._over, self._answer = False, ""
        self._reward: tuple[int, Mapping[str, float] | None] = (-1, None)  # behind which step, and what it was

    @property
    def system_prompt(self) -> str:
        """The rules."""
        return str(getattr(self.instance, "system_prompt", ""))

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """Schemas of the tools."""
        return tuple(tool.schema for tool in self._by_name.values())

    @property
    def state(self) -> Mapping[str, Any]:
        """Episode id and number of answers taken."""
        return {"episode_id": self._episode_id, "step_count": self._steps}

    def reset(self, *, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        """Begins an episode. A list of messages from ``reset`` is what came before; a text is what the user says."""
        self._end_servers()
        self._episode_id, self._steps, self._calls = episode_id or f"tools-{seed or 0}", 0, 0
        self._over, self._answer, self._reward = False, "", (-1, None)
        first = settled(self.instance.reset(**_named(self.instance.reset, {"seed": seed or 0, **options})))
        self._by_name = self._collect()
        messages = (
            tuple(first) if isinstance(first, list | tuple) else (Message(role="user", content=str(first or "")),)
        )
        return _seen(messages)

    def step(self, action: str | Message) -> Observation:
        """Takes an answer: a message with its calls, or a text in which calls of any known form are read."""
        if self._over:
            raise EnvironmentFault("expected reset before this step: the episode is over")
        self._steps += 1
        message = read_message(action, tools=self.tools) if isinstance(action, str) else action
        if any(call.fault == "malformed" for call in message.calls):
            return self._unreadable(message.calls)
        if not message.calls:
            return self._answered(message.content)
        done = [self._run(self._numbered(call)) for call in message.calls]
        calls = tuple(call for call, _ in done)
        refused = [call.error for call in calls if call.fault == "refused"]
        seen = _seen(tuple(result for _, result in done))
        return self._closed(
            replace(seen, **_about(calls), action_valid=not refused, action_error=next(iter(refused), None))
        )

    def outcome(self) -> Mapping[str, Any]:
        """Returns the reward with its components, the last answer, and the class's own ``outcome``."""
        own = settled(self.instance.outcome()) if hasattr(self.instance, "outcome") else {}
        parts = self._components()
        reward = fsum(parts.values()) if parts is not None else None
        return {"answer": self._answer, "reward": reward, "components": parts, **own}

    def close(self) -> None:
        """Ends the servers that were started here, and calls the class's own ``close``."""
        self._end_servers()
        if hasattr(self.instance, "close"):
            settled(self.instance.close())

    def _end_servers(self) -> None:
        """Each episode has its own: what a server holds is part of the episode."""
        while self._servers:
            self._servers.popitem()[1].close()

    # -- calls ------------------------------------------------------------------------------------------------------

    def _collect(self) -> dict[str, Tool]:
        """Finds the tools by name: public functions of the class, then its list ``tools``."""
        names = [name for name in public_methods(type(self.instance)) if name not in HOOKS]
        given = [getattr(self.instance, name) for name in names]
        listed = getattr(self.instance, "tools", ())
        given += [listed] if isinstance(listed, str | McpTools | Tool) else list(listed)
        tools = [tool for each in given for tool in self._expanded(each)]
        by_name = {tool.name: tool for tool in tools}
        if len(by_name) < len(tools):
            raise ConfigError(f"tools need different names, got {', '.join(tool.name for tool in tools)}")
        return by_name

    def _expanded(self, given: Any) -> Sequence[Tool]:
        """Returns an entry as a tool, or the tools of an MCP server, which is started here if the entry is its name."""
        if isinstance(given, str):
            given = self._servers.setdefault(given, McpTools(given))
        if isinstance(given, McpTools):
            return given.tools
        return [given if isinstance(given, Tool) else as_tool(given)]

    def _numbered(self, call: ToolCall) -> ToolCall:
        self._calls += 1
        return call if call.id else replace(call, id=f"call{self._calls:05d}")  # nine letters: what Mistral takes

    def _run(self, call: ToolCall) -> tuple[ToolCall, Message]:
        """Carries out a call. Returns it with its fault, and the message with its result."""
        tool = self._by_name.get(call.name)
        fault, problem = "refused", None
        if tool is None:
            problem = f"there is no tool {call.name}; the tools are {', '.join(self._by_name)}"
        else:
            problem = check_arguments(tool, call.arguments)
        content = f"Error: {problem}"
        if tool is not None and problem is None:
            try:
                content = as_text(settled(tool.run(**call.arguments)))
            except GradusError:
                raise
            except (Exception, SystemExit) as error:
                fault, problem = "failed", f"{type(error).__name__}: {error}"
                content = error_text(error if isinstance(error, Exception) else EnvironmentFault(problem))
        if problem is not None:
            call = replace(call, fault=fault, error=problem)
        return call, Message(role="tool", content=content, call_id=call.id, name=call.name)

    # -- what is seen afterwards --------------------------------------------------------------------------------------

    def _unreadable(self, calls: Sequence[ToolCall]) -> Observation:
        """Carries out no call of the turn; the message says what was wrong with the first one that could not be read."""
        numbered, told = none_carried_out([self._numbered(call) for call in calls])
        seen = _seen((Message(role="user", content=told),))
        error = next(call.error for call in calls if call.fault == "malformed")
        return replace(seen, **_about(numbered), action_valid=False, action_error=error)

    def _answered(self, text: str) -> Observation:
        self._answer = text = without_thoughts(text).strip()
        said = settled(self.instance.reply(text)) if hasattr(self.instance, "reply") else None
        if said is None:
            self._over = True
        return self._closed(_seen((Message(role="user", content=said),) if said is not None else ()))

    def _closed(self, seen: Observation) -> Observation:
        """Returns the observation, with the reward if the episode is over."""
        self._over = self._over or bool(getattr(self.instance, "done", False))
        if not self._over:
            return seen
        parts = self._components()
        return replace(seen, terminated=True, reward=fsum(parts.values()) if parts is not None else None)

    def _components(self) -> Mapping[str, float] | None:
        """Asks ``get_reward`` once behind a step."""
        if self._reward[0] != self._steps and callable(getattr(self.instance, "get_reward", None)):
            reward = settled(self.instance.get_reward())
            parts = (
                dict(reward) if isinstance(reward, Mapping) else None if reward is None else {"reward": float(reward)}
            )
            self._reward = (self._steps, parts)
        return self._reward[1]


def public_methods(kind: type) -> list[str]:
    """Returns the names of a class's public methods, class methods and static ones among them."""
    own = inspect.getmembers(kind, lambda each: inspect.isfunction(each) or inspect.ismethod(each))
    return [name for name, _ in own if not name.startswith("_")]


def as_text(value: Any) -> str:
    """Writes what a tool returned for the model: texts as they are, everything else as JSON, sets as lists in order."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=stand_in)


def error_text(error: Exception) -> str:
    """Writes what a tool raised for the model."""
    return f"Error: {error}" if str(error) else f"Error: {type(error).__name__}"


def _seen(messages: tuple[Message, ...]) -> Observation:
    return Observation(text="\n".join(message.content for message in messages), messages=messages)


def _about(calls: tuple[ToolCall, ...]) -> dict[str, Any]:
    """Returns the calls of an action, and their spans."""
    return {"action_calls": calls, "action_spans": call_spans(calls)}


def _named(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that a function names; all of them if it takes ``**options``."""
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return dict(options)
    return {each.name: options[each.name] for each in parameters if each.name in options}
