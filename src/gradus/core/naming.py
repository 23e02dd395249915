"""Names that people type: importing what one stands for, suggesting the one that was meant, and finding the files of its code."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from hashlib import blake2b
from modulefinder import ModuleFinder
from pathlib import Path
from traceback import extract_tb
from types import FunctionType, ModuleType
from typing import Any

from gradus.core.errors import ConfigError, GradusError
from gradus.core.files import digest, similar_file
from gradus.core.foreign import going_on

IMPORTED: dict[str, float] = {}  # the module of a file that was imported by its path -> when, by time.time()
_LISTED = 20  # names that a message lists


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a suggestion to put into a message, or nothing if no name is close.

    >>> did_you_mean("rythm", ["rhythm", "memory"])
    ', did you mean rhythm?'
    """
    close = get_close_matches(name, list(names), n=1, cutoff=0.7)
    return f", did you mean {close[0]}?" if close else ""


def import_object(name: str, kind: str) -> Any:
    """Import ``module:attribute`` or ``FILE.py:NAME``, the one form in which rewards, environments, agents and the rest are named.

    ``kind`` says what it is for. The folder of a file is importable while it is imported, so that it can use the files beside it.
    Raises ConfigError, which lists what the module holds if the name is not there.
    """
    module_name, separator, attribute = name.rpartition(":")
    in_file = module_name.endswith(".py")
    is_relative = module_name.startswith(".") and not in_file  # no package here that it could be relative to
    is_complete = bool(separator and module_name and attribute)
    if is_relative or not is_complete or "\0" in name:
        raise ConfigError(f"{kind} {name!r} should be module:attribute or FILE.py:NAME")
    module = import_file(module_name, kind) if in_file else _module(module_name, kind)
    if not hasattr(module, attribute):
        names = _public_names(module)
        listed = ", ".join(names[:_LISTED]) or "no public name"
        hint = did_you_mean(attribute, names)
        raise ConfigError(f"{module_name} has no attribute {attribute!r}{hint}; it holds {listed}")
    return getattr(module, attribute)


def _public_names(module: ModuleType) -> list[str]:
    """Return what a module defines, or what it offers: a package imports all that it does."""
    names = getattr(module, "__all__", None)
    if names is not None:
        return list(names)
    public = [name for name in vars(module) if not name.startswith("_")]
    return [name for name in public if not _is_imported(getattr(module, name), module)]


def _is_imported(value: Any, module: ModuleType) -> bool:
    if isinstance(value, ModuleType) or type(value).__module__ == "__future__":
        return True
    return isinstance(value, type | FunctionType) and value.__module__ != module.__name__


def _module(name: str, kind: str) -> ModuleType:
    """Imports a module. The working folder is importable meanwhile, and no longer: a file there named as a library's module would run."""
    folder = os.getcwd()
    is_new = folder not in sys.path
    if is_new:
        sys.path.append(folder)
    try:
        with going_on():
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # The module is there, and one that it imports is not.
        if error.name and not f"{name}.".startswith(f"{error.name}."):
            raise _broken(name, kind, error) from error
        raise ConfigError(
            f"no module {name!r} for {kind}; is it installed and on PYTHONPATH? A file is given as FILE.py:NAME"
        ) from error
    except GradusError:
        raise
    except (Exception, SystemExit) as error:
        raise _broken(name, kind, error) from error
    finally:
        if is_new and folder in sys.path:
            sys.path.remove(folder)


def _broken(name: str, kind: str, error: BaseException) -> ConfigError:
    """Return the error for code of a user that raised while it was imported, with the place."""
    what = f"{type(error).__name__}: {error}"
    if not isinstance(error, SyntaxError):  # whose own text has the line
        last = extract_tb(error.__traceback__)[-1]
        what += f" ({Path(last.filename).name}, line {last.lineno})"
    return ConfigError(f"{name} cannot be imported for {kind}: {what}; fix it there")


def import_file(name: str, kind: str) -> ModuleType:
    """Import a Python file, once. Raises ConfigError if the file is missing."""
    path = Path(name).expanduser().resolve()
    if not path.is_file():
        raise ConfigError(f"no file {name} for {kind}{similar_file(Path(name))}")
    # By the whole path: two files of one name are two modules.
    key = f"_gradus_{path.stem}_{blake2b(str(path).encode(), digest_size=6).hexdigest()}"
    if key in sys.modules:
        return sys.modules[key]
    spec = importlib.util.spec_from_file_location(key, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module  # before it runs: dataclasses look their module up there
    IMPORTED[key] = time.time()
    sys.path.insert(0, str(path.parent))
    try:
        with going_on():
            spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[key]  # what failed half-way is not found again
        if isinstance(error, GradusError | KeyboardInterrupt):
            raise
        raise _broken(name, kind, error) from error
    finally:
        sys.path.remove(str(path.parent))
    return module


def file_sources(module: str) -> dict[str, str]:
    """Return the digests of ``FILE.py``, or of an imported module, and of the files of the user that it imports."""
    is_file = module.endswith(".py")
    file = module if is_file else getattr(sys.modules.get(module), "__file__", None)
    if not file:
        return {}
    path = Path(file).expanduser().absolute()
    # The folder that the module's name begins in: the files of the same package below it are the user's too.
    depth = 1 if is_file else module.count(".") + 1 + (path.name == "__init__.py")
    root = path.parents[min(depth, len(path.parents)) - 1]
    name = path.name if is_file else module
    try:
        files = {name: path, **imported_files(path, root)}
        return {f"code of {name}": digest(file) for name, file in files.items()}
    except OSError:
        return {}


def imported_files(path: Path, root: Path) -> dict[str, Path]:
    """Find the files in ``root`` and in the working folder that ``path`` imports, and those that they import: name -> file."""
    if "site-packages" in path.parts:
        return {}
    finder = ModuleFinder([str(root), str(Path.cwd())])
    with suppress(SyntaxError):
        finder.import_hook(".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"))
    files: dict[str, Path] = {}
    for module in finder.modules.values():
        file = Path(getattr(module, "__file__", None) or path)  # a built-in module has no file
        if file != path:
            name = file.relative_to(root).as_posix() if file.is_relative_to(root) else file.name
            files[name] = file
    return files
