"""An environment whose actions are calls of tools: the public methods of a plain class, and further functions."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum
from typing import Any, cast

from gradus.core import ConfigError, EnvironmentFault, GradusError, Message, Observation, ToolCall
from gradus.core.calls import call_spans, none_carried_out, read_message, without_thoughts
from gradus.core.foreign import arguments_for
from gradus.core.values import Json, number_of, stand_in
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
        self._servers: dict[str, McpTools] = {}  # started here: what a server holds is part of the episode
        self._begin()

    def _begin(self) -> None:
        self._answer = ""
        self._over = False
        self._calls = 0
        # get_reward was asked behind the last step; it may be slow, and two askers must hear one answer.
        self._is_graded = False
        self._components: Mapping[str, float] | None = None

    @property
    def system_prompt(self) -> str:
        """The rules."""
        return str(getattr(self.instance, "system_prompt", ""))

    @property
    def tools(self) -> tuple[Json, ...]:
        """Schemas of the tools."""
        return tuple(tool.schema for tool in self._by_name.values())

    def reset(self, *, seed: int | None = None, **options: Any) -> Observation:
        """Begins an episode. A list of messages from ``reset`` is what came before; a text is what the user says."""
        self._end_servers()
        self._begin()
        # The tools are collected after reset: a class may choose them by its task.
        reset = self.instance.reset
        first = settled(reset(**arguments_for(reset, {"seed": seed or 0, **options})))
        self._by_name = self._collect()
        if isinstance(first, list | tuple):
            return _observed(*cast(Sequence[Message], first))
        return _observed(_from_user(str(first or "")))

    def step(self, action: str | Message) -> Observation:
        """Takes an answer: a message with its calls, or a text in which calls of any known form are read."""
        if self._over:
            raise EnvironmentFault("expected reset before this step: the episode is over")
        self._is_graded = False
        message = read_message(action, tools=self.tools) if isinstance(action, str) else action
        # Calls get their ids first, also those that are refused: their results name them.
        calls = [self._numbered(call) for call in message.calls]
        if not calls:
            return self._answered(message.content)
        if any(call.fault == "malformed" for call in calls):
            refused_calls, why = none_carried_out(calls)
            return _after_calls(refused_calls, [_from_user(why)], "malformed")
        results = [self._run(call) for call in calls]
        observation = _after_calls([call for call, _ in results], [message for _, message in results], "refused")
        return self._closed(observation)

    def outcome(self) -> Json:
        """Returns the reward with its components, the last answer, and the class's own ``outcome``."""
        components = self._graded()
        outcome: Json = self._hook("outcome") or {}
        return {"answer": self._answer, "reward": _total(components), "components": components, **outcome}

    def close(self) -> None:
        """Ends the servers that were started here, and calls the class's own ``close``."""
        self._end_servers()
        self._hook("close")

    def _hook(self, name: str, *arguments: Any) -> Any:
        """Calls a method of the class; None if it has no such method."""
        method = getattr(self.instance, name, None)
        return settled(method(*arguments)) if callable(method) else None

    def _end_servers(self) -> None:
        while self._servers:
            self._servers.popitem()[1].close()

    # -- calls ------------------------------------------------------------------------------------------------------

    def _collect(self) -> dict[str, Tool]:
        """Finds the tools by name: public functions of the class, then its list ``tools``."""
        # Hooks are public too, and a model that called get_reward would know its grade.
        names = [name for name in public_methods(self.instance.__class__) if name not in HOOKS]
        entries: list[Any] = [getattr(self.instance, name) for name in names]
        listed: Any = getattr(self.instance, "tools", ())
        if isinstance(listed, str | McpTools | Tool):
            entries.append(listed)
        else:
            entries += cast(Sequence[Any], listed)
        tools = [tool for entry in entries for tool in self._expanded(entry)]
        by_name = {tool.name: tool for tool in tools}
        # The second of two tools of one name could never be called.
        if len(by_name) < len(tools):
            raise ConfigError(f"tools need different names, got {', '.join(tool.name for tool in tools)}")
        return by_name

    def _expanded(self, entry: Any) -> Sequence[Tool]:
        """Returns an entry as a tool, or the tools of an MCP server, which is started here if the entry is its name."""
        if isinstance(entry, str):
            entry = self._servers.setdefault(entry, McpTools(entry))
        if isinstance(entry, McpTools):
            return entry.tools
        return [entry if isinstance(entry, Tool) else as_tool(entry)]

    def _numbered(self, call: ToolCall) -> ToolCall:
        self._calls += 1
        return call if call.id else replace(call, id=f"call{self._calls:05d}")  # nine letters: what Mistral takes

    def _run(self, call: ToolCall) -> tuple[ToolCall, Message]:
        """Carries out a call. Returns it with its fault, and the message with its result."""
        fault = "refused"
        problem = self._problem(call)
        content = f"Error: {problem}"
        if problem is None:
            try:
                content = as_text(settled(self._by_name[call.name].run(**call.arguments)))
            # A fault of the environment ends the episode; the model must not read it as a tool's result.
            except GradusError:
                raise
            except (Exception, SystemExit) as error:
                fault = "failed"
                problem = f"{type(error).__name__}: {error}"
                content = f"Error: {str(error) or type(error).__name__}"
        if problem is not None:
            call = replace(call, fault=fault, error=problem)
        return call, Message(role="tool", content=content, call_id=call.id, name=call.name)

    def _problem(self, call: ToolCall) -> str | None:
        tool = self._by_name.get(call.name)
        if tool is None:
            return f"there is no tool {call.name}; the tools are {', '.join(self._by_name)}"
        return check_arguments(tool, call.arguments)

    # -- what is seen afterwards --------------------------------------------------------------------------------------

    def _answered(self, text: str) -> Observation:
        self._answer = text = without_thoughts(text).strip()
        reply = self._hook("reply", text)
        # Without a method reply nobody answers, which ends the episode as well.
        self._over = reply is None
        messages = [] if reply is None else [_from_user(reply)]
        return self._closed(_observed(*messages))

    def _closed(self, observation: Observation) -> Observation:
        """Returns the observation, with the reward if the episode is over."""
        self._over = self._over or bool(getattr(self.instance, "done", False))
        if not self._over:
            return observation
        return replace(observation, terminated=True, reward=_total(self._graded()))

    def _graded(self) -> Mapping[str, float] | None:
        """Asks ``get_reward`` once behind a step."""
        if not self._is_graded:
            self._is_graded = True
            # A number is the one component of its own name, so that graders read one form.
            reward = self._hook("get_reward")
            if reward is not None and not isinstance(reward, Mapping):
                reward = {"reward": number_of(reward)}
            self._components = cast("Mapping[str, float] | None", reward)
        return self._components


def public_methods(kind: type) -> list[str]:
    """Returns the names of a class's public methods, class methods and static ones among them."""
    methods = inspect.getmembers(kind, lambda member: inspect.isfunction(member) or inspect.ismethod(member))
    return [name for name, _ in methods if not name.startswith("_")]


def as_text(value: Any) -> str:
    """Writes a value for the model: texts as they are, everything else as JSON, sets as lists in order."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=stand_in)


def _from_user(text: str) -> Message:
    return Message(role="user", content=text)


def _observed(*messages: Message) -> Observation:
    return Observation(text="\n".join(message.content for message in messages), messages=messages)


def _after_calls(calls: Sequence[ToolCall], messages: Sequence[Message], fault: str) -> Observation:
    """Returns what is seen after an answer with calls. One call with the fault makes the action invalid."""
    errors = [call.error for call in calls if call.fault == fault]
    return replace(
        _observed(*messages),
        action_calls=tuple(calls),
        action_spans=call_spans(calls),
        action_valid=not errors,
        action_error=errors[0] if errors else None,
    )


def _total(components: Mapping[str, float] | None) -> float | None:
    return None if components is None else fsum(components.values())
