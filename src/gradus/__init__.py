"""Gradus trains language-model agents with GRPO on the machine one has, and proves that they got better.

    import gradus

    result = gradus.train("Qwen/Qwen2.5-0.5B-Instruct", "rows.jsonl", rewards=[my_reward], steps=200)
    result.report()

The names below are loaded when they are first used. ``gradus.commands`` has a function for every command.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gradus.version import __version__ as __version__

if TYPE_CHECKING:
    from gradus.commands.audits import audit
    from gradus.commands.comparing import compare, evaluate
    from gradus.commands.environments import agent, load_environment, roll_out
    from gradus.commands.stages import distill
    from gradus.commands.training import Run, check, load_run, run, train
    from gradus.core import Condition, EnvironmentSpec, Grader, Observation, Task
    from gradus.environments.verifiable.from_rows import one_turn
    from gradus.policies.local.loading import load_model
    from gradus.policies.scripted import FunctionPolicy
    from gradus.training.config import GrpoConfig
    from gradus.training.learner import Learner

_HOMES = {
    "gradus.commands.environments": ("agent", "load_environment", "roll_out"),
    "gradus.commands.audits": ("audit",),
    "gradus.commands.comparing": ("compare", "evaluate"),
    "gradus.commands.stages": ("distill",),
    "gradus.commands.training": ("Run", "check", "load_run", "run", "train"),
    "gradus.core": ("Condition", "EnvironmentSpec", "Grader", "Observation", "Task"),
    "gradus.environments.verifiable.from_rows": ("one_turn",),
    "gradus.policies.local.loading": ("load_model",),
    "gradus.policies.scripted": ("FunctionPolicy",),
    "gradus.training.config": ("GrpoConfig",),
    "gradus.training.learner": ("Learner",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Condition",
    "EnvironmentSpec",
    "FunctionPolicy",
    "Grader",
    "GrpoConfig",
    "Learner",
    "Observation",
    "Run",
    "Task",
    "agent",
    "audit",
    "check",
    "compare",
    "distill",
    "evaluate",
    "load_environment",
    "load_model",
    "load_run",
    "one_turn",
    "roll_out",
    "run",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "commands":
        return import_module("gradus.commands")
    if name not in _HOME:
        raise AttributeError(f"module 'gradus' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
