"""Several processes on this machine's CPU as one trainer, which starts them itself: what ``accelerate launch`` does, without a launcher.

The matrices of a small model leave a second thread little to do, and Python runs in one. A second process takes half of the
sequences, Python included. The processes talk by gloo, over the loopback device and a folder that is this user's own.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from gradus.core import GradusError
from gradus.sandbox.processes import start_child
from gradus.training.distributed.processes import SLOWEST, World, entered

_LOOK, _LAST = 0.01, 10.0  # seconds between two looks; that a process may take to end
_LEFT = 2.0  # seconds until a process without a parent has ended


@contextmanager
def together(size: int, target: str, told: Any) -> Iterator[None]:
    """Inside, this process is the first of ``size`` that train as one; they share its CPU threads.

    The others call ``target`` (``module:function``), which enters :func:`beside` with its argument; that gives it ``told`` (JSON). They
    end with this process. Raises GradusError with the last line of another that ended before its work was done.
    """
    if size == 1:
        yield
        return
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory(prefix="gradus-processes-") as name:
        meeting = _Meeting(Path(name), 0, size, threads)
        try:
            for rank in range(1, size):
                given = {"folder": name, "rank": rank, "size": size, "threads": threads, "told": told}
                meeting.others[rank] = start_child(target, given, log=meeting.log(rank), scratch=meeting.folder)
            with _at(meeting):
                yield
        except RuntimeError as error:
            if "gloo" in str(error):  # a process is gone
                meeting.wait_for_end()
            lost = meeting.lost()
            if lost is None:
                raise
            raise lost from error
        finally:
            for process in meeting.others.values():
                process.kill()
                process.wait()
            torch.set_num_threads(threads)


@contextmanager
def beside(given: Mapping[str, Any]) -> Iterator[Any]:
    """Enter the group in a process that :func:`together` started, with what it was given; yields what it was told."""
    torch.set_num_threads(max(1, given["threads"] // given["size"]))
    try:
        with _at(_Meeting(Path(given["folder"]), given["rank"], given["size"], given["threads"])):
            yield given["told"]
    except RuntimeError as error:
        if "gloo" not in str(error):
            raise
        time.sleep(_LEFT)  # another process is gone: if it is the parent, this one ends meanwhile
        raise


class _Meeting:
    """The place where the processes meet, a folder; and for the first of them, the others."""

    def __init__(self, folder: Path, rank: int, size: int, threads: int) -> None:
        self.folder, self.place = folder, World(rank=rank, size=size, shared_threads=threads)
        self.others: dict[int, subprocess.Popen[str]] = {}
        self.joined = False

    def log(self, rank: int) -> Path:
        """Returns the lines that a process printed."""
        return self.folder / f"log-{rank}"

    def join(self) -> None:
        """Wait until all are here, then be one group."""
        if self.joined:
            return
        (self.folder / f"here-{self.place.rank}").touch()
        while not all((self.folder / f"here-{rank}").exists() for rank in range(self.place.size)):
            if (lost := self.lost()) is not None:
                raise lost
            time.sleep(_LOOK)
        where = (self.folder / "store").absolute().as_uri()
        with _over_loopback():
            torch.distributed.init_process_group(
                "gloo", init_method=where, rank=self.place.rank, world_size=self.place.size, timeout=SLOWEST
            )
        self.joined = True

    def leave(self) -> None:
        """Be alone again."""
        if self.joined:
            torch.distributed.destroy_process_group()

    def wait_for_end(self) -> None:
        """Wait until another process is gone, but not for long: perhaps none is."""
        deadline = time.monotonic() + _LAST
        while self.lost() is None and time.monotonic() < deadline:
            time.sleep(_LOOK)

    def lost(self) -> GradusError | None:
        """Returns the error to raise if another process is gone."""
        for rank, process in self.others.items():
            if process.poll() is not None:
                said = self.log(rank).read_text(encoding="utf-8", errors="replace").split("\n")
                last = next((line.strip() for line in reversed(said) if line.strip()), "it said nothing")
                return GradusError(
                    f"process {rank + 1} of {self.place.size} that train together ended with code {process.returncode} ({last}); "
                    "go on from the last checkpoint (gradus run does, gradus sft and grpo with --resume), or with processes = 1"
                )
        return None


@contextmanager
def _at(meeting: _Meeting) -> Iterator[None]:
    with entered(meeting):
        try:
            yield
        finally:
            meeting.leave()


@contextmanager
def _over_loopback() -> Iterator[None]:
    """Let gloo listen where no other machine can reach it: what it is sent is unpickled."""
    name = "GLOO_SOCKET_IFNAME"
    before = os.environ.get(name)
    own = next((device for _, device in socket.if_nameindex() if device.startswith("lo")), None)
    if own is not None:
        os.environ[name] = own
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before
