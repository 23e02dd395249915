"""Runs in a process of its own, with a Python that has verifiers: lists a taskset's tasks and scores replies to them.

Nothing of Gradus is imported. A reply is scored offline: rewards that need a runtime (a sandbox) are skipped by verifiers.
"""

import asyncio
import sys
from functools import lru_cache
from itertools import islice
from pathlib import Path

import verifiers.v1 as vf
from verifiers.v1.graph import MessageNode
from verifiers.v1.trace import AgentInfo, Trace, TraceTask
from verifiers.v1.utils import loaders


@lru_cache(maxsize=8)
def _tasks(module, limit):
    if module.endswith(".py"):
        sys.path.insert(0, str(Path(module).resolve().parent))
        module = Path(module).stem
    taskset = loaders.taskset_class(module)(loaders.taskset_config_type(module)(id=module))
    return list(islice(taskset, limit))


def rows(module, limit):
    """Each task's prompt, its ``answer`` if its data has one, and its system prompt."""
    return [
        {
            "question": task.data.prompt_text,
            "answer": getattr(task.data, "answer", None),
            "system": task.data.system_prompt,
        }
        for task in _tasks(module, limit)
    ]


def score(module, limit, index, reply):
    """The reward of one reply and what it is made of; None if no reward could be computed without a sandbox."""
    task = _tasks(module, limit)[index]
    nodes = [
        MessageNode(message=vf.UserMessage(content=task.data.prompt_text)),
        MessageNode(parent=0, message=vf.AssistantMessage(content=reply), sampled=True),
    ]
    trace = Trace(
        task=TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        agent=AgentInfo(config=vf.AgentConfig()),
        nodes=nodes,
    )
    asyncio.run(task.score(trace))
    parts = {name: reward.score for name, reward in trace.rewards.items() if reward is not None}
    return {"reward": float(trace.reward) if parts else None, "parts": parts}


HANDLERS = {"rows": rows, "score": score}
