"""Writes an environment as an OpenEnv package: what ``openenv validate`` accepts and ``openenv push`` uploads.

The package carries the parts of Gradus that the server really loads, found by starting it once, so that it needs neither
this repository nor torch where it runs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import packages_distributions, requires
from math import ceil, floor
from pathlib import Path
from urllib.parse import unquote_plus

from gradus import environments
from gradus.core import ConfigError, EnvironmentSpec, child_seed
from gradus.core.files import replaceable
from gradus.interop.openenv.package_files import package_files
from gradus.interop.openenv.package_trajectories import trajectories
from gradus.interop.openenv.schema import schemas
from gradus.interop.openenv.sessions import Session, SessionSlots
from gradus.interop.openenv.wire import WireError
from gradus.interop.secret_scan import refuse_secrets

_EPISODES = 20  # rolled out to see how large rewards get
_OPENENV = "openenv>=0.2.2"
_BRIDGES = "gradus.interop"
_BESIDE = {  # run in a process of their own, whose modules the probe does not see
    "gradus.rewards.answers": "math-verify",
    "gradus.interop.suites.reasoning_gym": "reasoning-gym",
    "gradus.interop.suites.textarena": "textarena",
}
_FILE_OPTIONS = ("test", "system")  # options of a data set that name files


@dataclass(frozen=True, kw_only=True)
class PackageResult:
    """What was written. ``locked`` False: uv was not there, and the lock file only has the header that uv completes.

    ``oracle`` False: no policy of the environment is known to earn the full reward on every task.
    """

    folder: Path
    files: Sequence[str]
    locked: bool
    oracle: bool


def write_package(name: str, folder: Path | str, *, sessions: int = 64) -> PackageResult:
    """Write the package of environment ``name`` into a folder that is empty or does not exist yet."""
    folder = replaceable(Path(folder))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there and not an empty folder; choose another, or remove it first")
    head, _, argument = name.partition(":")
    packaged = [each for each in environments.own_names() if each != "openenv"]
    if head not in packaged:  # the code of others would be missing where the package runs
        raise ConfigError(
            f"only environments that come with Gradus can be packaged ({', '.join(packaged)}), got {name!r}; "
            f"`gradus serve-env {name}` serves any environment where it is installed"
        )
    spec = environments.load(name)
    modules, requirements = _needs(name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as aside:
        root = Path(aside) / "package"
        packages = _copy_gradus(modules, root)
        inside = _copy_argument(argument, root)
        shown = trajectories(spec)
        texts = package_files(
            head,
            inside,
            spec,
            schemas(spec),
            shown=shown,
            rewards=_reward_range(spec, shown.top),
            sessions=sessions,
            requirements=[_OPENENV, *requirements],
            packages=packages,
        )
        _write(root, texts)
        inside_files = (path for path in sorted(root.rglob("*")) if path.is_file())
        refuse_secrets(((str(path.relative_to(root)), path) for path in inside_files), doing="packaged")
        locked = _lock(root, texts["uv.lock"])
        if folder.exists():
            folder.rmdir()
        shutil.move(root, folder)
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return PackageResult(folder=folder, files=files, locked=locked, oracle=bool(shown.oracle))


_PROBE = """
import json, sys
sys.modules["torch"] = None  # a server needs none; transformers, which describes tools, loads it if it is there
from gradus import environments
from gradus.interop.openenv.server import create_app, server_config
from gradus.interop.openenv.sessions import SessionSlots, Session
spec = environments.load(sys.argv[1])
create_app(spec)
session = Session(spec, SessionSlots(1))
task = spec.train_task(0)
session.reset({"seed": task.seed, **task.options})
for _ in range(spec.max_turns):
    session.handle(json.dumps({"type": "step", "data": {"text": "hello"}}))
print(json.dumps(sorted(name for name, module in sys.modules.items() if module is not None)))
"""


def _needs(name: str) -> tuple[list[str], list[str]]:
    """Modules of Gradus and declared requirements that the server of this environment loads, seen in a fresh process."""
    probe = subprocess.run([sys.executable, "-c", _PROBE, name], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        raise ConfigError(f"the server of {name!r} does not start: {probe.stderr.strip().splitlines()[-1:]}")
    loaded: list[str] = json.loads(probe.stdout.splitlines()[-1])
    tops = {module.partition(".")[0] for module in loaded}
    owners = packages_distributions()
    distributions = {owner.lower() for top in tops for owner in owners.get(top, ())} | {"websockets", "uvicorn"}
    distributions |= {needed for module, needed in _BESIDE.items() if module in loaded}
    declared = [each.partition(";")[0].strip() for each in requires("gradus-rl") or ()]  # those of extras too
    requirements = {each for each in declared if _base(each) in distributions - {"gradus-rl"}}
    modules = [module for module in loaded if module.partition(".")[0] == "gradus"]
    if "gradus.interop.suites" in modules:
        modules.append("gradus.interop.suites.workers")
    return modules, sorted(requirements)


def _base(requirement: str) -> str:
    return requirement.split(";")[0].split("[")[0].split(">")[0].split("=")[0].strip().lower()


def _copy_gradus(modules: Sequence[str], root: Path) -> list[str]:
    """Copy every package of Gradus of which a module was loaded, whole, because parts of it may be loaded later.

    Bridges are the exception: each is one file, and the server needs only those that it loaded.
    """
    source = Path(environments.__file__).parent.parent.parent
    packages = sorted({module for module in modules if (source / module.replace(".", "/")).is_dir()})
    for package in packages:
        target = root / package.replace(".", "/")
        target.mkdir(parents=True, exist_ok=True)
        for file in (source / package.replace(".", "/")).iterdir():
            needed = package != _BRIDGES or file.stem == "__init__" or f"{_BRIDGES}.{file.stem}" in modules
            if file.is_file() and file.suffix != ".pyc" and needed:
                shutil.copyfile(file, target / file.name)
    return packages


def _copy_argument(argument: str, root: Path) -> list[str | Path]:
    """What an environment is made of travels along, the files that its options name too.

    Returns the argument in pieces: texts, and paths inside the package.
    """
    text, mark, query = argument.partition("?")
    world, place = ("", text) if Path(text).expanduser().exists() else _split_world(text)
    pieces: list[str | Path] = [world, _copied(place, root, "") or place]
    for option in query.split("&") if mark else ():
        key, sign, value = option.partition("=")
        copied = _copied(unquote_plus(value), root, f"{key}-") if key in _FILE_OPTIONS else None
        pieces += [mark + key + sign, copied or value]
        mark = "&"
    return [piece for piece in pieces if piece]


def _split_world(text: str) -> tuple[str, str]:
    """``babi:`` and the place, for ``memory:babi:PATH``."""
    world, colon, place = text.partition(":")
    return (world + colon, place) if colon else ("", text)


def _copied(name: str, root: Path, prefix: str) -> Path | None:
    """The path in the package of a file or a folder that was copied there; None if there is none of this name."""
    source = Path(name).expanduser()
    if not name or not source.exists():
        return None
    inside = Path("data", prefix + source.resolve().name)
    files = [source]
    if source.is_dir():  # of a data set no more than its two files
        files = [each for each in (source / "train.jsonl", source / "test.jsonl") if each.is_file()]
        files = files or [each for each in sorted(source.iterdir()) if each.is_file()]
    for each in files:
        target = root / (inside / each.name if source.is_dir() else inside)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(each, target)
    return inside


def _write(root: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _rewards(spec: EnvironmentSpec) -> list[float]:
    """Rewards of a few training episodes under legal random answers (or an empty one, where none are declared)."""
    rewards: list[float] = []
    session = Session(spec, SessionSlots(1))
    missing: WireError | None = None
    for episode in range(_EPISODES):
        try:
            rewards += _episode_rewards(spec, session, episode)
        except WireError as error:
            missing = error
    session.close()
    if missing is not None and not rewards:
        raise ConfigError(f"{spec.name} cannot be packaged: {missing.message}")
    return rewards


def _episode_rewards(spec: EnvironmentSpec, session: Session, episode: int) -> list[float]:
    task, answers = spec.train_task(episode), spec.audit.random_answers
    session.reset({"seed": task.seed, **task.options})
    rewards: list[float] = []
    for turn in range(spec.max_turns):
        answer = answers(child_seed(0, "package", episode, turn)) if answers else ""
        observation = session.step({"text": answer})
        rewards += [] if observation.reward is None else [observation.reward]
        if observation.terminated or observation.truncated:
            break
    return rewards


def _reward_range(spec: EnvironmentSpec, top: float | None) -> tuple[float, float]:
    """The measured range of rewards with 0 and ``top``, the oracle's, or 1; widened by its own width on both sides, but not above ``top`` if
    nothing is above it."""
    rewards = [0.0, 1.0 if top is None else top, *_rewards(spec)]
    low, high = min(rewards), max(rewards)
    if (low, high) == (0.0, 1.0):
        return low, high
    width = high - low
    return float(floor(low - width)), float(ceil(high + width)) if top is None or high > top else top


def _lock(root: Path, header: str) -> bool:
    """Let uv pin what the package depends on; without uv, leave the header, which uv completes at its first use."""
    lock = root / "uv.lock"
    lock.unlink()
    uv = shutil.which("uv")
    if uv and subprocess.run([uv, "lock", "--quiet"], cwd=root, capture_output=True, check=False).returncode == 0:
        return True
    lock.write_text(header, encoding="utf-8")
    return False
