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
_EXTRAS = {"gymnasium": "[gymnasium]", "reasoning-gym": "[suites]", "textarena": "[suites]"}
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
    place, mark, query = argument.partition("?")
    requirement = _requirement(head)
    if requirement is None:
        raise ConfigError(
            f"only environments of Gradus and of installed packages can be packaged, got {name!r}; "
            f"`gradus serve {name} --env` serves any environment where it is installed"
        )
    source = Path(place).expanduser()
    # Path("") is this folder, which always exists.
    travels = place != "" and source.exists()
    module = _module_name(f"{head} {source.stem if travels else place}")
    loaded = json.dumps(name)
    if travels:  # a file of rows lies in the folder of the module
        file = json.dumps(f"data/{source.name}", ensure_ascii=False)
        loaded = f'"{head}:" + str(ROOT / {file})' + (f" + {json.dumps(mark + query)}" if query else "")
    values = {
        "loaded": loaded,
        "module": module,
        "project": module.replace("_", "-"),
        "requirements": ["verifiers==0.4.*", requirement],
        "spec": environments.load(name),
        "version": __version__,
    }
    contents = _texts(values) | (_data(source, f"{module}/data") if travels else {})
    # Before anything is written: a file with a key should not lie around in a second place.
    refuse_secrets(contents.items(), doing="packaged")
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return PackageResult(folder=folder, module=module, files=sorted(contents))


def _module_name(words: str) -> str:
    """The name by which verifiers finds a taskset: small letters, and no hyphen, which Python's names do not allow."""
    return "_".join(["gradus", *re.findall(r"[0-9A-Za-z]+", words[:_LONGEST_NAME])]).lower()


def _requirement(head: str) -> str | None:
    """The requirement that brings an environment: Gradus itself, or the installed package whose entry point it is."""
    if head in _ELSEWHERE:
        return None
    if head in environments.own_names():
        return f"gradus-rl{_EXTRAS.get(head, '')}=={__version__}"
    for entry in entry_points(group="gradus.environments", name=head):
        if entry.dist is not None:
            return f"{entry.dist.name}=={entry.dist.version}"
    return None


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
    texts: dict[str, bytes] = {}
    for name in templates.list_templates():
        path = name.removesuffix(".j2").replace("package/", f"{values['module']}/")
        texts[path] = templates.get_template(name).render(values).encode()
    return texts


def _data(source: Path, folder: str) -> dict[str, bytes]:
    """The same of the file or folder that travels along."""
    files = [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]
    return {f"{folder}/{file.relative_to(source.parent).as_posix()}": file.read_bytes() for file in files}
