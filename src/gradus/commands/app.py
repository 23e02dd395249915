"""The `gradus` command and what happens when something goes wrong."""

from __future__ import annotations

import io
import os
import shlex
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from gradus.commands.guests import attach_guests
from gradus.commands.signature import attach
from gradus.core import GradusError
from gradus.core.errors import NEEDS_TRAINING, TRAINING
from gradus.core.printing import OUTPUT_VARIABLE, QUIET, VERBOSE, printable
from gradus.sandbox.processes import collect_rarely
from gradus.version import __version__

CODES = (
    "Exit codes: 0 done, healthy or pass; 1 a verdict of fail, or warnings; 2 the verdict unresolved of an audit, or stop of the doctor; "
    "3 wrong usage, or an error that the message explains; 130 stopped by Ctrl-C."
)
_BAD_INPUT = 3
_INTERRUPTED = 130
_PANELS = {
    "Start here": ("run", "init", "envs"),
    "The five steps": ("audit", "sft", "distill", "grpo", "doctor", "eval", "report", "compare"),
    "Around them": ("show", "check", "export", "chat", "serve", "rewards list", "rewards try"),
}
_ANYWHERE = ("--quiet", "--verbose")


class _Root(TyperGroup):
    """Wrong usage ends with the code of every other bad input. Typer's own is 2, which is a verdict here."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        with _as_bad_input():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        with _as_bad_input():
            return super().invoke(ctx)


@contextmanager
def _as_bad_input() -> Generator[None]:
    try:
        yield
    except TyperException as error:
        error.exit_code = _BAD_INPUT
        raise


app = typer.Typer(
    name="gradus",
    cls=_Root,
    epilog=CODES,
    help="Train language-model agents with GRPO on the machine you have, and prove that they got better.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"gradus {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
    quiet: bool = typer.Option(
        False, "--quiet", help="Show only results, alerts and errors. Goes anywhere in the line."
    ),
    verbose: bool = typer.Option(
        False, "--verbose", help="Show every step and every table, with all figures. Goes anywhere in the line."
    ),
) -> None:
    """Audit the grader, warm-start from a teacher, train, watch, and prove the gain."""
    if quiet or verbose:
        os.environ[OUTPUT_VARIABLE] = QUIET if quiet else VERBOSE


for _panel, _names in _PANELS.items():
    for _name in _names:
        attach(app, _name, _panel)
attach_guests(app, "Around them")


def main() -> None:
    """Entry point of the `gradus` command."""
    collect_rarely()
    # How long OpenMP's threads spin before they sleep, in rounds. libgomp's own 300,000 (milliseconds) starve whatever shares the cores:
    # two processes of two threads each on two cores ran at a tenth of their speed.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    if isinstance(sys.stdout, io.TextIOWrapper):  # a table is worth more than a character that the output does not have
        sys.stdout.reconfigure(errors="replace")
    try:
        app(_ordered(sys.argv[1:]))
    except (GradusError, ModuleNotFoundError, OSError) as error:
        said = _sentence(error)
        typer.secho(
            "error: ", fg="red", bold=True, nl=False, err=True, color=False if os.environ.get("NO_COLOR") else None
        )
        typer.echo(said, err=True)
        sys.exit(_BAD_INPUT)
    except (KeyboardInterrupt, SystemExit) as ended:  # typer makes the code 130 of Ctrl-C, and says nothing
        if isinstance(ended, SystemExit) and ended.code != _INTERRUPTED:
            raise
        typer.echo(_stopped(sys.argv[1:]), err=True)
        sys.exit(_INTERRUPTED)


def _sentence(error: Exception) -> str:
    """Returns what a person is told of an error. Raises it again if a module is missing that the extra does not bring."""
    if isinstance(error, ModuleNotFoundError):
        if (error.name or "").partition(".")[0] not in TRAINING:
            raise error
        return NEEDS_TRAINING
    if isinstance(error, OSError):  # a disk, a file or a right that was not looked at more closely where it was used
        return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
    return printable(str(error))


def _ordered(words: list[str]) -> list[str]:
    """The words before ``--`` with those in front that go anywhere."""
    end = words.index("--") if "--" in words else len(words)
    front = [word for word in words[:end] if word in _ANYWHERE]
    return [*front, *(word for word in words[:end] if word not in _ANYWHERE), *words[end:]]


def _stopped(words: list[str]) -> str:
    """Returns the line that names the way on from a command that Ctrl-C stopped."""
    command = next((word for word in words if not word.startswith("-")), "")
    if command not in ("run", "sft", "distill", "grpo"):
        return "stopped"
    return f"stopped; this goes on where it stopped: gradus {shlex.join(words)}"
