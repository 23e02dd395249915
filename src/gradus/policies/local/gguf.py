"""Reads a GGUF file, as published by llama.cpp's tools, into an ordinary model folder: dequantized once, by transformers.

Training needs weights that can be changed, so quantized ones become full ones.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, cast

from gradus.core import ConfigError
from gradus.core.errors import first_line
from gradus.core.files import write_folder
from gradus.policies.one_at_a_time import quiet_transformers


def is_gguf(path: str | Path) -> bool:
    """Says if a path names a GGUF file."""
    return str(path).lower().endswith(".gguf")


def dequantized(file: str | Path) -> Path:
    """Returns the folder of a GGUF file's model in the user's cache, named by the file's content; makes it if it is not there.

    One folder serves every run and command, and the same file always gives the same weights. Raises ConfigError.
    """
    path = Path(file).expanduser()
    if not path.is_file():
        raise ConfigError(f"no file {path}; expected a GGUF file, as in --model models/smollm2.gguf")
    with path.open("rb") as opened:
        # By content: a file that was replaced under the same name is another model.
        digest = hashlib.file_digest(opened, "sha256").hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "gradus" / "models" / f"{path.stem}-{digest}"
    if not (folder / "config.json").is_file():
        print(f"{path.name} is dequantized once, into {folder}", file=sys.stderr)
        dequantize(path, folder)
    return folder


def dequantize(file: Path, folder: Path) -> None:
    """Writes the model of a GGUF file as a Hugging Face folder: weights in float32, tokenizer, chat template.

    Tied weights stay tied. The folder appears at once and whole. Raises ConfigError if transformers cannot read it.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with file.open("rb") as opened:
        if opened.read(4) != b"GGUF":
            raise ConfigError(f"{file} is not a GGUF file: it does not begin as one")
    place = str(file.parent.resolve())
    try:
        # transformers counts the tensors on standard error, whatever its settings say: a line for each tenth of a second in a log.
        with quiet_transformers(), redirect_stderr(io.StringIO()):
            tokenizer = cast(Any, AutoTokenizer).from_pretrained(place, gguf_file=file.name)
            model: Any = AutoModelForCausalLM.from_pretrained(place, gguf_file=file.name, dtype=torch.float32)
    except (ValueError, KeyError, NotImplementedError, RuntimeError, OSError, ImportError) as error:
        raise ConfigError(
            f"{file} cannot be read by transformers: {first_line(error)}; take the model's folder or its name on the hub"
        ) from error
    # transformers refuses to save what it calls quantized; these weights are not quantized any more.
    model.hf_quantizer = None
    model.is_quantized = False
    vars(model.config).pop("quantization_config", None)

    def fill(aside: Path) -> None:
        with quiet_transformers():
            model.save_pretrained(aside)
        tokenizer.save_pretrained(aside)

    write_folder(folder, fill)
