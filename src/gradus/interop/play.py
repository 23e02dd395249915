"""`gradus audit REWARD ROWS --play`: a page on which authors try to earn their own reward without solving the tasks, beside the audit's finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import fsum, inf
from pathlib import Path
from threading import Lock, Thread

from pydantic import BaseModel, ConfigDict, Field, StrictStr, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from gradus.auditing import AuditResult
from gradus.auditing.records import GradedCompletion
from gradus.auditing.text.scoring import Scorer
from gradus.auditing.text.tasks import TextSubject
from gradus.core.values import JsonDict
from gradus.interop.servers import Guard

_SHOWN = 6  # tasks on the page
_LETTERS = 4_000  # of a completion
_PAGE = Path(__file__).with_name("play.html")
Audit = Callable[[Callable[[GradedCompletion], None]], AuditResult]


class _Attempt(BaseModel):
    """What the page sends."""

    model_config = ConfigDict(extra="forbid")

    completion: StrictStr = Field(max_length=_LETTERS)


@dataclass(kw_only=True)
class ExploitPage:
    """A grader with a few of its tasks, what its author tried, and what the audit has found so far."""

    subject: TextSubject
    finds: list[JsonDict] = field(default_factory=list[JsonDict])
    summary: str | None = None  # of the audit, once it has ended
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        with_answer = [task for task in self.subject.tasks if task.gold]
        self._tasks = with_answer[:_SHOWN]
        self._scorer = Scorer(self.subject, limit=inf)  # authors try as often as they like; a call has its own limit

    def audit(self, audit: Audit) -> None:
        """Run the audit in a thread; the page shows each exploit when it is found."""

        def run() -> None:
            try:
                self.summary = audit(self._keep).summary
            except Exception as error:  # else the page waits for a thread that has ended
                self.summary = f"The audit ended in an error: {type(error).__name__}: {error}"

        Thread(target=run, daemon=True).start()

    def _keep(self, exploit: GradedCompletion) -> None:
        self.finds.append({"completion": exploit.completion, "reward": exploit.reward, "what": exploit.what})

    def state(self) -> JsonDict:
        """The tasks, and how far the audit is."""
        rewards = self.subject.rewards
        return {
            "grader": ", ".join(rewards.functions) if rewards else self.subject.grader,
            "tasks": [{"question": task.prompt, "answer": task.answer} for task in self._tasks],
            "gold": self.scores(None)["mean"],
            "finds": self.finds,
            "summary": self.summary,
        }

    def scores(self, completion: str | None) -> JsonDict:
        """The reward of one completion on each task and whether it is the reference answer; None scores the reference answers."""
        rows = [(task, task.gold_completion if completion is None else completion) for task in self._tasks]
        # Requests come from several threads, and a scorer counts its calls.
        with self._lock:
            scores = self._scorer.score(rows)
        rewards = [score.value for score in scores]
        graded = [reward for reward in rewards if reward is not None]
        return {
            "rewards": rewards,
            "right": [text.strip() in (task.answer.strip(), task.gold_completion.strip()) for task, text in rows],
            "mean": fsum(graded) / len(graded) if graded else None,
            "error": next((score.error for score in scores if score.error), None),
        }


def play_app(exploit: ExploitPage) -> Starlette:
    """An application with the page, the state of the audit, and the scores of what the author writes."""

    async def page(_: Request) -> Response:
        return HTMLResponse(_PAGE.read_text(encoding="utf-8"))

    async def state(_: Request) -> Response:
        return JSONResponse(await run_in_threadpool(exploit.state))

    async def score(request: Request) -> Response:
        try:
            attempt = _Attempt.model_validate_json(await request.body())
        except ValidationError:
            expected = f'expected {{"completion": TEXT}} of at most {_LETTERS:,} characters, and nothing else'
            return JSONResponse({"error": expected}, status_code=400)
        return JSONResponse(await run_in_threadpool(exploit.scores, attempt.completion))

    routes = [Route("/", page), Route("/state", state), Route("/score", score, methods=["POST"])]
    app = Starlette(routes=routes)
    app.add_middleware(Guard)  # pyright: ignore[reportArgumentType]
    return app
