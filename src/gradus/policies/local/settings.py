"""Stores what a model was trained with beside its weights, so that it is evaluated, exported and served with the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gradus.core import ConfigError
from gradus.core.values import JsonDict
from gradus.policies.local.sampling import SamplingConfig

SETTINGS_FILE = "gradus.json"
_ROOM = 256  # tokens of an answer outside the environment, whose own answers may be a few

Attention = Literal["sdpa", "eager", "flash_attention_2"]


class ModelSettings(BaseModel):
    """The settings that a model's answers depend on, besides its weights and its tokenizer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    # The environment that it was trained in, as `gradus envs` names it.
    environment: str | None = None
    # What the environment says first. A conversation without a system prompt of its own gets this one.
    system_prompt: str = ""
    # The tools that it could call there, as JSON schemas.
    tools: tuple[JsonDict, ...] = ()
    # How tokens were drawn; None if it was never trained with any.
    sampling: SamplingConfig | None = None
    # Earlier answers are kept as they were sampled, also if the chat template would rewrite them.
    keep_history: bool = False
    # Passed to the chat template: {"enable_thinking": false}, or tools.
    template_options: JsonDict = Field(default_factory=JsonDict)
    # How calls of tools are written: as the chat template has it, as lines of JSON, or as fits the template.
    tool_calls: Literal["auto", "template", "json"] = "auto"
    # The attention of transformers that computed it; None for transformers' own choice.
    attention: Attention | None = None
    # The weights that adapters were trained on: in four bits (QLoRA), or as they are.
    quantize: Literal["none", "4bit"] = "none"
    # The dtype that the base model was published in. A checkpoint has that of its training.
    dtype: str | None = None
    # What the chat template is told if it asks for today's date. A fixed day, so that a resumed run reads the same prompts.
    date: str = Field(default="2026-01-01", pattern=r"^\d{4}-\d{2}-\d{2}$")


def free_sampling(settings: ModelSettings) -> SamplingConfig:
    """Returns the settings of a model outside its environment: as it was trained, without the environment's grammar and with room for an answer."""
    sampling = settings.sampling or SamplingConfig()
    return sampling.model_copy(update={"grammar": False, "max_new_tokens": max(sampling.max_new_tokens, _ROOM)})


def read_settings(folder: str | os.PathLike[str]) -> ModelSettings | None:
    """The settings stored in a model folder, None if it has none. Raises ConfigError for a file that cannot be read."""
    file = Path(folder).expanduser() / SETTINGS_FILE
    if not file.is_file():
        return None
    try:
        return ModelSettings.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise ConfigError(
            f"{file} does not say how the model was trained: {first}; correct it, or remove it to load the model with defaults"
        ) from error


def write_settings(folder: Path, settings: ModelSettings) -> None:
    """Write the settings into a model folder."""
    (folder / SETTINGS_FILE).write_text(settings.model_dump_json(indent=2) + "\n", encoding="utf-8")
