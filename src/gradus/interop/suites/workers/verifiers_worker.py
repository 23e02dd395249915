"""Runs in a process of its own, with a Python that has verifiers: lists tasks, scores replies to them, and runs their episodes.

Nothing of Gradus is imported. Three kinds of modules are known: tasksets of verifiers 0.4 whose tasks take one reply, such tasksets with
tools, and environments of verifiers 0.1 to 0.3 (``load_environment``). A reply is scored offline: rewards that need a runtime (a sandbox)
are skipped by verifiers.
"""

import asyncio
import importlib
import importlib.util
import inspect
import json
import logging
import random
import re
import sys
from contextvars import ContextVar
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
def _environment(module, options):
    """What ``load_environment`` of a module returns; None for a taskset of 0.4."""
    package = sys.modules[_import(module).replace("-", "_")]
    load = getattr(package, "load_environment", None)
    return None if load is None else load(**json.loads(options))


@lru_cache(maxsize=8)
def _rows(module, options, limit):
    """The rows of an environment's data set and those of its ``eval_dataset``, each up to ``limit``."""
    environment = _environment(module, options)
    several = environment.build_dataset(), environment.build_eval_dataset()
    return [[] if each is None else list(islice(each, limit)) for each in several]


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


def describe(module, limit, options):
    """``one reply``, ``tools`` or ``environment``; how many turns it allows itself; a digest of its code; its tasks.

    ``held_out``: the number of the first task that the environment itself keeps for evaluation; None if it keeps none.
    """
    _import(module)
    about = {"code": _code(module), "turns": None, "held_out": None}
    environment = _environment(module, options)
    if environment is not None:
        if getattr(environment, "requires_group_rollouts", False):
            raise ValueError("its rubric rewards groups, not episodes; that is not supported")
        train, kept = _rows(module, options, limit)
        if not train and not kept:
            raise ValueError("it has neither a dataset nor an eval_dataset")
        turns = getattr(environment, "max_turns", -1)
        about |= {"turns": turns if turns > 0 else None, "held_out": len(train) if train and kept else None}
        rows = [_row(row["prompt"], row.get("answer")) for row in train + kept]
        return {**about, "kind": "environment", "rows": rows}
    if options != "{}":
        raise ValueError("options are for load_environment; a taskset takes none")
    taskset, tasks = _taskset(module, limit)
    rows = [_row(_prompt(each), getattr(each.data, "answer", None)) for each in tasks]
    tools = bool(tasks) and bool(_toolsets(taskset, tasks[0]))
    return {**about, "kind": "tools" if tools else "one reply", "rows": rows}


def _prompt(task):
    """The messages that a task of 0.4 begins with."""
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
    return LOOP.run_until_complete(_scored(_Toolsets(module, limit, "{}", index), reply))


async def _scored(episode, reply):
    await episode.begin()
    return await episode.step(reply, [])


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
        train, kept = _rows(module, options, limit)
        row = dict((train + kept)[index])
        self.failed = []  # what its reward functions raised
        self.task = LOOP.create_task(self._rollout({"example_id": index, **row}))
        self.asked = asyncio.Event()  # the environment waits for a reply
        self.prompt, self.tools, self.known = [], [], []
        self.reply = None

    async def _rollout(self, row):
        state = await self.environment.rollout(row, _model(self), "gradus", {})
        if state.get("error") is not None:
            raise state["error"]
        FAILED.set(self.failed)
        logging.getLogger("verifiers").addHandler(
            LISTENER
        )  # again each time, as whoever sets up logging may have removed it
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
        end = {"reward": state["reward"], "parts": state["metrics"]}
        if self.failed:
            end = {"reward": None, "parts": {}, "error": "; ".join(self.failed)}
        return {**self._seen(whole), "done": True, **end}

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


FAILED = ContextVar("failed", default=None)  # the list that a failure of a reward function goes to


class _Failures(logging.Handler):
    """Hears what the functions of a rubric raise: verifiers logs it and counts 0."""

    def emit(self, record):
        failed = FAILED.get()
        if failed is not None and record.levelno >= logging.ERROR:
            failed.append(record.getMessage())


LISTENER = _Failures()


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
    if other := [str(each.get("type")) for each in parts if "text" not in each]:
        raise ValueError(f"a message has a part of the type {other[0]!r}; expected text alone")
    return "\n".join(each["text"] for each in parts)


class _Toolsets:
    """An episode of a taskset of 0.4 with tools, without a harness: replies that call tools go on, one that does not is the last."""

    def __init__(self, module, limit, options, index):
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
        await self._call_hook("finalize")
        await self.task.score(self.trace)
        return {"messages": [], "restart": False, "tools": None, "done": True, **_reward(self.trace)}

    async def _call_hook(self, name):
        from verifiers.v1.utils.decorators import invoke

        if hook := _hook(self.task, name):
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
