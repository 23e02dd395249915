"""The `gradus` command and what happens when something goes wrong."""

from __future__ import annotations

import inspect
import io
import json
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App, CycloptsError, Group, Parameter
from cyclopts.help import DescriptionRenderer, HelpPanel

from gradus.commands.entries import COMMANDS
from gradus.commands.guests import attach_guests
from gradus.commands.options import LORA
from gradus.commands.output import JSON_FILE, problem
from gradus.core import ConfigError, GradusError
from gradus.core.errors import NEEDS_TRAINING, TRAINING, AuditFailed
from gradus.core.files import check_file_can_be_written
from gradus.core.findings import EXIT_CODES
from gradus.core.printing import OUTPUT_VARIABLE, QUIET, VERBOSE, beginning, printable
from gradus.sandbox.processes import collect_rarely
from gradus.version import __version__

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

CODES = "Exit codes: 0 done, healthy or pass; 1 a verdict against; 2 wrong usage; 3 unresolved, no data, or an error on the way."
ANYWHERE = "Anywhere in the line: --json prints JSON, --json FILE.json writes it; --quiet shows less, --verbose shows every figure."
START = """\
gradus init --example letters              rows and two rewards to try the commands on
gradus audit FILE.py:REWARD rows.jsonl     find out if a reward can be exploited
gradus check rows.jsonl --model MODEL      what would go wrong in a run, memory, time
gradus run rows.jsonl --model MODEL        audit, train, diagnose, evaluate, report
gradus run rhythm                          the same in minutes, without a GPU or a network
gradus show RUN                            episodes of a run, turn by turn
Every command: gradus --help. Your own data, step by step: docs/guide.md"""
_USAGE, _NO_VERDICT, _INTERRUPTED = 2, 3, 130
_LONGEST = 4000  # characters of an error: it may repeat what was typed
_PANELS = {
    "Start here": ("run", "init", "envs"),
    "The five steps": ("audit", "sft", "distill", "grpo", "doctor", "eval", "report", "compare"),
    "Around them": ("show", "check", "export", "chat", "serve", "rewards list", "rewards try"),
}
_HOMES = {"rewards": "Try reward functions without training."}
_OUTPUTS = {"--quiet": QUIET, "--verbose": VERBOSE}


def _unless_off(value: Any) -> str | None:
    """The default of an option in its help; that of a switch which is off says nothing."""
    return None if value is False else str(value)


def _print_panel(console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
    """Prints names and what they mean in two columns without a box; a narrow screen folds names and cuts none."""
    from rich.table import Column, Table

    if not panel.entries:
        return
    if panel.title:
        console.print(f"{panel.title}:", highlight=False)
    table = Table.grid(Column(overflow="fold"), Column(), padding=(0, 2, 0, 0))
    meaning = DescriptionRenderer()
    for entry in panel.entries:
        name = entry.positional_label or " ".join(entry.display_labels_with_metavar)
        table.add_row(f"  {name}", meaning(entry))
    console.print(table, highlight=False)
    console.print()


app = App(
    name="gradus",
    help="Train language-model agents with GRPO on the machine you have, and prove that they got better.",
    help_epilogue=f"{ANYWHERE}\n{CODES}",
    help_format="plaintext",
    help_formatter=_print_panel,
    version=f"gradus {__version__}",
    default_parameter=Parameter(negative=(), show_default=_unless_off),
    group_commands=Group("Options", sort_key=len(_PANELS)),
)


def _attach() -> None:
    groups = {panel: Group(panel, sort_key=place) for place, panel in enumerate(_PANELS)}
    for panel, names in _PANELS.items():
        for order, name in enumerate(names):
            entry = COMMANDS[name]
            home, _, word = name.rpartition(" ")
            if home and home not in app:
                app.command(App(name=home, help=_HOMES[home], group=groups[panel], sort_key=order))
            parent = app[home] if home else app
            group = None if home else groups[panel]
            parent.command(entry.function, name=word, help=entry.help, group=group, sort_key=order)
    attach_guests(app, groups["Around them"])


_attach()
_ENTRIES = {entry.function: name for name, entry in COMMANDS.items()}


def run_command(line: Sequence[str]) -> int:
    """Does what the words of a command line say; returns the exit code. Errors of the command itself are raised."""
    words, output, json_file = _split_anywhere(line)
    if output is not None:
        os.environ[OUTPUT_VARIABLE] = output
    if not words:
        print(START)
        return 0
    try:
        function, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False, verbose=False)
    except CycloptsError as error:
        place = f"gradus {words[0]}" if words[0] in app else "gradus"
        problem(f"{error} {place} --help lists what there is.")
        return _USAGE
    entry = COMMANDS.get(_ENTRIES.get(function, ""))  # None for a guest's command, and for --help and --version
    if entry is not None and json_file is not None:
        if not entry.shown:
            raise ConfigError(f"gradus {words[0]} has no result to print as JSON; leave out --json")
        _check_json_file(json_file)
    token = JSON_FILE.set(json_file)
    try:
        if entry is None:
            result: object = function(*bound.args, **bound.kwargs)
            return result if isinstance(result, int) else 0
        return entry.run(bound, _flags(words, bound))
    finally:
        JSON_FILE.reset(token)


def _flags(words: Sequence[str], bound: inspect.BoundArguments) -> dict[str, str]:
    """Parameter -> its option in the line, for those that were typed."""
    typed = {*bound.arguments, *bound.arguments.get("options", {})}
    _, apps, _ = app.parse_commands(words)
    flags: dict[str, str] = {}
    for argument in apps[-1].assemble_argument_collection():
        name = argument.keys[-1] if argument.keys else argument.field_info.name
        if name in typed and argument.parameter.name:
            flags[name] = argument.name
    return flags


def _split_anywhere(line: Sequence[str]) -> tuple[list[str], str | None, str | None]:
    """The words without those that go anywhere before ``--``, what ``--quiet`` or ``--verbose`` sets, and the file of ``--json``.

    The word after ``--json`` is its file if it ends in .json; ``--json=FILE`` takes any name.
    """
    end = line.index("--") if "--" in line else len(line)
    words: list[str] = []
    output: str | None = None
    json_file: str | None = None
    rest = list(line[:end])
    while rest:
        word = rest.pop(0)
        if word in _OUTPUTS:  # of two the last counts
            output = _OUTPUTS[word]
        elif word == "--json":
            has_file = bool(rest) and (rest[0].endswith(".json") or rest[0] == "-")
            json_file = rest.pop(0) if has_file else "-"
        elif word.startswith("--json="):
            json_file = word.removeprefix("--json=")
        elif word == "--lora" and not (rest and rest[0].isdecimal()):
            # An option has a value or none, and this one is typed either way.
            words += [word, LORA]
        else:
            words.append(word)
    return [*words, *line[end:]], output, json_file


def _check_json_file(name: str) -> None:
    """Refuses a file that cannot be written, and one without a schema: rows behind a bare ``--json`` would be lost."""
    if name == "-":
        return
    path = Path(name)
    if path.is_file() and not _has_schema(path):
        raise ConfigError(f"{name} exists and was not written by --json, so it is not replaced; name another file")
    check_file_can_be_written(path)


def _has_schema(path: Path) -> bool:
    try:
        return "schema" in json.loads(path.read_bytes())
    except (ValueError, TypeError, RecursionError):
        return False


def _warning_line(message: Warning | str, *_: object, **__: object) -> str:
    """Returns a warning as a line for the reader of a terminal, who did not write the code that it comes from."""
    return f"note: {message}\n"


def main() -> None:
    """Entry point of the `gradus` command."""
    collect_rarely()
    # How long OpenMP's threads spin before they sleep, in rounds. libgomp's own 300,000 (milliseconds) starve whatever shares the cores:
    # two processes of two threads each on two cores ran at a tenth of their speed.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    if isinstance(sys.stdout, io.TextIOWrapper):  # a table is worth more than a character that the output does not have
        sys.stdout.reconfigure(errors="replace")
    warnings.formatwarning = _warning_line
    words = sys.argv[1:]
    try:
        sys.exit(run_command(words))
    except (GradusError, ModuleNotFoundError, OSError) as error:
        problem(f"error: {_sentence(error)}")
        sys.exit(_error_code(error))
    except KeyboardInterrupt:
        print(_stopped(words), file=sys.stderr)
        sys.exit(_INTERRUPTED)


def _error_code(error: Exception) -> int:
    if isinstance(error, AuditFailed):
        return EXIT_CODES["fail"]
    return _USAGE if isinstance(error, ConfigError | ModuleNotFoundError) else _NO_VERDICT


def _sentence(error: Exception) -> str:
    """Returns what a person is told of an error. Raises it again if a module is missing that the extra does not bring."""
    if isinstance(error, ModuleNotFoundError):
        if (error.name or "").partition(".")[0] not in TRAINING:
            raise error
        return NEEDS_TRAINING
    if isinstance(error, OSError):  # a disk, a file or a right that was not looked at more closely where it was used
        reason = str(error.strerror or error)
        return f"{reason}: {error.filename}" if error.filename else reason
    return beginning(printable(str(error)), _LONGEST)


def _stopped(words: Sequence[str]) -> str:
    """Returns the line that names the way on from a command that Ctrl-C stopped."""
    name = next((word for word in words if not word.startswith("-")), "")
    if name not in ("run", "sft", "distill", "grpo"):
        return "stopped"
    return f"stopped; this goes on where it stopped: gradus {shlex.join(words)}"
