"""The files of an OpenEnv package: the templates beside this module, filled with what the environment says of itself."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from gradus.core import EnvironmentSpec
from gradus.interop.openenv.package_trajectories import Trajectories
from gradus.version import __version__

_ANNOTATIONS = {
    "string": "str",
    "number": "float",
    "integer": "int",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
}
_LONGEST_NAME = 60
_NAMES = {"dockerignore": ".dockerignore"}  # a name that begins with a dot may be lost on the way into a wheel


def package_files(
    name: str,
    argument: Sequence[str | Path],
    spec: EnvironmentSpec,
    described: Mapping[str, Any],
    *,
    shown: Trajectories,
    rewards: tuple[float, float],
    sessions: int,
    requirements: Sequence[str],
    packages: Sequence[str],
) -> dict[str, str]:
    """Path in the package -> text. ``described``: the schemas of action and observation; ``shown``: oracle and canaries;
    ``rewards``: their range."""
    choices = described["action"].get("anyOf", [described["action"]])
    parts = _name_parts(name, argument)
    word = "_".join(parts).lower()
    values = {
        "action": {key: schema for choice in choices for key, schema in choice["properties"].items()},
        "observation": {
            key: schema
            for key, schema in described["observation"]["properties"].items()
            if key not in ("reward", "done")  # OpenEnv's own fields
        },
        "annotation": _annotation,
        "loaded": _loaded(name, argument),
        "module": f"{word}_env",
        "packages": list(packages),
        "project": f"openenv-{word.replace('_', '-')}",
        "python": ">=3.11",
        "requirements": requirements,
        "rewards": rewards,
        "sessions": sessions,
        "shown": shown,
        "spec": spec,
        "title": "".join(part[0].upper() + part[1:] for part in parts),
        "version": __version__,
    }
    templates = Environment(
        loader=PackageLoader("gradus.interop.openenv"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        autoescape=False,
    )
    filters: dict[str, Any] = templates.filters
    filters |= {"json": json.dumps, "repr": repr}
    texts = {
        each.removesuffix(".j2"): templates.get_template(each).render(values) for each in templates.list_templates()
    }
    texts |= {f"{each}.jsonl": text for each in ("oracle", "canaries") if (text := getattr(shown, each))}
    texts["server/Dockerfile"] = texts["Dockerfile"]  # `openenv push` looks for it there
    return {_NAMES.get(path, path): text for path, text in texts.items()}


def _name_parts(name: str, argument: Sequence[str | Path]) -> list[str]:
    """The words of a package's name: the environment, and which game, set or file of it, without options. reasoning-gym is no name in Python."""
    said = [name]
    for piece in argument:
        if isinstance(piece, str) and piece.startswith("?"):
            break
        said.append(piece if isinstance(piece, str) else piece.stem)
    return re.findall(r"[0-9A-Za-z]+", " ".join(said)[:_LONGEST_NAME])


def _annotation(schema: Mapping[str, Any]) -> str:
    return _ANNOTATIONS.get(str(schema.get("type")), "Any")


def _loaded(name: str, argument: Sequence[str | Path]) -> str:
    """The Python expression for what the server loads; files travel in the package's folder ``data``."""
    if not argument:
        return f'"{name}"'
    parts = [f'"{name}:"']
    for piece in argument:
        if isinstance(piece, str):
            parts.append(json.dumps(piece))
            continue
        located = f"str(ROOT / {json.dumps(piece.as_posix(), ensure_ascii=False)})"
        asked = any("?" in part for part in parts)  # options are read as those of a web address are
        parts.append(f"quote({located})" if asked else located)
    return " + ".join(parts)
