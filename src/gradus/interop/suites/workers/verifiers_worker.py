"""Runs in a process of its own, with a Python that has verifiers: lists tasks, scores replies to them, and runs their episodes.

Nothing of Gradus is imported. Two kinds of tasksets of verifiers 0.4 are known: those whose tasks take one reply, and those with tools. A
reply is scored offline: verifiers skips rewards that need a runtime (a sandbox).
"""

import asyncio
import importlib
import importlib.util
import inspect
import json
import random
import re
import sys
from functools import lru_cache
from hashlib import sha256
from itertools import islice
from pathlib import Path

LOOP = asyncio.new_event_loop()
EPISODES = {}  # key -> an episode under way


@lru_cache(maxsize=8)
def _import(module):
    """The name under which a module is imported. That of a file is one that no package has."""
    if not module.endswith(".py"):
        importlib.import_module(module.replace("-", "_"))
        return module
    path = Path(module)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # it may import its neighbors
    name = "file_" + re.sub(r"\W", "_", path.stem).lower()
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(sys.modules[name])
    except BaseException:
        del sys.modules[name]
        raise
    return name


@lru_cache(maxsize=8)
def _code(module):
    """A digest of the files of an installed module and its package; empty for a file, whose code can be read without importing it."""
    if module.endswith(".py"):
        return ""
    package = module.replace("-", "_").partition(".")[0]
    loaded = [each for name, each in sys.modules.items() if name.partition(".")[0] == package]
    files = sorted({each.__file__ for each in loaded if getattr(each, "__file__", None)})
    return sha256(b"\0".join(Path(each).read_bytes() for each in files)).hexdigest()


@lru_cache(maxsize=8)
def _taskset(module, limit):
    from verifiers.v1.envs.single_agent import SingleAgentEnv
    from verifiers.v1.utils import loaders

    name = _import(module)
    taskset = loaders.taskset_class(name)(loaders.taskset_config_type(name)(id=name))
    if (own := loaders.environment_class(name)) is not SingleAgentEnv:
        raise ValueError(f"it has an environment of its own, {own.__name__}; expected a taskset alone")
    tasks = list(islice(taskset, limit))
    for task in tasks:
        _check(task)
    return taskset, tasks


def _check(task):
    """Raise ValueError for what a task needs and does not get here."""
    from verifiers.v1.utils.decorators import discover_decorated

    kind = type(task).__name__
    for name in ("setup", "finalize"):
        hook = _hook(task, name)
        runtime = inspect.signature(hook).parameters.get("runtime") if hook else None
        if runtime is not None and runtime.default is inspect.Parameter.empty:
            raise ValueError(f"{kind}.{name} needs a runtime (a sandbox), which is not supported")
    if hooks := discover_decorated(task, "intercept"):
        raise ValueError(f"{kind}.{hooks[0].__name__} intercepts requests or responses, which is not supported")
    if task.data.prompt is None:
        raise ValueError(f"a {kind} has no prompt: its user speaks first, which is not supported")


def _hook(task, name):
    """``setup`` or ``finalize`` of a task, None if it has none of its own."""
    import verifiers.v1 as vf

    return None if getattr(type(task), name) is getattr(vf.Task, name) else getattr(task, name)


def describe(module, limit):
    """``one reply`` or ``tools``, a digest of the module's code, and its tasks."""
    taskset, tasks = _taskset(module, limit)
    rows = [_row(_prompt(each), getattr(each.data, "answer", None)) for each in tasks]
    kind = "tools" if tasks and _toolsets(taskset, tasks[0]) else "one reply"
    return {"kind": kind, "code": _code(module), "rows": rows}


def _prompt(task):
    """The messages that a task begins with."""
    import verifiers.v1 as vf

    data = task.data
    messages = [vf.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else list(data.prompt)
    return [vf.SystemMessage(content=data.system_prompt), *messages] if data.system_prompt else messages


def _row(prompt, answer):
    """A task: what it asks, its answer, its system prompt, and its other messages."""
    messages = [_plain(each) for each in ([{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt)]
    system = messages.pop(0)["content"] if messages and messages[0]["role"] == "system" else ""
    question = "\n".join(each["content"] for each in messages if each["role"] != "system")
    return {"question": question, "answer": answer, "system": system, "messages": messages}


def score(module, limit, index, reply):
    """The reward of one reply and what it is made of; None if no reward could be computed without a sandbox."""
    random.seed(index)
    return LOOP.run_until_complete(_scored(_Episode(module, limit, index), reply))


async def _scored(episode, reply):
    await episode.begin()
    return await episode.step(reply, [])


def _reward(trace):
    parts = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
    return {"reward": float(trace.reward) if parts else None, "parts": parts}


# -- episodes --------------------------------------------------------------------------------------------------------------


def start(key, module, limit, index, seed):
    """Begin an episode; what the model sees first, with its tools."""
    random.seed(seed)  # what a taskset draws as an episode begins is the same for all members of a group
    EPISODES[key] = _Episode(module, limit, index)
    return LOOP.run_until_complete(EPISODES[key].begin())


def step(key, content, calls):
    """Give a reply; what the model sees next, or ``done`` with the reward."""
    return LOOP.run_until_complete(EPISODES[key].step(content, calls))


def finish(key):
    """The reward of an episode that is cut off here."""
    return LOOP.run_until_complete(EPISODES[key].finish())


def close(key):
    """Forget an episode."""
    EPISODES.pop(key, None)


def _plain(message):
    """A message of verifiers as JSON values."""
    values = message if isinstance(message, dict) else message.model_dump()
    calls = [
        {"id": each["id"], "name": each["name"], "arguments": json.loads(each["arguments"] or "{}")}
        for each in values.get("tool_calls") or ()
    ]
    plain = {"role": values["role"], "content": _text(values.get("content")), "calls": calls}
    return {**plain, "call_id": values.get("tool_call_id") or ""}


def _text(content):
    if not isinstance(content, list):
        return content or ""
    parts = [each if isinstance(each, dict) else each.model_dump() for each in content]
    if other := [str(each.get("type")) for each in parts if "text" not in each]:
        raise ValueError(f"a message has a part of the type {other[0]!r}; expected text alone")
    return "\n".join(each["text"] for each in parts)


class _Episode:
    """An episode of a taskset, without a harness: replies that call tools go on, one that does not is the last."""

    def __init__(self, module, limit, index):
        self.taskset, tasks = _taskset(module, limit)
        self.task = tasks[index]
        self.trace = _trace(self.task)
        self.tools = {}  # name -> MCP server and the tool's name there

    async def begin(self):
        await self._call_hook("setup")
        messages = _prompt(self.task)
        for each in messages:
            _say(self.trace, each)
        schemas = [schema for each in _toolsets(self.taskset, self.task) for schema in await self._served(each)]
        return {"messages": [_plain(each) for each in messages], "tools": schemas, "done": False}

    async def _served(self, toolset):
        """The toolset behind an MCP server in this process: the same schemas and results as by its own server, without a connection."""
        from mcp.server.mcpserver import MCPServer

        async def pull():
            return toolset._state_adapter.validate_json(self._state().dump_json(self.trace.state))

        async def push(before):
            from verifiers.v1.mcp.server import _call_state

            after = toolset._state_adapter.dump_json(_call_state.get())
            self.trace.state = self._state().validate_json(after)

        toolset._pull_state, toolset._push_state = pull, push
        await toolset.setup()
        await toolset.setup_task(self.task.data)
        server, prefix = MCPServer(toolset.server_name or type(toolset).__name__), toolset.server_name
        toolset.register(server)
        listed = await server.list_tools()
        named = {(f"{prefix}_{each.name}" if prefix else each.name): each for each in listed}
        self.tools.update({name: (server, each.name) for name, each in named.items()})
        return [
            {"name": name, "description": each.description or "", "parameters": each.input_schema}
            for name, each in named.items()
        ]

    def _state(self):
        from pydantic import TypeAdapter

        return TypeAdapter(type(self.trace.state))

    async def step(self, content, calls):
        import verifiers.v1 as vf

        wire = [
            vf.ToolCall(id=each["id"], name=each["name"], arguments=json.dumps(each["arguments"])) for each in calls
        ]
        _say(self.trace, vf.AssistantMessage(content=content, tool_calls=wire or None), sampled=True)
        results = [vf.ToolMessage(tool_call_id=each["id"], content=await self._call(each)) for each in calls]
        for each in results:
            _say(self.trace, each)
        messages = [_plain(each) for each in results]
        seen = {"messages": messages, "tools": None, "done": False}
        stopped = not calls or await self._stopped()
        return {**seen, **(await self.finish() if stopped else {})}

    async def _call(self, call):
        if call["name"] not in self.tools:
            return f"error: unknown tool {call['name']!r}"
        server, name = self.tools[call["name"]]
        try:
            result = await server.call_tool(name, call["arguments"])
        except Exception as error:  # what an MCP server answers with is_error
            return str(error)
        return "\n".join(getattr(block, "text", str(block)) for block in result.content)

    async def _stopped(self):
        import verifiers.v1 as vf
        from verifiers.v1.utils.decorators import invoke

        for stop in self.task.hooks("stop"):
            fired = invoke(stop, {"trace": self.trace, "task": self.task.data, vf.Trace: self.trace})
            if await fired if inspect.isawaitable(fired) else fired:
                self.trace.stop(stop.__name__)
                return True
        return False

    async def finish(self):
        await self._call_hook("finalize")
        await self.task.score(self.trace)
        return {"messages": [], "tools": None, "done": True, **_reward(self.trace)}

    async def _call_hook(self, name):
        from verifiers.v1.utils.decorators import invoke

        if hook := _hook(self.task, name):
            await invoke(hook, {"trace": self.trace})


def _toolsets(taskset, task):
    return [*type(taskset).toolsets(taskset.config), *type(task).toolsets(task.config)]


def _trace(task):
    import verifiers.v1 as vf
    from verifiers.v1.state import state_cls
    from verifiers.v1.trace import AgentInfo, Trace, TraceTask

    about = TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    return Trace(task=about, agent=AgentInfo(config=vf.AgentConfig()), state=state_cls(type(task))())


def _say(trace, message, sampled=False):
    from verifiers.v1.graph import MessageNode

    parent = len(trace.nodes) - 1 if trace.nodes else None
    trace.nodes.append(MessageNode(parent=parent, message=message, sampled=sampled))


def ready():
    """Return the release of verifiers; raises ModuleNotFoundError without it."""
    import verifiers

    return verifiers.__version__


ready()
HANDLERS = {"describe": describe, "score": score, "start": start, "step": step, "finish": finish, "close": close}
