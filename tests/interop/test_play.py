"""The page of `gradus audit --play`: an author's own tries beside the finds of the audit."""

import time
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.testclient import TestClient

from gradus.auditing import AuditSettings, audit_any
from gradus.auditing.text.tasks import subject_of
from gradus.commands.environments import load_environment
from gradus.interop.play import ExploitPage, play_app

ROWS = [{"question": f"{a} + {b} =", "answer": str(a + b)} for a in range(2, 8) for b in range(2, 6)]


def any_number(completions: Sequence[str], answer: Sequence[str], **columns: Any) -> list[float]:
    """1 if the reference answer is among the words of the completion."""
    return [float(gold in text.split()) for text, gold in zip(completions, answer, strict=True)]


@pytest.fixture(scope="module")
def client() -> TestClient:
    spec = load_environment(ROWS, rewards=[any_number])
    subject = subject_of(spec, spec.grader(None), tasks=12)
    assert subject is not None
    game = ExploitPage(subject=subject)
    game.audit(lambda found: audit_any(spec, spec.grader(None), AuditSettings(episodes=12, found=found)))
    return TestClient(play_app(game), base_url="http://127.0.0.1")


def test_a_completion_is_scored_on_the_tasks_of_the_page(client: TestClient):
    state = client.get("/state").json()
    assert (state["grader"], state["gold"], len(state["tasks"])) == ("any_number", 1.0, 6)
    everything = client.post("/score", json={"completion": " ".join(map(str, range(20)))}).json()
    assert everything["mean"] == 1.0
    assert not any(everything["right"])
    right = client.post("/score", json={"completion": state["tasks"][0]["answer"]}).json()
    assert (right["rewards"][0], right["right"][0]) == (1.0, True)


def test_the_audits_finds_come_while_it_runs_and_the_verdict_when_it_ends(client: TestClient):
    state: dict[str, Any] = {"summary": None}
    while state["summary"] is None:
        time.sleep(0.2)
        state = client.get("/state").json()
    assert "can be exploited" in state["summary"]
    assert state["finds"][0]["reward"] == 1.0


@pytest.mark.parametrize(
    ("body", "status"),
    [('{"completion": 1}', 400), ('{"text": "a"}', 400), ("no json", 400), (f'{{"completion": "{"a" * 5000}"}}', 400)],
)
def test_what_is_no_completion_is_refused_in_a_sentence(client: TestClient, body: str, status: int):
    reply = client.post("/score", content=body)
    assert reply.status_code == status
    assert "completion" in reply.json()["error"]


def test_the_page_is_served_to_this_machine_alone(client: TestClient):
    assert "textarea" in client.get("/").text
    assert TestClient(client.app, base_url="http://elsewhere.example").get("/").status_code == 403


def test_an_audit_that_raises_is_said_on_the_page():
    spec = load_environment(ROWS, rewards=[any_number])
    subject = subject_of(spec, spec.grader(None), tasks=6)
    assert subject is not None
    page = ExploitPage(subject=subject)
    page.audit(lambda _: audit_any(spec, spec.grader("none")))
    while page.state()["summary"] is None:
        time.sleep(0.05)
    assert "ended in an error" in page.state()["summary"]
