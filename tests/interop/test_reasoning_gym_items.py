"""Which items of reasoning-gym are tasks, with a data set of our own in its place."""

from collections import Counter

import pytest

from gradus.environments.verifiable.items import TRAIN_SEEDS
from gradus.interop.suites import reasoning_gym


class Made:
    """A worker whose every third item has this answer."""

    def __init__(self, third: str | None) -> None:
        self.third = third

    def start(self) -> None: ...

    def call(self, method: str, **params):
        if method == "names":
            return {"set": "a set"}
        number = params["number"]
        answer = self.third if number % 3 == 0 else str(number)
        return {"question": f"question {number}", "answer": answer, "seconds": 0.0}


@pytest.mark.parametrize(("third", "asked"), [("", 0), (" ", 0), (None, 1)])
def test_an_item_whose_right_answer_is_empty_is_no_task(
    third: str | None, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could never be paid, and one of them took gold answers and the teacher from the whole set. Without a right answer an item is a task."""
    monkeypatch.setattr(reasoning_gym, "_worker", lambda: Made(third))
    spec = reasoning_gym.load("set")
    source = reasoning_gym.ReasoningGymTasks("set", {}, "reasoning-gym:set")
    items = [source.item("train", TRAIN_SEEDS + index) for index in range(60)]
    assert (Counter(not item.answer for item in items)[True] > 0) is bool(asked)
    assert (spec.audit.gold is None) is bool(asked)
