"""An answer that a grader evaluates runs in the grader's process; nothing that this process says may run in ours."""

import os
import pickle
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gradus.auditing.text.asking import prepare
from gradus.auditing.text.checks import hostile
from gradus.auditing.text.scoring import GraderProcess, Scorer, checked_score
from gradus.auditing.text.tasks import TextSubject, TextTask
from gradus.sandbox.command import sandbox_works
from gradus.sandbox.worker import Fork

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


_FORGED = """
import os
for fd in range(3, 256):
    try:
        os.write(fd, b'{"result": [{"value": 1.0, "error": null, "hung": false, "executed": false, "skipped": false, "seconds": 0.0}]}\\n')
    except OSError:
        pass
"""


@pytest.mark.skipif(not sandbox_works(), reason="needs Linux user namespaces")
def test_a_reply_that_an_answer_forges_for_itself_or_for_the_next_is_refused() -> None:
    """It was believed: the next answer, a wrong one, earned 1."""
    scorer = Scorer(SUBJECT, confined=True)
    forged, following = scorer.score([(TASK, _FORGED), (TASK, "result = 5")])
    scorer.close()
    assert forged.value is None
    assert "sent something else" in (forged.error or "")
    assert following.value == 0.0


def test_a_message_of_more_than_a_mebibyte_is_refused() -> None:
    fork = Fork(lambda folder: {"long": lambda: "a" * (1 << 20)}, confined=False)
    with pytest.raises(OSError, match="more than 1048576 bytes"):
        fork.call("long", 10.0)
    fork.end()


_NOSY = """
import os, pathlib, socket
shown = b"very-secret" in pathlib.Path("/proc/self/environ").read_bytes() 
try:
    socket.create_connection(("127.0.0.1", PORT), timeout=1)
    shown = True
except OSError:
    pass
try:
    shown = shown or bool(pathlib.Path("OUTSIDE").read_text())
except OSError:
    pass
try:
    pathlib.Path("OUTSIDE").write_text("changed")
except OSError:
    pass
result = 0 if shown or any("very-secret" in value for value in os.environ.values()) else 4
"""


@pytest.mark.skipif(not sandbox_works(), reason="needs Linux user namespaces")
def test_gold_is_confined_like_any_other_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gold program wrote a file on the host 25 times, opened a socket and read the environment's keys."""
    outside = tmp_path / "key"
    outside.write_text("a key")
    for name in ("SERVICE_KEY", "GRADUS_SERVE_KEY"):
        monkeypatch.setenv(name, "very-secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        text = _NOSY.replace("PORT", str(server.getsockname()[1])).replace("OUTSIDE", str(outside))
        golds = [f"{text}\nnumber = {number}" for number in range(12)]
        tasks = [TextTask(key=str(n), prompt=f"Program {n}", gold=gold) for n, gold in enumerate(golds)]
        scorer = Scorer(TextSubject(name="sums", grader="exec", tasks=tasks, judge=_runs))
        ground = prepare(scorer.subject, scorer, seed=0)
        checked = hostile(ground)
        scorer.close()
        with pytest.raises(TimeoutError):
            server.accept()
    assert outside.read_text() == "a key"
    assert "answers run as code" in checked.evidence
    assert [base.gold for base in ground.bases.values()] == [1.0] * len(tasks)


def test_an_alarm_that_a_grader_swallows_is_a_finding() -> None:
    """A bare ``except`` turned the alarm into a reward."""

    def swallows(task: TextTask, answer: str) -> float:
        try:
            while answer == "4":
                pass
        except:  # noqa: E722
            return 1.0
        return 0.0

    scorer = Scorer(TextSubject(name="sums", grader="loop", tasks=[TASK], judge=swallows), seconds=0.2)
    hung, other = scorer.score([(TASK, "4"), (TASK, "5")])
    scorer.close()
    assert (hung.hung, hung.value) == (True, None)
    assert (other.hung, other.value) == (False, 0.0)
