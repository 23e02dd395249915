"""vLLM's own OpenAI-compatible server with a model of ours, where vLLM is installed."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from gradus.core import ConfigError
from gradus.policies.local.folders import model_kind


def serve_with_vllm(
    model: str, *, name: str, host: str, port: int, rows: int, token: str | None, seed: int, more: Sequence[str] = ()
) -> None:
    """Become ``vllm serve``; Ctrl-C ends it. ``more``: further options of it; they win over ours. The token goes by the environment, where other users cannot read it.

    Raises ConfigError if vLLM is not installed, or if the model is an adapter without its base.
    """
    program = shutil.which("vllm")
    if program is None:
        raise ConfigError("vllm is not installed here; pip install 'gradus-rl[vllm]', or leave --engine out")
    if model_kind(Path(model)) == "adapter":
        raise ConfigError(
            f"{model} holds adapters; write a whole model with gradus export {model} --out FOLDER, and serve that"
        )
    options = {"served-model-name": name, "host": host, "port": port, "max-num-seqs": rows, "seed": seed}
    options["logprobs-mode"] = (
        "processed_logprobs"  # those of the distribution that was drawn from, as training needs them
    )
    if (limit := _longrope_limit(Path(model))) is not None:
        options["max-model-len"] = (
            limit  # with a longer one vLLM turns all positions at the long rate, short prompts too
        )
    words = [program, "serve", model, *(f"--{key}={value}" for key, value in options.items()), *more]
    sys.stdout.flush()
    os.execve(program, words, {**os.environ, **({} if token is None else {"VLLM_API_KEY": token})})


def _longrope_limit(folder: Path) -> int | None:
    """The original length of a local model whose positions change beyond it (LongRoPE); None for any other."""
    path = folder / "config.json"
    if not path.is_file() or "longrope" not in path.read_text(encoding="utf-8"):
        return None
    from transformers import AutoConfig

    from gradus.policies.local.loading import context_length

    return context_length(AutoConfig.from_pretrained(folder))
