"""What a run is made from besides its settings: the rows of its data and the code of its rewards and environment, as digests.

Settings hold names alone. The digests tell whether what a name stands for is still the same.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import CodeType
from typing import Any

from gradus import environments
from gradus.core import EnvironmentSpec
from gradus.core.checksums import digest
from gradus.core.files import without_address
from gradus.environments.verifiable import TableTasks
from gradus.rewards import RewardConfig, find_reward
from gradus.rewards.catalog import BUILT_IN

_PLAIN = (str, int, float, bool, type(None))
_GIVEN = "python:"  # how a reward function begins that no file holds


def environment_sources(name: str, spec: EnvironmentSpec) -> dict[str, str]:
    """What is there -> its digest: the rows of a data set, and the code of an environment of one's own."""
    sources: dict[str, str | None] = {}
    if isinstance(spec.data_set, TableTasks):
        sources[_rows_label(spec.data_set.name)] = rows_digest(spec.data_set)
    if not environments.is_registered_by_name(name):
        if name.partition(":")[0] in environments.names():  # an object of this session
            made_of = [spec.make, *(grader.compute for grader in spec.graders.values())]
            sources[f"code of {name}"] = code_digest(made_of)
        else:
            sources |= _file_source(name if name.endswith(".py") else name.rpartition(":")[0])
    return _known(sources)


def reward_sources(rewards: Sequence[RewardConfig]) -> dict[str, str]:
    """The code of the reward functions that are no built-ins -> its digest."""
    sources: dict[str, str | None] = {}
    for name in (each.function for each in rewards):
        if name.startswith(_GIVEN):
            sources[f"code of {name.removeprefix(_GIVEN)}"] = code_digest([find_reward(name)])
        elif name not in BUILT_IN:
            sources |= _file_source(name.rpartition(":")[0])
    return _known(sources)


def rows_digest(tasks: TableTasks) -> str | None:
    """A digest of the rows as they are used. None if they cannot be written down."""
    items = {
        split: [[each.question, each.answer, each.worked, each.system, dict(each.columns)] for each in several]
        for split, several in tasks.splits.items()
    }
    try:
        text = json.dumps([tasks.system_prompt, items], skipkeys=True, default=_as_text)
    except (ValueError, TypeError, RecursionError):
        return None
    return sha256(text.encode()).hexdigest()


def code_digest(objects: Iterable[Any]) -> str | None:
    """A digest of the code of functions, classes and callable objects; None if they hold nobody's own code.

    What a function encloses and what a partial holds belong to it.
    """
    parts: list[str] = []
    seen: set[int] = set()
    for each in objects:
        _collect(each, parts, seen)
    return sha256("\0".join(parts).encode(errors="backslashreplace")).hexdigest() if parts else None


def _collect(value: Any, parts: list[str], seen: set[int]) -> None:
    if id(value) in seen:
        return
    seen.add(id(value))
    inside: list[Any] = []
    own = not str(getattr(value, "__module__", "")).startswith("gradus.")  # another version of Gradus is no change
    if isinstance(value, partial):
        inside = [value.func]
        parts.extend(f"{key}={each!r}" for key, each in value.keywords.items() if isinstance(each, _PLAIN))
    elif inspect.ismethod(value):
        inside = [value.__self__ if isinstance(value.__self__, type) else type(value.__self__)]
    elif inspect.isfunction(value):
        inside = [*map(_content, value.__closure__ or ())]
        parts.extend([_source(value), *(repr(each) for each in inside if isinstance(each, _PLAIN))] if own else ())
    elif isinstance(value, type):
        inside = [base for base in value.__bases__ if base.__module__ == value.__module__]
        parts.extend([_source(value)] if own else ())
    elif callable(value):
        inside = [type(value)]
    for each in inside:
        if callable(each):
            _collect(each, parts, seen)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is not filled yet
        return None


def _source(value: Any) -> str:
    """The text of a function or a class; of its code if there is no text, as at a prompt."""
    try:
        return inspect.getsource(value)
    except Exception:  # a file that was changed or removed can fail anywhere in the parser
        if isinstance(value, type):
            return "\n".join(
                f"{name} {_source(each)}" for name, each in vars(value).items() if inspect.isfunction(each)
            )
        return _code(value.__code__)


def _code(code: CodeType) -> str:
    constants = [
        _code(each)
        if isinstance(each, CodeType)
        else repr(sorted(map(repr, each)) if isinstance(each, frozenset) else each)  # a set has no order
        for each in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def _as_text(value: Any) -> Any:
    """A value that JSON does not have. Sets have no order, and an address in memory is another one every time."""
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    return without_address(repr(value))


def _file_source(module: str) -> dict[str, str | None]:
    """The code of ``FILE.py`` or of a module that was imported, and of the files of one's own that it imports."""
    place = module if module.endswith(".py") else getattr(sys.modules.get(module), "__file__", None)
    if not place:
        return {}
    path = Path(place).expanduser().absolute()
    depth = 1 if module.endswith(".py") else module.count(".") + 1 + (path.name == "__init__.py")
    root = path.parents[min(depth, len(path.parents)) - 1]
    try:
        sources: dict[str, str | None] = {f"code of {path.name if module.endswith('.py') else module}": digest(path)}
        return sources | {f"code of {name}": digest(each) for name, each in _imported(path, root).items()}
    except OSError:
        return {}


def _imported(path: Path, root: Path) -> dict[str, Path]:
    """The files in ``root`` and in the working folder that ``path`` imports, and what these import: name -> file."""
    found: dict[str, Path] = {}
    left = [path] if "site-packages" not in path.parts else []
    while left:
        reader = left.pop()
        for base, dotted in _imports(reader):
            for folder in [base] if base else dict.fromkeys([root, Path.cwd()]):
                steps = [folder.joinpath(*dotted[: count + 1]) for count in range(len(dotted))]
                for each in [file for step in steps for file in (step.with_suffix(".py"), step / "__init__.py")]:
                    if each != path and each not in found.values() and each.is_file():
                        found[each.relative_to(root).as_posix() if each.is_relative_to(root) else each.name] = each
                        left.append(each)
    return found


def _imports(path: Path) -> Iterator[tuple[Path | None, list[str]]]:
    """What a file imports: the folder if it is told relative to the file, and the parts of the name."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((None, alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = path.parents[node.level - 1] if 0 < node.level <= len(path.parents) else None
            parts = node.module.split(".") if node.module else []
            yield from ((base, [*parts, alias.name]) for alias in node.names)


def _rows_label(name: str) -> str:
    """``rows of e.jsonl`` for ``jsonl:data/e.jsonl?answer=label``, and ``rows`` for those that were given."""
    place = name.partition(":")[2].partition("?")[0]
    return f"rows of {Path(place).name}" if place else "rows" if name == "rows" else f"rows of {name}"


def _known(sources: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in sources.items() if value is not None}
