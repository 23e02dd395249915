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


def _import(module):
    """The name under which a module is imported. That of a file differs from every package's."""
    if not module.endswith(".py"):
        importlib.import_module(module.replace("-", "_"))
        return module
    path = Path(module)
    sys.path.insert(0, str(path.parent))  # it may import its neighbors
    name = "file_" + re.sub(r"\W", "_", path.stem).lower()
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return name


@lru_cache(maxsize=8)
def _tasks(module, limit):
    name = _import(module)
    taskset = loaders.taskset_class(name)(loaders.taskset_config_type(name)(id=name))
    tasks = list(islice(taskset, limit))
    needs = {
        "an environment of its own": loaders.environment_class(name) is not SingleAgentEnv,
        "tools": any(
            [*type(taskset).toolsets(taskset.config), *(t for e in tasks for t in type(e).toolsets(e.config))]
        ),
        "a sandbox": any(_needs_runtime(task, hook) for task in tasks for hook in ("setup", "finalize")),
        "interceptors": any(discover_decorated(task, "intercept") for task in tasks),
        "a user who speaks first": any(task.data.prompt is None for task in tasks),
    }
    unmet = [need for need, is_so in needs.items() if is_so]
    if unmet:
        raise ValueError(f"it has {' and '.join(unmet)}, and tasks here take a prompt and one reply, offline")
    return tasks


def _hook(task, name):
    """``setup`` or ``finalize`` of a task, None if it has none of its own."""
    return None if getattr(type(task), name) is getattr(vf.Task, name) else getattr(task, name)


def _needs_runtime(task, name):
    hook = _hook(task, name)
    runtime = inspect.signature(hook).parameters.get("runtime") if hook else None
    return runtime is not None and runtime.default is inspect.Parameter.empty


def describe(module, limit):
    """The tasks: what each asks, its answer, its system prompt, and its other messages."""
    return [_row(task) for task in _tasks(module, limit)]


def _prompt(task):
    """The messages that a task begins with."""
    data = task.data
    messages = [vf.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else list(data.prompt)
    return [vf.SystemMessage(content=data.system_prompt), *messages] if data.system_prompt else messages


def _row(task):
    messages = [_plain(message) for message in _prompt(task)]
    system = messages.pop(0)["content"] if messages[0]["role"] == "system" else ""
    question = "\n".join(message["content"] for message in messages)
    answer = getattr(task.data, "answer", None)
    return {"question": question, "answer": answer, "system": system, "messages": messages}


def _plain(message):
    """A message of verifiers as JSON values."""
    values = message if isinstance(message, dict) else message.model_dump()
    content = values.get("content") or ""
    if not isinstance(content, str):
        content = "\n".join(part["text"] for part in content)  # an image has no text
    return {"role": values["role"], "content": content}


def score(module, limit, index, reply):
    """The reward of one reply; None if no reward could be computed without a sandbox."""
    random.seed(index)
    return LOOP.run_until_complete(_scored(_tasks(module, limit)[index], reply))


async def _scored(task, reply):
    about = TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    trace = Trace(task=about, agent=AgentInfo(config=vf.AgentConfig()), state=state_cls(type(task))())
    await _call_hook(task, "setup", trace)
    for message in _prompt(task):
        _say(trace, message)
    _say(trace, vf.AssistantMessage(content=reply), sampled=True)
    await _call_hook(task, "finalize", trace)
    await task.score(trace)
    return float(trace.reward) if any(reward is not None for reward in trace.rewards.values()) else None


async def _call_hook(task, name, trace):
    if hook := _hook(task, name):
        await invoke(hook, {"trace": trace})


def _say(trace, message, sampled=False):
    parent = len(trace.nodes) - 1 if trace.nodes else None
    trace.nodes.append(MessageNode(parent=parent, message=message, sampled=sampled))


HANDLERS = {"describe": describe, "score": score}
