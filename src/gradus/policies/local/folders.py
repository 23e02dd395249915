"""Finds the folders that hold a model. Only JSON is read, so that no torch is needed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from gradus.core import ConfigError, StorageError
from gradus.core.documents import read_document
from gradus.core.files import check_checksums, read_json
from gradus.core.values import JsonDict
from gradus.policies.local.gguf import dequantized, is_gguf
from gradus.policies.nano.model import NANO_TEMPLATE

ADDRESS = "tinker.json"  # names the weights of a model that a Tinker server holds
RUN_MODELS = ("grpo/best", "grpo/final", "distill/best", "distill/final", "sft/best", "sft/final", "best", "final")


def model_kind(folder: Path) -> Literal["model", "adapter", "served"] | None:
    """Returns what ``folder`` holds: a model, an adapter (LoRA) without its base, the address of weights on a server, or nothing of these.

    A run has a config.json too: only a model's names its model_type. Some trainers put their base's beside adapters.
    """
    if (folder / ADDRESS).is_file():
        return "served"
    weights = [*folder.glob("model*.safetensors"), *folder.glob("pytorch_model*.bin")]
    if not weights and (folder / "adapter_config.json").is_file():
        return "adapter"
    try:
        return "model" if "model_type" in read_json(folder / "config.json") else None
    except (StorageError, TypeError):
        return None


def adapter_base(folder: str | Path) -> str | None:
    """The model that the adapters (LoRA) in ``folder`` belong to; None for a folder with a model of its own, or any other name.

    Raises StorageError if adapter_config.json is damaged, ConfigError if it names no model.
    """
    file = Path(folder).expanduser() / "adapter_config.json"
    if model_kind(file.parent) != "adapter":
        return None
    base = read_document(file, JsonDict).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ConfigError(f"{file} names no base model; set base_model_name_or_path in it")
    return base


def tokenizer_source(base: str, folder: str) -> str:
    """Says where the tokenizer comes from: adapters may have their own, with the chat template that they were trained with."""
    return folder if (Path(folder).expanduser() / "tokenizer_config.json").is_file() else base


def find_model(name: str | Path) -> Path | None:
    """The model folder that a path means: itself, the dequantized one of a GGUF file, or the best checkpoint of a run folder (of its first seed).

    A best checkpoint whose config.json is damaged is not passed over for a worse one; loading it says what is wrong.
    """
    if is_gguf(name):
        return dequantized(name)
    path = Path(name).expanduser()
    if model_kind(path):
        return path
    # seed-10 comes after seed-9.
    seeds = sorted(path.glob("seed-*"), key=lambda seed: (len(seed.name), seed.name))
    for run in (path, *seeds[:1]):
        for checkpoint in RUN_MODELS:
            if (run / checkpoint).is_dir():
                return run / checkpoint
    return None


def run_of(source: str | Path, model: Path) -> Path:
    """The run folder that :func:`find_model` found ``model`` in: ``source``, or that of its first seed.

    Figures of ``source`` itself are means over all of its seeds, of which ``model`` is one.
    """
    path = Path(source).expanduser()
    for seed in path.glob("seed-*"):
        if model.is_relative_to(seed):
            return seed
    return path


def tell_first_seed(source: str | Path, model: Path) -> None:
    """Say on standard error that of a run of several seeds one is taken, if :func:`find_model` found ``model`` so."""
    run = run_of(source, model)
    if run != Path(source).expanduser():
        print(f"{source} holds several seeds; the model is that of {run}", file=sys.stderr)


def trained_precision(folder: str | Path) -> JsonDict:
    """Returns the arguments by which ``load_model`` computes as the run of a checkpoint does; none for a model outside a run."""
    try:
        settings = read_json(Path(folder).expanduser().parent / "config.json")
        autocast = settings["autocast"]
        dtype = settings["dtype"]
    except (StorageError, TypeError, KeyError):
        return {}
    samples = "group_size" in settings  # SFT samples nothing under its autocast
    return {"dtype": "float32" if autocast else str(dtype), "autocast": autocast and samples}


def is_nano(name: str | Path) -> bool:
    """Says whether a model's folder, or a run's, holds a nano model, or adapters of one: its chat template is a nano model's."""
    folder = find_model(name)
    # A name on the hub: no nano model is published under one.
    if folder is None:
        return False
    base = adapter_base(folder)
    if base is not None:
        return is_nano(base)
    try:
        return (folder / "chat_template.jinja").read_text(encoding="utf-8") == NANO_TEMPLATE
    except (OSError, ValueError):
        return False


def is_hub_name(name: str) -> bool:
    """Says whether ``name`` has the form owner/name and is nothing on this disk."""
    path = Path(name).expanduser()
    has_form = name.count("/") == 1 and not name.startswith((".", "~", "/"))
    return has_form and not path.exists() and not path.parent.exists()


def check_model_source(name: str) -> str:
    """Return ``name`` if it is a model's folder or a name on the hub, so that a mistyped folder is not looked up there.

    So is the base of a LoRA folder, which may be a name without an owner. Raises ConfigError.
    """
    if is_gguf(name):
        return str(dequantized(name))
    folder = Path(name).expanduser()
    if model_kind(folder) is not None:
        check_checksums(folder)
        base = adapter_base(folder)
        if base is not None and "/" in base:
            check_model_source(base)
        return name
    if is_hub_name(name):
        return name
    raise ConfigError(
        f"there is no model in {name}; check the path: a model is a folder with config.json or adapter_config.json and weights (a run has "
        "them in best and final), or a name on the hub (owner/name)"
    )
