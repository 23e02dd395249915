"""Code as an action: a tool that runs Python in the sandbox."""

from __future__ import annotations

from gradus.core import EnvironmentFault
from gradus.environments.tools.schemas import Tool, as_tool
from gradus.sandbox.command import run_python

_SHOWN = 4000  # characters of output that a model reads


def python_tool(*, seconds: float = 5.0, unsafe: bool = False) -> Tool:
    """A tool ``python`` that runs code and returns what it prints; each call starts afresh.

    Without a sandbox the episode fails, unless ``unsafe``: the code can then do what this user can.
    """

    def python(code: str) -> str:
        """Run Python code and return what it prints. Nothing is kept from one call to the next.

        Args:
            code: The code.
        """
        try:
            result = run_python(code, seconds=seconds, unsafe=unsafe)
        except OSError as error:
            raise EnvironmentFault(str(error)) from error
        told = "" if result.code == 0 else f"[ended by the limit on {result.limit}]" if result.limit else result.stderr
        said = f"{result.stdout}{told}".strip() or "[nothing was printed]"
        return said if len(said) <= _SHOWN else f"{said[: _SHOWN // 2]}\n[...]\n{said[-_SHOWN // 2 :]}"

    return as_tool(python)
