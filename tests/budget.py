"""Prints the size of each room in syntax nodes beside its budget, and how densely and in which words it is written.

``python -m tests.budget``, which is part of ``make check``; ends with 1 if a total is over its budget. Size is a cost: a capability says in its
commit what it took away. A node is one node of Python's own syntax tree.
"""

import ast
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {  # syntax nodes
    "core": 15_000,
    "sandbox": 8_000,
    "algorithms": 6_000,
    "stats": 9_000,
    "rewards": 14_000,
    "rollouts": 7_000,
    "policies": 30_000,
    "training": 46_000,
    "auditing": 40_000,
    "evidence": 36_000,
    "runs": 28_000,
    "commands": 14_000,
    "environments": 15_000,
    "interop": 32_000,
}
LIBRARY, GUESTS = 300_000, 40_000
TESTS, BENCHMARKS = 30_000, 4_500  # lines
DOCS = 40_000  # words
NODES_A_LINE, NODES_A_STATEMENT, NAMES_IN_A_THOUSAND = 6.3, 10.8, 1.0

# Names that say how a value came and not what it is.
HOW_IT_CAME = {"told", "said", "given", "asked", "wanted", "made", "left", "found", "known", "own", "there", "whole"}
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass
class Size:
    """What is counted in some files. ``packed``: a comprehension in a comprehension, or a conditional expression in one."""

    nodes: int = 0
    lines: int = 0
    statements: int = 0
    comments: int = 0
    names: int = 0
    packed: int = 0
    classes: Counter[str] = field(default_factory=Counter)

    def add(self, file: Path) -> None:
        """Count one file too."""
        text = file.read_text(encoding="utf-8")
        self.lines += len(text.splitlines())
        self.comments += sum(line.lstrip().startswith("#") for line in text.splitlines())
        for node in ast.walk(ast.parse(text)):
            self.nodes += 1
            self.statements += isinstance(node, ast.stmt)
            self.names += _name_of(node) in HOW_IT_CAME
            self.packed += _is_packed(node)
            if isinstance(node, ast.ClassDef):
                self.classes[node.name] += 1

    def row(self, name: str, budget: int) -> str:
        """One line of the table."""
        lines, statements = max(self.lines, 1), max(self.statements, 1)
        figures = (
            f"{self.nodes / lines:5.1f} a line {self.nodes / statements:5.1f} a statement"
            f" {1000 * self.names / lines:5.1f} names {self.packed:3} packed {1000 * self.comments / lines:4.0f} comments"
        )
        return f"{name:14} {self.nodes:8,} of {budget:7,} nodes {figures}{'  over' if self.nodes > budget else ''}"


def _name_of(node: ast.AST) -> str:
    """The name that a node binds, or an empty text."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    return node.arg if isinstance(node, ast.arg) else ""


def _is_packed(node: ast.AST) -> bool:
    for kinds in (_COMPREHENSIONS, (ast.IfExp,)):
        if isinstance(node, kinds):
            return any(isinstance(inner, kinds) for inner in ast.walk(node) if inner is not node)
    return False


def measure(folder: Path) -> Size:
    """Returns the size of all Python files below a folder."""
    size = Size()
    for file in sorted(folder.rglob("*.py")):
        size.add(file)
    return size


def _lines(folder: Path) -> int:
    return sum(len(file.read_bytes().splitlines()) for file in folder.rglob("*.py"))


def _words(folder: Path) -> int:
    return sum(len(file.read_text(encoding="utf-8").split()) for file in folder.rglob("*.md"))


def main() -> int:
    for name, budget in ROOMS.items():
        print(measure(ROOT / "src/gradus" / name).row(name, budget))
    library, guests = measure(ROOT / "src/gradus"), measure(ROOT / "src/gradus_worlds")
    print(library.row("library", LIBRARY))
    print(guests.row("guests", GUESTS))
    twice = sorted(name for name, count in (library.classes + guests.classes).items() if count > 1)
    lines = library.lines + guests.lines
    names = 1000 * (library.names + guests.names) / lines
    totals = {
        "lines of tests": (_lines(ROOT / "tests"), TESTS),
        "lines of benchmarks": (_lines(ROOT / "benchmarks"), BENCHMARKS),
        "words of docs": (_words(ROOT / "docs"), DOCS),
        "nodes a line": (library.nodes / library.lines, NODES_A_LINE),
        "nodes a statement": (library.nodes / library.statements, NODES_A_STATEMENT),
        "names of how it came, in 1000 lines": (names, NAMES_IN_A_THOUSAND),
        "class names twice": (len(twice), 0),
        "nodes of the library": (library.nodes, LIBRARY),
        "nodes of the guests": (guests.nodes, GUESTS),
    }
    for name, (count, budget) in totals.items():
        print(f"{name:36} {count:10,.1f} of {budget:9,}{'  over' if count > budget else ''}")
    if twice:
        print(f"  twice: {', '.join(twice)}")
    return int(any(count > budget for count, budget in totals.values()))


if __name__ == "__main__":
    sys.exit(main())
