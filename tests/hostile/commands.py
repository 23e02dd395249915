"""Runs the command line in forked children: modules are loaded once, and each case has a process, a folder and a clock of its own.

    python -m tests.hostile.commands RUN_FOLDER [--nodes 8] [--only TEXT] [--every K]

prints each case that ended in a traceback, hung, or ended with a code of its own.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.hostile.cases import Case, damaged_documents, odd_names, odd_numbers, odd_settings

__all__ = ["Ended", "load_everything", "run_case"]

CODES = {0, 1, 2, 3}
TRACEBACK, HUNG = 70, 71


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a case ended: its code and the end of what it said."""

    case: Case
    code: int
    said: str

    @property
    def wrong(self) -> bool:
        """Whether a user saw something else than a result or a sentence."""
        return self.code not in CODES or "Traceback (most recent call last)" in self.said


def load_everything() -> None:
    """What commands import, so that children do not."""
    import matplotlib.pyplot  # noqa: F401
    import torch
    import transformers  # noqa: F401

    from gradus.cli import main  # noqa: F401

    torch.set_num_threads(1)


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
            os._exit(_inside(case, work, said, seconds))
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        text = said.read_text(encoding="utf-8", errors="replace") if said.exists() else ""
        return Ended(case=case, code=HUNG if code == -signal.SIGALRM else code, said=text[-1500:])


def _inside(case: Case, folder: Path, said: Path, seconds: int) -> int:
    from gradus.cli import main

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
    codes: Counter[int] = Counter()
    bad, begun = 0, time.perf_counter()
    for case in cases:
        ended = run_case(case)
        codes[ended.code] += 1
        if ended.wrong:
            bad += 1
            print(f"== {case.name}: code {ended.code}\n   {case.words!r:.200}\n{ended.said[-900:]}\n", flush=True)
    print(f"{len(cases)} cases in {time.perf_counter() - begun:.0f} s, {bad} wrong; codes {dict(codes)}")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
