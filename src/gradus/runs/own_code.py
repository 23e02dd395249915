"""The code that a run is made from, as a digest: objects of this session with what they use."""

from __future__ import annotations

import dis
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path, PurePath
from types import CodeType, FunctionType, ModuleType
from typing import Any

from gradus.core.code_files import file_sources, imported_files
from gradus.core.naming import IMPORTED

_PLAIN = (str, int, float, bool, type(None), bytes, range, PurePath)
_LIBRARY = {"gradus", *sys.stdlib_module_names} - {"builtins"}  # where a class is that exec made
_OF_PYTHON = 1 << 9  # the flag of a class that a class statement made (Py_TPFLAGS_HEAPTYPE)


def code_digest(objects: Iterable[Any]) -> str | None:
    """A digest of the code of functions, classes and callable objects; None if they hold nobody's own code.

    The functions, classes and constants that code uses by name belong to it, and what it encloses, what its arguments are if they are
    left out, and what a partial or a callable object holds. Of a list, a dict or a set only the functions in it do, because code
    may fill it as it runs.
    """
    parts: list[str] = []
    seen: dict[int, Any] = {}
    for each in objects:
        _collect("", each, parts, seen)
    return sha256("\0".join(parts).encode(errors="backslashreplace")).hexdigest() if parts else None


def _collect(name: str, value: Any, parts: list[str], seen: dict[int, Any]) -> None:
    """Add what ``value``, which code calls ``name``, says and uses. ``seen`` keeps hold of objects, so that no two have one id."""
    if (text := _constant(value)) is not None:
        parts.append(f"{name}={text}")
        return
    if isinstance(value, Mapping | list | tuple):
        held: Iterable[Any] = value.values() if isinstance(value, Mapping) else value
        for each in held:
            if callable(each):
                _collect(name, each, parts, seen)
        return
    owner = value.__self__ if inspect.ismethod(value) else value
    if id(owner) in seen:
        return
    seen[id(owner)] = owner
    own = _is_own(owner)
    if own and (text := _source(owner)):
        parts.append(text)
    for key, each in _uses(owner, own=own, whole=owner is not value or callable(value)).items():
        if own or _constant(each) is None or (isinstance(owner, partial) and not name):
            _collect(key, each, parts, seen)


def _constant(value: Any) -> str | None:
    """A value that nobody can change, as text; None for every other."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, re.Pattern):
        return f"{value.pattern!r} {value.flags}"
    if not isinstance(value, tuple | frozenset):
        return None
    inside = [_constant(each) for each in value]
    if None in inside:
        return None
    return repr(inside if isinstance(value, tuple) else sorted(map(str, inside)))  # a set has no order


def _is_own(value: Any) -> bool:
    """Whether code is somebody's own: another version of Gradus, of Python or of an installed package is no change."""
    if isinstance(value, partial):
        return _is_own(value.func)
    kind = value if inspect.isfunction(value) or isinstance(value, type | ModuleType) else type(value)
    module = str(kind.__name__ if isinstance(kind, ModuleType) else getattr(kind, "__module__", None) or "")
    if isinstance(kind, type) and not kind.__flags__ & _OF_PYTHON:
        return False
    if module.partition(".")[0] in _LIBRARY:
        return False
    place = Path(getattr(sys.modules.get(module), "__file__", None) or "")
    return not {"site-packages", "dist-packages"} & {*place.parts}


def _uses(value: Any, *, own: bool, whole: bool) -> Mapping[str, Any]:
    """What code uses, by name. ``whole``: the constants of an object count too, and not its class alone."""
    held: Mapping[str, Any] = getattr(value, "__dict__", {})
    wrapped = {"wrapped": held["__wrapped__"]} if "__wrapped__" in held else {}  # as functools.wraps and cache leave it
    if isinstance(value, partial):
        return {"func": value.func, **{str(place): each for place, each in enumerate(value.args)}, **value.keywords}
    if inspect.isfunction(value):
        cells = zip(value.__code__.co_freevars, map(_content, value.__closure__ or ()), strict=True)
        defaults = {"defaults": value.__defaults__ or (), **(value.__kwdefaults__ or {})}
        return {**wrapped, **dict(cells), **({**defaults, **_globals(value)} if own else {})}
    if isinstance(value, type):
        return {"bases": value.__bases__, **_members(value)} if own else {}
    if isinstance(value, ModuleType):
        return {}
    if not own and not (callable(value) and type(value).__module__.startswith("gradus.")):
        return wrapped
    changed = {name for each in _members(type(value)).values() for name in _names(each, "STORE_ATTR")}
    return {"class": type(value), **{key: each for key, each in held.items() if whole and key not in changed}}


def _globals(function: FunctionType) -> dict[str, Any]:
    """What a function uses by name besides its arguments, without what it sets itself."""
    names = {*_names(function, "LOAD_GLOBAL"), *_names(function, "LOAD_NAME")} - {*_names(function, "STORE_GLOBAL")}
    space = function.__globals__
    return {name: space[name] for name in sorted(names) if name in space and not name.startswith("__")}


def _members(kind: type) -> dict[str, Any]:
    """The methods and constants of a class; a property as its functions."""
    members: dict[str, Any] = {}
    for name, each in vars(kind).items():
        if isinstance(each, staticmethod | classmethod):
            each = each.__func__
        elif isinstance(each, property):
            each = (each.fget, each.fset, each.fdel)
        elif isinstance(each, cached_property):
            each = each.func
        if not name.startswith("__") or inspect.isfunction(each):
            members[name] = each
    return members


def _names(value: Any, kind: str) -> Iterator[str]:
    """The names in a function's instructions of this kind; in those that make an object none, as what they store stays."""
    if not inspect.isfunction(value) or (kind == "STORE_ATTR" and value.__name__ in ("__init__", "__post_init__")):
        return
    left = [value.__code__]
    while left:
        code = left.pop()
        left += [each for each in code.co_consts if isinstance(each, CodeType)]
        yield from (each.argval for each in dis.get_instructions(code) if each.opname == kind)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is not filled yet
        return None


def _source(value: Any) -> str:
    """The text of a function or a class; of its code if there is no text, as at a prompt. That of a module is its files."""
    if isinstance(value, ModuleType):
        return " ".join(file_sources(value.__name__).values())
    if not inspect.isfunction(value) and not isinstance(value, type):
        return ""
    if value.__name__ == "<lambda>":  # its text is all that stands in its line
        return _code(value.__code__)
    try:
        return inspect.getsource(value)
    except Exception:  # a file that was changed or removed can fail anywhere in the parser
        return value.__name__ if isinstance(value, type) else _code(value.__code__)


def _code(code: CodeType) -> str:
    constants = [
        _code(each)
        if isinstance(each, CodeType)
        else repr(sorted(map(repr, each)) if isinstance(each, frozenset) else each)  # a set has no order
        for each in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def forget_changed_files() -> None:
    """Let a file that was imported by its path be imported anew if it, or a file of one's own that it imports, was changed since.

    For the beginning of a call in a process that lives long, as a notebook does. Within a call nothing changes.
    """
    for key, since in [*IMPORTED.items()]:
        path = Path(getattr(sys.modules.get(key), "__file__", None) or "")
        files = {path, *imported_files(path, path.parent).values()} if path.is_file() else set[Path]()
        if any(each.stat().st_mtime > since for each in files):
            del IMPORTED[key]
            known = [(name, getattr(each, "__file__", None)) for name, each in sys.modules.items()]
            for name in [name for name, file in known if file and Path(file) in files]:
                if name != "__main__" and name.partition(".")[0] not in _LIBRARY:
                    del sys.modules[name]
