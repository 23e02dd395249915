"""Runs in a process of its own, with a Python that has verifiers: lists tasks and scores replies to them.

Nothing of Gradus is imported. The tasks of a taskset take one reply. It is scored offline: verifiers skips rewards that need a runtime (a sandbox).
"""

import asyncio
import importlib
import importlib.util
import inspect
import random
import re
import sys
from functools import lru_cache
from hashlib import sha256
from itertools import islice
from pathlib import Path

import verifiers.v1 as vf
from verifiers.v1.envs.single_agent import SingleAgentEnv
from verifiers.v1.graph import MessageNode
from verifiers.v1.state import state_cls
from verifiers.v1.trace import AgentInfo, Trace, TraceTask
from verifiers.v1.utils import loaders
from verifiers.v1.utils.decorators import discover_decorated, invoke

LOOP = asyncio.new_event_loop()


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
def _tasks(module, limit):
    name = _import(module)
    taskset = loaders.taskset_class(name)(loaders.taskset_config_type(name)(id=name))
    if (own := loaders.environment_class(name)) is not SingleAgentEnv:
        raise ValueError(f"it has an environment of its own, {own.__name__}; expected a taskset alone")
    tasks = list(islice(taskset, limit))
    for task in tasks:
        _check(task)
        if [*type(taskset).toolsets(taskset.config), *type(task).toolsets(task.config)]:
            raise ValueError("it has tools, and tasks here take one reply; write the tools as a class (docs/tools.md)")
    return tasks


def _check(task):
    """Raise ValueError for what a task needs and does not get here."""
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
    return None if getattr(type(task), name) is getattr(vf.Task, name) else getattr(task, name)


def describe(module, limit):
    """A digest of the module's code, and its tasks."""
    rows = [_row(_prompt(each), getattr(each.data, "answer", None)) for each in _tasks(module, limit)]
    return {"code": _code(module), "rows": rows}


def _prompt(task):
    """The messages that a task begins with."""
    data = task.data
    messages = [vf.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else list(data.prompt)
    return [vf.SystemMessage(content=data.system_prompt), *messages] if data.system_prompt else messages


def _row(prompt, answer):
    """A task: what it asks, its answer, its system prompt, and its other messages."""
    messages = [_plain(each) for each in ([{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt)]
    system = messages.pop(0)["content"] if messages and messages[0]["role"] == "system" else ""
    question = "\n".join(each["content"] for each in messages if each["role"] != "system")
    return {"question": question, "answer": answer, "system": system, "messages": messages}


def _plain(message):
    """A message of verifiers as JSON values."""
    values = message if isinstance(message, dict) else message.model_dump()
    return {"role": values["role"], "content": _text(values.get("content"))}


def _text(content):
    if not isinstance(content, list):
        return content or ""
    parts = [each if isinstance(each, dict) else each.model_dump() for each in content]
    if other := [str(each.get("type")) for each in parts if "text" not in each]:
        raise ValueError(f"a message has a part of the type {other[0]!r}; expected text alone")
    return "\n".join(each["text"] for each in parts)


def score(module, limit, index, reply):
    """The reward of one reply and what it is made of; None if no reward could be computed without a sandbox."""
    random.seed(index)
    return LOOP.run_until_complete(_scored(_tasks(module, limit)[index], reply))


async def _scored(task, reply):
    trace = _trace(task)
    await _call_hook(task, "setup", trace)
    for message in _prompt(task):
        _say(trace, message)
    _say(trace, vf.AssistantMessage(content=reply), sampled=True)
    await _call_hook(task, "finalize", trace)
    await task.score(trace)
    parts = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
    return {"reward": float(trace.reward) if parts else None, "parts": parts}


async def _call_hook(task, name, trace):
    if hook := _hook(task, name):
        await invoke(hook, {"trace": trace})


def _trace(task):
    about = TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    return Trace(task=about, agent=AgentInfo(config=vf.AgentConfig()), state=state_cls(type(task))())


def _say(trace, message, sampled=False):
    parent = len(trace.nodes) - 1 if trace.nodes else None
    trace.nodes.append(MessageNode(parent=parent, message=message, sampled=sampled))


HANDLERS = {"describe": describe, "score": score}
