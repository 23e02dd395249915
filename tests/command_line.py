"""Calls the `gradus` command in this process and keeps what it printed."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest.mock import patch

from gradus.commands.app import run_command


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A finished command. ``output``: both streams, the results first."""

    code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


class _Output(io.TextIOWrapper):
    def text(self) -> str:
        self.seek(0)
        return self.read()


def call(*words: object, stdin: str = "") -> Ended:
    """Calls ``gradus WORDS``. Errors of the command are raised."""
    out, err = _Output(io.BytesIO(), encoding="utf-8"), _Output(io.BytesIO(), encoding="utf-8")
    with redirect_stdout(out), redirect_stderr(err), patch.object(sys, "stdin", io.StringIO(stdin)):
        code = run_command([str(word) for word in words])
    return Ended(code=code, stdout=out.text(), stderr=err.text())


def gradus(*words: object, expect: int | None = 0) -> Ended:
    """The same; fails unless the command ends with the exit code ``expect``."""
    ended = call(*words)
    assert expect is None or ended.code == expect, ended.output
    return ended
