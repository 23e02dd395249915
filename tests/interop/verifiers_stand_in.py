"""A small stand-in for verifiers 0.3 and 0.4: as much of both as the worker and the tests of the suite use."""

from __future__ import annotations

import inspect
import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

from pydantic import BaseModel


def write_package(folder: Path) -> str:
    """A package ``verifiers`` in ``folder`` that is the stand-in; returns the PYTHONPATH with it."""
    (folder / "verifiers").mkdir(parents=True)
    (folder / "verifiers" / "__init__.py").write_text(f"from {Path(__file__).stem} import install\ninstall()\n")
    return f"{folder}:{Path(__file__).parent}"


class SystemMessage(BaseModel):
    role: str = "system"
    content: str


class UserMessage(BaseModel):
    role: str = "user"
    content: str


class AssistantMessage(BaseModel):
    role: str = "assistant"
    content: str | None = None
    tool_calls: list[Any] | None = None
    finish_reason: str | None = None
    is_truncated: bool | None = None


# -- 0.3 --------------------------------------------------------------------------------------------------------------


class Rubric:
    def __init__(self, funcs: list[Any], weights: list[float] | None = None) -> None:
        self.funcs, self.weights = funcs, weights or [1.0] * len(funcs)

    async def score_rollout(self, state: dict[str, Any]) -> None:
        state["metrics"] = {each.__name__: self._value(each, state) for each in self.funcs}
        pairs = zip(state["metrics"].values(), self.weights, strict=True)
        state["reward"] = sum(value * weight for value, weight in pairs)

    def _value(self, function: Any, state: dict[str, Any]) -> float:
        try:
            return float(function(**{name: state[name] for name in inspect.signature(function).parameters}))
        except Exception as error:
            logging.getLogger("verifiers.rubrics").error(f"Error calling reward function {function.__name__}: {error}")
            return 0.0


class SingleTurnEnv:
    max_turns = 1

    def __init__(self, rubric: Rubric, dataset: Any = None, eval_dataset: Any = None) -> None:
        self.rubric, self.dataset, self.eval_dataset = rubric, dataset, eval_dataset

    def build_dataset(self) -> Any:
        return self._prompts(self.dataset)

    def build_eval_dataset(self) -> Any:
        return self._prompts(self.eval_dataset)

    def _prompts(self, rows: Any) -> Any:
        return rows and [{"prompt": [{"role": "user", "content": row["question"]}], **row} for row in rows]

    async def rollout(self, row: dict[str, Any], client: Any, model: str, sampling: Any) -> dict[str, Any]:
        response = await client.get_response(row["prompt"], model, sampling)
        return {**row, "completion": [response.message], "error": None}


# -- 0.4 --------------------------------------------------------------------------------------------------------------


class TaskData(BaseModel):
    prompt: Any = None
    system_prompt: str | None = None


class State(BaseModel):
    pass


class Task:
    state: ClassVar[type[State]] = State
    config = None

    def __class_getitem__(cls, kinds: Any) -> Any:
        kinds = kinds if isinstance(kinds, tuple) else (kinds,)
        return type(cls.__name__, (cls,), {"state": kinds[1]}) if len(kinds) > 1 else cls

    def __init__(self, data: TaskData) -> None:
        self.data, self.key, self.hash = data, "", ""

    async def setup(self, trace: Any, runtime: Any) -> None:
        pass

    async def finalize(self, trace: Any, runtime: Any) -> None:
        pass

    @classmethod
    def toolsets(cls, config: Any) -> list[Any]:
        return []

    def hooks(self, kind: str) -> list[Any]:
        return discover_decorated(self, kind)

    async def score(self, trace: Any) -> None:
        for each in self.hooks("reward"):
            trace.rewards[each.__name__] = SimpleNamespace(value=await each(trace=trace) * each.weight)


class Taskset:
    toolsets = Task.toolsets

    def __class_getitem__(cls, kind: Any) -> Any:
        return cls

    def __init__(self, config: Any) -> None:
        self.config = config

    def __iter__(self) -> Any:
        return iter(self.load())  # type: ignore[attr-defined]


class Trace:
    def __init__(self, *, task: Any, agent: Any, state: State) -> None:
        self.task, self.state = task, state
        self.nodes: list[Any] = []
        self.rewards: dict[str, Any] = {}

    @property
    def messages(self) -> list[Any]:
        return [each.message for each in self.nodes]

    @property
    def last_reply(self) -> str:
        return self.messages[-1].content.strip()

    @property
    def reward(self) -> float:
        return sum(each.value for each in self.rewards.values())


def _mark(kind: str) -> Any:
    def mark(function: Any = None, *, weight: float = 1.0) -> Any:
        if function is None:
            return lambda given: mark(given, weight=weight)
        setattr(function, kind, True)
        function.weight = weight
        return function

    return mark


def discover_decorated(task: Any, kind: str) -> list[Any]:
    return [getattr(task, name) for name in dir(task) if hasattr(getattr(task, name), kind)]


def _invoke(function: Any, available: dict[str, Any]) -> Any:
    return function(**{name: available[name] for name in inspect.signature(function).parameters if name in available})


def _taskset_class(name: str) -> Any:
    return getattr(sys.modules[name], sys.modules[name].__all__[0])


def install() -> None:
    """Make the modules of verifiers."""
    plain: Any = SimpleNamespace
    own = type("SingleAgentEnv", (), {})
    loaders = {
        "taskset_class": _taskset_class,
        "taskset_config_type": lambda name: plain,
        "environment_class": lambda name: getattr(sys.modules[name], "OwnEnv", own),
    }
    old = {"Rubric": Rubric, "SingleTurnEnv": SingleTurnEnv, "__version__": "stand-in"}
    messages = {"SystemMessage": SystemMessage, "UserMessage": UserMessage, "AssistantMessage": AssistantMessage}
    marks = {kind: _mark(kind) for kind in ("reward", "intercept")}
    modules: dict[str, dict[str, Any]] = {
        "": old,
        ".types": {"ResponseMessage": AssistantMessage, "ToolCall": plain, "Response": plain},
        ".clients": {"Client": type("Client", (), {"__init__": lambda self, config: None})},
        ".errors": {"OverlongPromptError": type("OverlongPromptError", (Exception,), {})},
        ".v1": {**messages, **marks, "TaskData": TaskData, "State": State, "Task": Task, "Taskset": Taskset},
        ".v1.envs": {},
        ".v1.envs.single_agent": {"SingleAgentEnv": own},
        ".v1.utils": {},
        ".v1.utils.loaders": loaders,
        ".v1.utils.decorators": {"discover_decorated": discover_decorated, "invoke": _invoke},
        ".v1.state": {"state_cls": lambda kind: kind.state},
        ".v1.trace": {"Trace": Trace, "AgentInfo": plain, "TraceTask": plain},
        ".v1.graph": {"MessageNode": plain},
    }
    modules[".v1"] |= {"AgentConfig": plain, "Env": object}
    for name, members in modules.items():
        module = sys.modules.setdefault("verifiers" + name, ModuleType("verifiers" + name))
        vars(module).update(members)
        parent, _, child = module.__name__.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
