"""Results of rows and reward functions of a session are pickled, and tell the same where these are not known."""

import copy
import pickle
import threading
from pathlib import Path

import pytest

import gradus
from gradus.core import ConfigError

ROWS = [{"question": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(40)]


class Locked:
    """A reward function that cannot be pickled at all."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, completions: list[str], answer: list[str], **_: object) -> list[float]:
        with self.lock:
            return [float(text.strip() == right) for text, right in zip(completions, answer, strict=True)]


def test_scores_tell_the_same_after_pickling(tmp_path: Path) -> None:
    rewards = [Locked(), lambda completions, **_: [float(len(text) < 9) for text in completions]]
    before = gradus.evaluate(["gold", "random"], env=ROWS, rewards=rewards, episodes=2)
    after = pickle.loads(pickle.dumps(before))
    assert (after.to_json(), repr(after)) == (before.to_json(), repr(before))
    told = [each.report(tmp_path / f"{i}.html").read_text() for i, each in enumerate((before, after))]
    saved = [each.save(tmp_path / f"{i}.jsonl").read_bytes() for i, each in enumerate((before, after))]
    assert told[0] == told[1]
    assert saved[0] == saved[1]
    with pytest.raises(ConfigError, match=r"train_task was not pickled with this result.*make the environment again"):
        after.spec.train_task(0)


def test_an_audit_tells_the_same_after_pickling(tmp_path: Path) -> None:
    before = gradus.audit(ROWS, rewards=[Locked()], seconds=2)
    after = pickle.loads(pickle.dumps(before))
    assert (after.verdict, after.to_json()) == (before.verdict, before.to_json())
    files = [{path.name: path.read_bytes() for path in each.save(tmp_path / each.verdict)} for each in (before, after)]
    assert files[0] == files[1]


def test_a_copy_keeps_its_environment() -> None:
    scores = gradus.evaluate("gold", env=ROWS, episodes=2)
    assert copy.copy(scores).spec is copy.deepcopy(scores).spec is scores.spec
