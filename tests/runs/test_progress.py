"""Long work is told of without a terminal too: a line now and then."""

import re
from types import SimpleNamespace

import pytest

from gradus.runs import progress


def test_without_a_terminal_a_line_is_said_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    with progress.progress_bar("evaluate", 0, "episodes") as advance:
        for done in range(1, 9):
            advance(done, 100, "held-out · sft", note="2 failed")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "held-out · sft · 2 failed 3/100 episodes, 0.1 a second, left 16:10"
    assert len(lines) == 2
    assert re.match(r"held-out · sft · 2 failed 6/100 episodes", lines[1])
