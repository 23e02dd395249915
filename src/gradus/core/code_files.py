"""The files that code stands in: a file or a module, and the files of one's own that it imports, with their digests."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from gradus.core.files import digest


def file_sources(module: str) -> dict[str, str]:
    """The code of ``FILE.py`` or of a module that was imported, and of the files of one's own that it imports."""
    place = module if module.endswith(".py") else getattr(sys.modules.get(module), "__file__", None)
    if not place:
        return {}
    path = Path(place).expanduser().absolute()
    depth = 1 if module.endswith(".py") else module.count(".") + 1 + (path.name == "__init__.py")
    root = path.parents[min(depth, len(path.parents)) - 1]
    try:
        sources = {f"code of {path.name if module.endswith('.py') else module}": digest(path)}
        return sources | {f"code of {name}": digest(each) for name, each in imported_files(path, root).items()}
    except OSError:
        return {}


def imported_files(path: Path, root: Path) -> dict[str, Path]:
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
    """Yield the imports of a file: the folder of a relative import, and the parts of the name."""
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
