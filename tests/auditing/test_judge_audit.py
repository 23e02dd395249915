"""`gradus audit` of a judge, by the bare command, against a real HTTP server that speaks the OpenAI protocol."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_server import completion, serving
from command_line import call

DOLLARS = 3e-4  # a request: 300 prompt tokens at a dollar per million


class Judge:
    """Gives 1 to the right answer, and says nothing to zeros if it is silent."""

    def __init__(self) -> None:
        self.asked, self.silent, self.lock = 0, False, threading.Lock()

    def __call__(self, body: dict[str, Any]) -> tuple[int, str]:
        rest = body["messages"][1]["content"].partition("\n\nThe right answer: ")[2]
        gold, _, marked = rest.partition("\n\n")
        answer = marked.split("\n", 1)[1].rsplit("\n", 1)[0]
        said = json.dumps({"reason": "", "score": float(answer.strip().strip("*`.") == gold)})
        with self.lock:
            self.asked += 1
        return 200, completion("I would rather not say." if self.silent and "0" in answer else said, tokens=(300, 0))


@pytest.fixture
def server() -> Iterator[Any]:
    judge: Any = Judge()
    with serving(judge) as server:
        judge.url = server.url
        yield judge


def audit(server: Any, folder: Path, *, seconds: int = 600, **settings: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `gradus audit rows.jsonl --recipe judge.toml --json -` prints, and its checks by name."""
    rows = [{"question": f"What is {n} + {n + 7}?", "answer": str(2 * n + 7)} for n in range(60)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {
        "model": "m", "rubric": "1 if the answer is right, else 0.", "price": [1.0, 1.0], "max_tokens": 1,
        "base_url": server.url, **settings,
    }  # fmt: skip
    lines = [f"{key} = {json.dumps(value)}" for key, value in given.items()]
    (folder / "judge.toml").write_text('[[rewards]]\nfunction = "judge"\n\n[rewards.settings]\n' + "\n".join(lines))
    words = ["audit", str(folder / "rows.jsonl"), "--recipe", str(folder / "judge.toml"), "--json", "-"]
    result = call(*words, "--seconds", seconds)
    assert result.code in (0, 1, 3), result.output
    document = json.loads(result.stdout)
    return document, {check["name"]: check for check in document["checks"]}


def test_a_steady_judge_agrees_with_itself_and_the_audit_says_what_it_cost(server: Any, tmp_path: Path) -> None:
    _, checks = audit(server, tmp_path, recheck=1.0, seconds=5)
    judge = checks["judge"]
    assert judge["status"] == "pass"
    assert judge["measured"]["disagreement"]["mean"] == 0.0
    assert judge["measured"]["disagreement"]["n"] >= 8
    assert "sandbox" in checks["hostile answers"]["evidence"]
    assert judge["measured"]["missing"]["count"] == 0
    assert judge["measured"]["dollars"] == pytest.approx(server.asked * DOLLARS)


def test_missing_scores_are_named(server: Any, tmp_path: Path) -> None:
    server.silent = True
    # Time enough on a busy machine: of few answers it is not known how many scores are missing.
    document, checks = audit(server, tmp_path, recheck=1.0, seconds=12, rubric="Right answers.", range=[0.0, 1.0])
    assert (document["verdict"], checks["judge"]["status"]) == ("fail", "fail"), checks["judge"]
    assert all(error["reward"] is None for error in checks["judge"]["measured"]["errors"])
    assert "I would rather not say" in checks["judge"]["evidence"]


def test_the_budget_holds_over_the_whole_audit_and_leaves_checks_open(server: Any, tmp_path: Path) -> None:
    document, checks = audit(server, tmp_path, recheck=0.0, budget=60 * DOLLARS)
    assert 0 < server.asked <= 60
    assert document["verdict"] != "pass"
    assert checks["judge"]["measured"]["dollars"] <= 60 * DOLLARS + 1e-9
    assert checks["judge"]["measured"]["missing"]["count"] == 0  # not asked is no missing score
    assert any("budget is used up" in check["evidence"] for check in checks.values())


def test_a_check_asks_no_judge(server: Any, tmp_path: Path) -> None:
    """It made 125 paid requests."""
    audit(server, tmp_path, seconds=1)
    before = server.asked
    words = ["check", str(tmp_path / "rows.jsonl"), "--recipe", str(tmp_path / "judge.toml"), "--json", "-"]
    said = json.loads(call(*words).stdout)
    assert said["checks"]
    assert server.asked == before
