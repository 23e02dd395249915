"""From a name on the command line to a policy: scripted, remote, or a model in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from gradus.core import ConfigError, EnvironmentSpec, Policy

if TYPE_CHECKING:
    from gradus.policies.local.sampling import SamplingConfig

__all__ = ["existing_model", "find_model", "make_policy", "teacher_name"]

_RUN_MODELS = ("grpo/best", "grpo/final", "sft/best", "sft/final", "sft/model", "best", "final")


def teacher_name(spec: EnvironmentSpec, name: str | None) -> str:
    """The teacher that was asked for, or the environment's own."""
    found = name or spec.teacher
    if found is None:
        raise ConfigError(
            f"{spec.name} brings no teacher; name one with --policy (or teach.policy), for example remote:MODEL"
        )
    return found


def make_policy(
    spec: EnvironmentSpec,
    name: str,
    *,
    sampling: SamplingConfig | None = None,
    label: str | None = None,
) -> Policy:
    """The policy called ``name``: one of the environment's own, ``remote:MODEL``, a model folder or a run folder."""
    head, _, argument = name.partition(":")
    if head in spec.policies:
        return spec.policy(name)
    if head == "remote":
        from gradus.policies.remote.policy import RemotePolicy

        if not argument:
            raise ConfigError(
                "remote needs a model's name, as in remote:gpt-5-mini; set OPENAI_BASE_URL for another server"
            )
        return RemotePolicy(argument)
    folder = find_model(name)
    if folder is None:
        known = ", ".join(spec.policies)
        raise ConfigError(
            f"unknown policy {name!r} for {spec.name}: it is none of {known}, not remote:MODEL, and no folder with a model"
        )
    return _local(spec, folder, sampling, label or name)


def find_model(name: str) -> Path | None:
    """The model folder that a path means: itself, or the best checkpoint of a run folder."""
    path = Path(name).expanduser()
    return next((each for each in (path, *(path / each for each in _RUN_MODELS)) if _holds_model(each)), None)


def _holds_model(folder: Path) -> bool:
    """A run's own config.json is no model's: a model's names its type. Read here, so that no torch is needed."""
    if (folder / "adapter_config.json").is_file():
        return True
    try:
        return "model_type" in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def existing_model(name: str) -> Path:
    """:func:`find_model`, or an error that says where it looked."""
    found = find_model(name)
    if found is None:
        raise ConfigError(
            f"no model in {name!r}: it has no config.json or adapter_config.json, nor has {', '.join(_RUN_MODELS)} in it"
        )
    return found


def _local(spec: EnvironmentSpec, folder: Path, sampling: SamplingConfig | None, label: str) -> Policy:
    from gradus.policies.local.loading import load_model
    from gradus.policies.local.policy import LocalPolicy
    from gradus.policies.local.sampling import SamplingConfig

    config = sampling or SamplingConfig(max_new_tokens=64)
    # Episodes of one turn have no earlier answers that a chat template could rewrite.
    return LocalPolicy(
        load_model(str(folder), keep_history=spec.max_turns == 1), config, name=label, grammar=spec.language.grammar
    )
