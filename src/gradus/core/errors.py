"""Errors, named by the boundary that was crossed when they happened.

Every message says what was expected, what came, and the way out.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec


class GradusError(Exception):
    """Root of all errors that Gradus raises on purpose. The command line shows it without a traceback."""


class ConfigError(GradusError, ValueError):
    """A recipe, an option or an argument cannot be used as given."""


class AuditFailed(ConfigError):
    """A run's grader failed its audit. ``evidence``: what each failed check saw, by its name; ``page``: the path of audit.html."""

    def __init__(self, message: str, *, evidence: Mapping[str, str], page: str) -> None:
        super().__init__(message)
        self.evidence, self.page = evidence, page


class StorageError(GradusError):
    """A file could not be read or written as what it should be."""


class EnvironmentFault(GradusError):
    """An environment broke its contract or raised while resetting or stepping."""


class ModelFault(GradusError):
    """What a model answered made its agent fail."""


class OutOfTime(EnvironmentFault):
    """A call of somebody's code took longer than it may."""


class PolicyError(GradusError):
    """A policy could not produce an action."""


class ContextLengthError(PolicyError):
    """A prompt and its completion do not fit into the model's context. Both lengths stand in the message."""


class GradingError(GradusError):
    """A grader could not reward an episode."""


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says; an empty text if it says nothing."""
    return next(iter(str(error).strip().splitlines()), "")


# Packages of the extra `train`.
TRAINING = ("accelerate", "gguf", "huggingface_hub", "peft", "safetensors", "tokenizers", "torch", "transformers")
NEEDS_TRAINING = "local models and training need torch, which is not installed; pip install 'gradus-rl[train]'"


def require_training() -> None:
    """Raises ConfigError if torch is not installed: the base install audits, evaluates and reports, and trains nothing."""
    # Not by importing it, which takes seconds.
    try:
        spec = find_spec("torch")
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        raise ConfigError(NEEDS_TRAINING)
