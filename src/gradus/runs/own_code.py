"""Code of one's own: the text of functions and classes that a session made, and files that were changed since they were imported."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from gradus.core.naming import IMPORTED, imported_files

_LIBRARY = {"gradus", *sys.stdlib_module_names} - {"builtins"}  # where a class is that exec made
_SESSION = uuid4().hex


def code_digest(objects: Iterable[Any]) -> str | None:
    """Returns a digest of the text of functions, classes and callable objects; None if all come with Gradus or an installed package.

    What they enclose and are partially given counts too. What they call does not, so after a change there a stage needs redo.
    An object without a text, as at a prompt, is the same in this session only.
    """
    texts = [text for each in objects if (text := _text(each)) is not None]
    return sha256("\0".join(texts).encode(errors="backslashreplace")).hexdigest() if texts else None


def _text(value: Any, *, outside: bool = True) -> str | None:
    """The text of an object of one's own, with what it holds; of a library's the objects of one's own that it holds itself."""
    if isinstance(value, partial):
        text = _text(value.func)
        return None if text is None else f"{text} {value.args!r} {value.keywords!r}"
    value = value.__self__ if inspect.ismethod(value) else value
    value = inspect.unwrap(value) if callable(value) else value
    kind = value if inspect.isfunction(value) or isinstance(value, type) else type(value)
    held = inspect.getclosurevars(value).nonlocals if inspect.isfunction(value) else {}
    if kind is not value:
        held = getattr(value, "__dict__", {})
    file = getattr(sys.modules.get(str(kind.__module__)), "__file__", None) or ""
    if str(kind.__module__).partition(".")[0] in _LIBRARY or {"site-packages", "dist-packages"} & {*Path(file).parts}:
        texts = [_text(each, outside=False) for each in held.values() if outside and callable(each)]
        return " ".join(filter(None, texts)) or None
    try:
        text = inspect.getsource(kind)
    except (OSError, TypeError):
        text = f"{_SESSION} {id(kind)}"
    return text + "".join(f" {name}={each!r}" for name, each in held.items() if isinstance(each, str | int | float))


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
