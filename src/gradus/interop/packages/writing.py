"""Writes an environment as a package that verifiers 0.4 loads: a taskset.

A package is thin. It requires ``gradus-rl``, whose base installation has no torch, and carries no code of Gradus.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from gradus import environments
from gradus.core import ConfigError
from gradus.core.files import replaceable
from gradus.interop.secret_scan import refuse_secrets
from gradus.version import __version__

_ELSEWHERE = ("openenv", "verifiers")  # their code or server would be missing where the package runs
_EXTRAS = {"gymnasium": "gymnasium", "reasoning-gym": "suites", "textarena": "suites"}
_LONGEST_NAME = 60


@dataclass(frozen=True, kw_only=True)
class PackageResult:
    """The package that was written: its folder, its module and its files."""

    folder: Path
    module: str
    files: Sequence[str]


def write_package(name: str, folder: Path | str) -> PackageResult:
    """Write the package of environment ``name`` into a folder that is empty or does not exist yet.

    Raises ConfigError if no installed package brings the environment, or its file holds a key.
    """
    folder = replaceable(Path(folder))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there and not an empty folder; choose another, or remove it first")
    name = environments.file_name(name)
    head, _, argument = name.partition(":")
    distribution = _distribution(head)
    if distribution is None:
        raise ConfigError(
            f"only environments of Gradus and of installed packages can be packaged, got {name!r}; "
            f"`gradus serve-env {name}` serves any environment where it is installed"
        )
    spec = environments.load(name)
    place, mark, query = argument.partition("?")
    source = Path(place).expanduser() if place else None
    source = source if source is not None and source.exists() else None
    # verifiers finds a taskset by the name of its module, in small letters. The hyphen of reasoning-gym is not allowed in Python's names.
    words = re.findall(r"[0-9A-Za-z]+", f"{head} {source.stem if source else place}"[:_LONGEST_NAME])
    module = "_".join(("gradus", *words)).lower()
    values = {
        "loaded": _loaded(head, place, mark + query, source),
        "module": module,
        "project": module.replace("_", "-"),
        "requirements": ["verifiers==0.4.*", distribution],
        "spec": spec,
        "version": __version__,
    }
    contents: dict[str, bytes] = {**_texts(values), **(_data(source, f"{module}/data") if source else {})}
    refuse_secrets(contents.items(), doing="packaged")
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return PackageResult(folder=folder, module=module, files=sorted(contents))


def _distribution(head: str) -> str | None:
    """The requirement that brings an environment: Gradus itself, or the installed package whose entry point it is."""
    if head in environments.own_names():
        extra = _EXTRAS.get(head)
        own = f"gradus-rl[{extra}]=={__version__}" if extra else f"gradus-rl=={__version__}"
        return None if head in _ELSEWHERE else own
    found = [each.dist for each in entry_points(group="gradus.environments") if each.name == head]
    return f"{found[0].name}=={found[0].version}" if found and found[0] is not None else None


def _loaded(head: str, place: str, options: str, source: Path | None) -> str:
    """The Python expression for the name that the package loads; a file travels in the package's folder ``data``."""
    if source is None:
        return json.dumps(f"{head}:{place}{options}" if place else head)
    name = json.dumps(f"data/{source.name}", ensure_ascii=False)
    return f'"{head}:" + str(ROOT / {name})' + (f" + {json.dumps(options)}" if options else "")


def _texts(values: Mapping[str, Any]) -> dict[str, bytes]:
    """Path in the package -> content: the templates beside this module, filled with what the environment says of itself."""
    templates = Environment(
        loader=PackageLoader("gradus.interop.packages"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        autoescape=False,
    )
    filters: dict[str, Any] = templates.filters
    filters["json"] = json.dumps
    return {
        name.removesuffix(".j2").replace("package/", f"{values['module']}/"): templates.get_template(name)
        .render(values)
        .encode()
        for name in templates.list_templates()
    }


def _data(source: Path, folder: str) -> dict[str, bytes]:
    """The same of the file or folder that travels along."""
    files = [source] if source.is_file() else [each for each in source.rglob("*") if each.is_file()]
    return {f"{folder}/{each.relative_to(source.parent).as_posix()}": each.read_bytes() for each in files}
