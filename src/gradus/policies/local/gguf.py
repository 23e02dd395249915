"""Reads a GGUF file, as published by llama.cpp's tools, into an ordinary model folder: dequantized once, by transformers.

Training needs weights that can be changed, so quantized ones become full ones. What they were is kept in ``source.json``, which goes
along with every model that is trained from them.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import sys
from collections import Counter
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, TypedDict, cast

from gradus.core import ConfigError
from gradus.core.errors import first_line
from gradus.core.files import read_json, write_folder, write_json
from gradus.policies.one_at_a_time import quiet_transformers

SOURCE = "source.json"


class ModelSource(TypedDict):
    """The origin of a model folder's weights, for its card."""

    file: str
    name: str
    # As the file names it; empty if it names none.
    license: str
    # The commonest kind of weights.
    quantization: str


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


def copy_source(model: str | Path, folder: Path) -> None:
    """Copies ``source.json`` from the folder that a model was loaded from into the one that it is saved in, if there is one."""
    source = Path(model).expanduser() / SOURCE
    if source.is_file():
        shutil.copyfile(source, folder / SOURCE)


def read_source(folder: str | Path) -> ModelSource | None:
    """Returns what a folder's weights were made from, or None if that was not a GGUF file."""
    path = Path(folder) / SOURCE
    return read_json(path) if path.is_file() else None


def source_facts(folder: str | Path) -> list[str]:
    """Lines for the card of a model that was trained from this folder."""
    source = read_source(folder)
    if source is None:
        return []
    origin = source["name"]
    if source["license"]:
        origin += f", licence {source['license']}"
    return [f"trained from {origin}, dequantized from {source['quantization']} (`{source['file']}`)"]


def dequantize(file: Path, folder: Path) -> ModelSource:
    """Writes the model of a GGUF file as a Hugging Face folder: weights in float32, tokenizer, chat template, ``source.json``.

    Tied weights stay tied. The folder appears at once and whole. Raises ConfigError if transformers cannot read it.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = _source(file)
    place = str(file.parent.resolve())
    name = file.name
    try:
        # transformers counts the tensors on standard error, whatever its settings say: a line for each tenth of a second in a log.
        with quiet_transformers(), redirect_stderr(io.StringIO()):
            tokenizer = cast(Any, AutoTokenizer).from_pretrained(place, gguf_file=name)
            model: Any = AutoModelForCausalLM.from_pretrained(place, gguf_file=name, dtype=torch.float32)
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
        write_json(aside / SOURCE, source)

    write_folder(folder, fill)
    return source


def _source(file: Path) -> ModelSource:
    """Reads name, licence and the commonest kind of weights from the file's head."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(file)
    except (ValueError, IndexError, OSError) as error:
        raise ConfigError(f"{file} is not a GGUF file: {first_line(error)}") from error

    def text(key: str) -> str:
        field = reader.get_field(f"general.{key}")
        return str(field.contents()) if field is not None else ""

    # Vectors (norms, biases) are mostly in float32, whatever the file is called.
    matrices = [tensor for tensor in reader.tensors if len(tensor.shape) > 1]
    kinds = Counter(tensor.tensor_type.name for tensor in matrices)
    kind = kinds.most_common(1)[0][0] if kinds else "nothing"
    return {"file": file.name, "name": text("name") or file.stem, "license": text("license"), "quantization": kind}
