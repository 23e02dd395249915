"""An answer that a grader evaluates runs in the grader's process; nothing that this process says may run in ours."""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gradus.auditing.text.scoring import GraderProcess, checked_score
from gradus.auditing.text.tasks import TextSubject, TextTask
from gradus.sandbox.command import sandbox_works

TASK = TextTask(key="one", prompt="2 + 2?", gold="4")
_REFUSED = r"not JSON|else than|of a wrong type"
SCORE = {"value": 1.0, "error": None, "hung": False, "executed": False, "skipped": False, "seconds": 0.1}


def _runs(task: TextTask, answer: str) -> float:
    """A careless grader, which runs the answer as a program."""
    space: dict[str, object] = {}
    exec(answer, space)
    return float(space.get("result") == 4)


SUBJECT = TextSubject(name="sums", grader="exec", tasks=[TASK], judge=_runs)


class _Payload:
    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (self._command,)


@contextmanager
def _attacked(data: bytes, *, confined: bool) -> Iterator[tuple[GraderProcess, str]]:
    """A process, and an answer that writes ``data`` to every pipe by which this process could reply."""
    before = sorted(map(int, os.listdir("/proc/self/fd")))  # pytest's own
    answer = f"""
import os
for fd in range(3, 256):
    if fd not in {before}:
        try:
            os.write(fd, {data!r})
        except OSError:
            pass
"""
    process = GraderProcess(SUBJECT, 2.0, confined)
    try:
        yield process, answer
    finally:
        process.end()


@pytest.mark.parametrize("confined", [False, True] if sandbox_works() else [False])
def test_a_pickle_that_an_answer_sends_to_the_parent_is_not_opened(tmp_path: Path, confined: bool) -> None:
    outside = tmp_path / "outside"
    payload = pickle.dumps(_Payload(f"touch {outside}"))
    message = struct.pack("I", len(payload)) + payload + b"\n"
    with _attacked(message, confined=confined) as (process, answer), pytest.raises(OSError, match=_REFUSED):
        process.ask([("one", answer)])
    assert not outside.exists()


@pytest.mark.parametrize("message", [b'{"result": {"value": 1}}', b'{"error": 1}', b'"4"', b"[" * 5_000])
def test_an_answer_that_forges_a_reply_can_send_numbers_and_nothing_else(message: bytes) -> None:
    with _attacked(message + b"\n", confined=False) as (process, answer), pytest.raises(OSError, match=_REFUSED):
        process.ask([("one", answer)])


@pytest.mark.parametrize(
    "change",
    [
        *({"value": "1"}, {"value": True}, {"value": float("nan")}, {"error": ["x"]}, {"hung": 1}),
        *({"executed": None}, {"seconds": -1.0}, {"seconds": None}, {"more": 1}),
    ],
)
def test_a_score_with_a_field_of_another_type_is_refused(change: dict[str, object]) -> None:
    assert checked_score(SCORE).value == 1.0
    with pytest.raises(OSError, match="sent"):
        checked_score({**SCORE, **change})
