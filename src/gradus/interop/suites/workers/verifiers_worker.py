"""Runs in a process of its own, with a Python that has verifiers: lists tasks, scores replies to them, and runs their episodes.

Nothing of Gradus is imported. Three kinds of modules are known: tasksets of verifiers 0.4 whose tasks take one reply, such tasksets with
tools, and environments of verifiers 0.1 to 0.3 (``load_environment``). A reply is scored offline: rewards that need a runtime (a sandbox)
are skipped by verifiers.
"""

import asyncio
import importlib
import inspect
import json
import random
import sys
from functools import lru_cache
from itertools import islice
from pathlib import Path

LOOP = asyncio.new_event_loop()
EPISODES = {}  # key -> an episode under way


def _import(module):
    if module.endswith(".py"):
        folder = str(Path(module).resolve().parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        module = Path(module).stem
    return module


@lru_cache(maxsize=8)
def _environment(module, options):
    """What ``load_environment`` of a module returns; None for a taskset of 0.4."""
    package = importlib.import_module(_import(module).replace("-", "_"))
    load = getattr(package, "load_environment", None)
    return None if load is None else load(**json.loads(options))


@lru_cache(maxsize=8)
def _taskset(module, limit):
    from verifiers.v1.utils import loaders

    name = _import(module)
    taskset = loaders.taskset_class(name)(loaders.taskset_config_type(name)(id=name))
    return taskset, list(islice(taskset, limit))


def describe(module, limit, options):
    """``one reply``, ``tools`` or ``environment``; how many turns it allows itself; and its tasks.

    A task has a question, an ``answer`` if its data has one, and a system prompt.
    """
    environment = _environment(module, options)
    if environment is not None:
        if getattr(environment, "requires_group_rollouts", False):
            raise ValueError("its rubric rewards groups, not episodes; that is not supported")
        rows = [_row(row) for row in islice(environment.get_dataset(), limit)]
        turns = getattr(environment, "max_turns", -1)
        return {"kind": "environment", "turns": turns if turns > 0 else None, "rows": rows}
    if options != "{}":
        raise ValueError("options are for load_environment; a taskset takes none")
    taskset, tasks = _taskset(module, limit)
    rows = [
        {
            "question": each.data.prompt_text,
            "answer": getattr(each.data, "answer", None),
            "system": each.data.system_prompt,
        }
        for each in tasks
    ]
    tools = bool(tasks) and bool(_toolsets(taskset, tasks[0]))
    return {"kind": "tools" if tools else "one reply", "turns": None, "rows": rows}


def _row(row):
    """A row of a data set as the environment completes it: its prompt is a list of messages."""
    messages = [{"role": "user", "content": row["prompt"]}] if isinstance(row["prompt"], str) else row["prompt"]
    said = [(each["role"], _text(each["content"])) for each in messages]
    return {
        "question": "\n".join(text for role, text in said if role != "system"),
        "answer": row.get("answer"),
        "system": "\n".join(text for role, text in said if role == "system"),
    }


def score(module, limit, index, reply):
    """The reward of one reply and what it is made of; None if no reward could be computed without a sandbox."""
    import verifiers.v1 as vf

    task = _taskset(module, limit)[1][index]
    trace = _trace(task)
    _say(trace, vf.UserMessage(content=task.data.prompt_text))
    _say(trace, vf.AssistantMessage(content=reply), sampled=True)
    asyncio.run(task.score(trace))
    return _reward(trace)


def _reward(trace):
    parts = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
    return {"reward": float(trace.reward) if parts else None, "parts": parts}


# -- episodes: of either kind they are asked for a reply, given one, and asked again --------------------------------------


def start(key, module, limit, options, index, seed):
    """Begin an episode; what the model sees first, with its tools."""
    random.seed(seed)  # what an environment draws as it begins is the same for all members of a group
    kind = _Asking if _environment(module, options) is not None else _Toolsets
    EPISODES[key] = kind(module, limit, options, index)
    return LOOP.run_until_complete(EPISODES[key].begin())


def step(key, content, calls):
    """Give a reply; what the model sees next, or ``done`` with the reward."""
    return LOOP.run_until_complete(EPISODES[key].step(content, calls))


def finish(key):
    """The reward of an episode that is cut off here."""
    return LOOP.run_until_complete(EPISODES[key].finish())


def close(key):
    """Forget an episode."""
    episode = EPISODES.pop(key, None)
    if episode is not None:
        LOOP.run_until_complete(episode.close())


class _Asking:
    """An episode of an environment up to 0.3. It runs as it always does; the model that it asks is whoever calls :meth:`step`."""

    def __init__(self, module, limit, options, index):
        self.environment = _environment(module, options)
        row = dict(self.environment.get_dataset()[index])
        self.task = LOOP.create_task(self._rollout({"example_id": index, **row}))
        self.asked = asyncio.Event()  # the environment waits for a reply
        self.prompt, self.tools, self.known = [], [], []
        self.reply = None

    async def _rollout(self, row):
        state = await self.environment.rollout(row, _model(self), "gradus", {})
        if state.get("error") is not None:
            raise state["error"]
        await self.environment.rubric.score_rollout(state)
        return state

    async def ask(self, prompt, tools):
        """What the environment's model does: wait for a reply."""
        self.prompt, self.tools = [_plain(each) for each in prompt], tools or []
        self.reply = LOOP.create_future()
        self.asked.set()
        return await self.reply

    async def _next(self):
        waiting = LOOP.create_task(self.asked.wait())
        await asyncio.wait({waiting, self.task}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        self.asked.clear()
        if not self.task.done():
            return self._seen(self.prompt)
        state = self.task.result()
        whole = [_plain(each) for each in [*state["prompt"], *(state["completion"] or [])]]
        return {**self._seen(whole), "done": True, "reward": state["reward"], "parts": state["metrics"]}

    def _seen(self, whole):
        """What is new since the last reply; everything, if the environment wrote the past anew."""
        known, self.known = self.known, whole
        extends = whole[: len(known)] == known
        schemas = [
            {"name": each.name, "description": each.description, "parameters": each.parameters} for each in self.tools
        ]
        new = whole[len(known) :] if extends else whole
        return {"messages": new, "restart": not extends, "tools": schemas, "done": False}

    async def begin(self):
        return await self._next()

    async def step(self, content, calls):
        message = _legacy_reply(content, calls)
        self.known = [*self.known, _plain(message)]
        self.reply.set_result(message)
        return await self._next()

    async def finish(self):
        from verifiers.errors import OverlongPromptError

        if not self.task.done():
            self.reply.set_exception(OverlongPromptError("the episode ends here"))
        return await self._next()

    async def close(self):
        self.task.cancel()
        await asyncio.wait({self.task})
        if not self.task.cancelled():
            self.task.exception()  # seen, so that asyncio does not complain


def _model(episode):
    """A client of verifiers that asks ``episode``."""
    from verifiers.clients import Client
    from verifiers.types import Response

    class Model(Client):
        async def get_response(self, prompt, model, sampling_args, tools=None, **more):
            message = await episode.ask(prompt, tools)
            return Response(id="gradus", created=0, model=model, usage=None, message=message)

    Model.__abstractmethods__ = frozenset()  # the others make requests of another dialect
    return Model(episode)


def _legacy_reply(content, calls):
    from verifiers.types import ResponseMessage, ToolCall

    tool_calls = [ToolCall(id=each["id"], name=each["name"], arguments=json.dumps(each["arguments"])) for each in calls]
    reason = "tool_calls" if calls else "stop"
    return ResponseMessage(content=content, tool_calls=tool_calls or None, finish_reason=reason, is_truncated=False)


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
    return "\n".join(each.get("text", f"[{each.get('type')}]") for each in parts)


class _Toolsets:
    """An episode of a taskset of 0.4 with tools, without a harness: replies that call tools go on, one that does not is the last."""

    def __init__(self, module, limit, options, index):
        self.taskset, tasks = _taskset(module, limit)
        self.task = tasks[index]
        self.trace = _trace(self.task)
        self.tools = {}  # name -> MCP server and the tool's name there

    async def begin(self):
        import verifiers.v1 as vf

        await self._hook("setup")
        data = self.task.data
        messages = [vf.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else list(data.prompt or ())
        messages = [vf.SystemMessage(content=data.system_prompt), *messages] if data.system_prompt else messages
        for each in messages:
            _say(self.trace, each)
        schemas = [schema for each in _toolsets(self.taskset, self.task) for schema in await self._served(each)]
        return {"messages": [_plain(each) for each in messages], "restart": False, "tools": schemas, "done": False}

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
        seen = {"messages": messages, "restart": False, "tools": None, "done": False}
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
        await self._hook("finalize")
        await self.task.score(self.trace)
        return {"messages": [], "restart": False, "tools": None, "done": True, **_reward(self.trace)}

    async def _hook(self, name):
        """A hook of the task that is its own and needs no runtime."""
        import verifiers.v1 as vf
        from verifiers.v1.utils.decorators import invoke

        if getattr(type(self.task), name) is getattr(vf.Task, name):
            return
        hook = getattr(self.task, name)
        if "runtime" in inspect.signature(hook).parameters:
            raise ValueError(f"{type(self.task).__name__}.{name} needs a runtime (a sandbox), which is not supported")
        await invoke(hook, {"trace": self.trace})

    async def close(self):
        pass


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
    """Whether verifiers is here at all."""
    import verifiers

    return verifiers.__version__


ready()
HANDLERS = {"describe": describe, "score": score, "start": start, "step": step, "finish": finish, "close": close}
