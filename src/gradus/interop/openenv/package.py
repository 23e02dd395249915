"""Writes an environment as an OpenEnv package: ``openenv validate`` accepts it and ``openenv push`` uploads it.

The package is a thin server. It requires ``gradus-rl``, whose base installation has no torch, and carries no code of Gradus.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from math import ceil, floor
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from gradus import environments
from gradus.core import ConfigError, EnvironmentSpec, Episode
from gradus.core.files import replaceable
from gradus.interop.openenv.schema import schemas
from gradus.interop.secret_scan import refuse_secrets
from gradus.rollouts import roll_out
from gradus.version import __version__

_EPISODES = 20  # rolled out to see how large rewards get
_ELSEWHERE = ("openenv", "verifiers")  # their code or server would be missing where the package runs
_EXTRAS = {"gymnasium": "gymnasium", "reasoning-gym": "suites", "textarena": "suites"}
_TYPES = {"string": "str", "number": "float", "integer": "int", "boolean": "bool", "array": "list", "object": "dict"}
_LONGEST_NAME = 60
_NAMES = {"dockerignore": ".dockerignore"}  # a name that begins with a dot may be lost on the way into a wheel


@dataclass(frozen=True, kw_only=True)
class PackageResult:
    """The package that was written. ``locked`` is False if uv is missing: the lock file then holds the header that uv completes."""

    folder: Path
    files: Sequence[str]
    locked: bool


def write_package(name: str, folder: Path | str, *, sessions: int = 64) -> PackageResult:
    """Write the package of environment ``name`` into a folder that is empty or does not exist yet.

    Raises ConfigError if no installed package brings the environment, its last step brings no reward, or its file holds a key.
    """
    folder = replaceable(Path(folder))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there and not an empty folder; choose another, or remove it first")
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
    _refuse_other_files(name, query if source is not None else argument)
    words = _words(head, source.stem if source else place)
    loaded = _loaded(head, place, mark + query, source)
    texts = _texts(spec, loaded, words, distribution=distribution, sessions=sessions)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as aside:
        root = Path(aside) / "package"
        _write(root, texts, source)
        locked = _lock(root)
        if folder.exists():
            folder.rmdir()
        shutil.move(root, folder)
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return PackageResult(folder=folder, files=files, locked=locked)


def _distribution(head: str) -> str | None:
    """The requirement that brings an environment: Gradus itself, or the installed package whose entry point it is."""
    if head in environments.own_names():
        extra = _EXTRAS.get(head)
        own = f"gradus-rl[{extra}]=={__version__}" if extra else f"gradus-rl=={__version__}"
        return None if head in _ELSEWHERE else own
    found = [each.dist for each in entry_points(group="gradus.environments") if each.name == head]
    return f"{found[0].name}=={found[0].version}" if found and found[0] is not None else None


def _refuse_other_files(name: str, rest: str) -> None:
    """Raise ConfigError if an option names a file, which would be missing where the package runs."""
    for piece in re.split(r"[:?&=]", rest):
        if "/" in piece and Path(piece).expanduser().exists():
            raise ConfigError(
                f"only the file or folder that stands first in a name travels with a package, got {piece} in {name!r}; "
                "put what it says into that file, or serve the environment with gradus serve-env"
            )


def _loaded(head: str, place: str, options: str, source: Path | None) -> str:
    """The Python expression for the name that the server loads; a file travels in the package's folder ``data``."""
    if source is None:
        return json.dumps(f"{head}:{place}{options}" if place else head)
    name = json.dumps(f"data/{source.name}", ensure_ascii=False)
    return f'"{head}:" + str(ROOT / {name})' + (f" + {json.dumps(options)}" if options else "")


def _words(head: str, place: str) -> list[str]:
    """The words of a package's name, options left out. The hyphen of reasoning-gym is not allowed in Python's names."""
    return re.findall(r"[0-9A-Za-z]+", f"{head} {place}"[:_LONGEST_NAME])


def _texts(
    spec: EnvironmentSpec, loaded: str, words: Sequence[str], *, distribution: str, sessions: int
) -> dict[str, str]:
    """Path in the package -> text: the templates beside this module, filled with what the environment says of itself."""
    described = schemas(spec)
    word = "_".join(words).lower()
    seen: Mapping[str, Any] = described["observation"]["properties"]
    values = {
        "action": _fields(described["action"]),
        "annotation": lambda schema: _TYPES.get(str(schema.get("type")), "Any"),
        "loaded": loaded,
        "module": f"{word}_env",
        "observation": {key: schema for key, schema in seen.items() if key not in ("reward", "done")},  # OpenEnv's own
        "project": f"openenv-{word.replace('_', '-')}",
        # transformers describes tools
        "requirements": ["openenv>=0.10", distribution, *(["transformers>=5.20"] if "tools" in seen else [])],
        "rewards": _reward_range(spec),
        "sessions": sessions,
        "spec": spec,
        "title": "".join(part[0].upper() + part[1:] for part in words),
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
    texts["server/Dockerfile"] = texts["Dockerfile"]  # `openenv push` looks for it there
    return {_NAMES.get(path, path): text for path, text in texts.items()}


def _fields(action: Mapping[str, Any]) -> dict[str, Any]:
    return {key: schema for each in action.get("anyOf", [action]) for key, schema in each["properties"].items()}


def _reward_range(spec: EnvironmentSpec) -> tuple[float, float]:
    """The range that the grader declares; otherwise that of 0, 1 and a step's reward in a few random episodes, rounded outwards.

    Raises ConfigError if an episode has no reward, because its last step could not be answered.
    """
    if (declared := spec.grader().range) is not None:
        return declared
    policy = spec.policy("random" if "random" in spec.policies else "constant")
    tasks = [spec.train_task(index) for index in range(_EPISODES)]
    episodes = roll_out(spec, policy, tasks, key=("package",), grader=spec.grader()).episodes
    rewards = [0.0, 1.0, *(value for episode in episodes for value in _step_rewards(spec, episode))]
    return float(floor(min(rewards))), float(ceil(max(rewards)))


def _step_rewards(spec: EnvironmentSpec, episode: Episode) -> list[float]:
    """The rewards that a server sends: the environment's own, or else the grader's with the last step."""
    own = [turn.env_reward for turn in episode.turns if turn.env_reward is not None]
    if own:
        return own
    if episode.reward is None or episode.reward.value is None:
        told = episode.failure.message if episode.failure else episode.reward.error if episode.reward else None
        raise ConfigError(f"{spec.name} cannot be packaged: an episode has ended and has no reward: {told}")
    return [episode.reward.value]


def _write(root: Path, texts: Mapping[str, str], source: Path | None) -> None:
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    if source is not None:
        target = root / "data" / source.name
        target.parent.mkdir()
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    refuse_secrets(((str(path.relative_to(root)), path) for path in files), doing="packaged")


def _lock(root: Path) -> bool:
    """Let uv pin what the package depends on; without uv, leave the header, which uv completes at its first use."""
    lock = root / "uv.lock"
    header = lock.read_text(encoding="utf-8")
    lock.unlink()
    uv = shutil.which("uv")
    if uv and subprocess.run([uv, "lock", "--quiet"], cwd=root, capture_output=True, check=False).returncode == 0:
        return True
    lock.write_text(header, encoding="utf-8")
    return False
