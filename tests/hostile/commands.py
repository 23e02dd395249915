"""Runs the command line in forked children: modules are loaded once, and each case has a process, a folder and a clock of its own.

    python -m tests.hostile.commands RUN_FOLDER [--nodes 8] [--only TEXT] [--every K]

prints each case that ended in a traceback, hung, ended with a code of its own, or left a file half-written.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.hostile.cases import Case, damaged_documents, odd_names, odd_numbers, odd_settings

__all__ = ["Ended", "load_everything", "run_case", "run_inside"]

CODES = {0, 1, 2, 3}
TRACEBACK, HUNG = 70, 71
HALF = (".part", ".tmp", ".old")  # how core.files names what is not in its place yet


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a case ended: its code and the end of what it said."""

    case: Case
    code: int
    said: str
    left: tuple[str, ...] = ()

    @property
    def wrong(self) -> bool:
        """Whether a user saw something else than a result or a sentence, or keeps half a file."""
        if self.case.sound and self.code not in (0, 1):
            return True
        return self.code not in CODES or "Traceback (most recent call last)" in self.said or bool(self.left)


def load_everything() -> None:
    """What commands import, so that children do not: they load most of it when it is first used."""
    import torch

    import gradus

    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(gradus.__path__, "gradus."):
        if not module.name.endswith(("__main__", "worker_loop")) and ".workers" not in module.name:
            with suppress(ImportError):  # what an optional package is missing for
                importlib.import_module(module.name)


def run_case(case: Case, *, seconds: int = 60) -> Ended:
    """The command in a child process, in a folder of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        case.prepare(folder)
        work = folder / "work"
        work.mkdir(exist_ok=True)
        if (folder / "run").exists():
            (folder / "run").rename(work / "run")
        said = folder / "said"
        child = os.fork()
        if child == 0:
            os._exit(run_inside(case, work, said, seconds))
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        text = said.read_text(encoding="utf-8", errors="replace") if said.exists() else ""
        left = tuple(path.name for path in work.rglob(".*") if path.name.endswith(HALF))
        return Ended(case=case, code=HUNG if code == -signal.SIGALRM else code, said=text[-100_000:], left=left)


def run_inside(case: Case, folder: Path, said: Path, seconds: int) -> int:
    """The command in this process, which is a child: in ``folder``, with what it says in ``said``, and a limit of time. Returns its code."""
    from gradus.commands.app import main

    signal.alarm(seconds)
    out = os.open(said, os.O_CREAT | os.O_WRONLY)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(folder)
    sys.argv = ["gradus", *case.words]
    try:
        main()
    except SystemExit as end:
        code = 0 if end.code is None else end.code if isinstance(end.code, int) else TRACEBACK
    except BaseException:
        traceback.print_exc()
        code = TRACEBACK
    else:
        code = 0
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    return code


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("run", type=Path)
    arguments.add_argument("--nodes", type=int, default=8)
    arguments.add_argument("--only", default="")
    arguments.add_argument("--every", type=int, default=1)
    given = arguments.parse_args()
    load_everything()
    kinds = (odd_names(), odd_numbers(), odd_settings(), damaged_documents(given.run.resolve(), nodes=given.nodes))
    cases = [case for kind in kinds for case in kind if given.only in case.name][:: given.every]
    bad, begun = 0, time.perf_counter()
    for case in cases:
        ended = run_case(case)
        if ended.wrong:
            bad += 1
            print(
                f"== {case.name}: code {ended.code}\n   {case.words!r:.200}\n{ended.said[-900:]} {ended.left}\n",
                flush=True,
            )
    print(f"{len(cases)} cases in {time.perf_counter() - begun:.0f} s, {bad} wrong")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
