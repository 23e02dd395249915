"""One-turn tasks with gold answers, and the grader that judges answers to them: all that the probes of text graders need."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradus.core import (
    Action,
    EnvironmentSpec,
    Episode,
    EpisodeStart,
    Grader,
    Observation,
    Request,
    Reward,
    StopReason,
    Task,
    Turn,
)
from gradus.core.waiting import blocking
from gradus.rewards import Rewards
from gradus.rewards.grading import completion_of, rewards_of
from gradus.rewards.tryout import try_line


@dataclass(frozen=True, kw_only=True)
class TextTask:
    """A question and an answer known to be right (None if nobody knows one).

    ``before`` and ``after``: what stands around an answer if the task asks for a form, as ``<answer>`` and ``</answer>``.
    """

    key: str
    prompt: str
    gold: str | None
    before: str = ""
    after: str = ""

    def whole(self, answer: str) -> str:
        """The answer in the form that the task asks for; silence has none."""
        return f"{self.before}{answer}{self.after}" if answer else ""


TASKS = 48  # of an audit, if nothing is said
CALLS_SECONDS = 20.0  # what all calls of a grader may take together, if nothing is said; an audit then stays below 30
PROGRAM_SECONDS = 180.0  # the same if answers are programs: each is a process of its own
_STEPS = 1000  # of the training that a grader is told of
Judge = Callable[[TextTask, str], "float | None"]


@dataclass(frozen=True, kw_only=True)
class TextSubject:
    """A grader under audit. ``judge`` takes a task and an answer and returns the reward, or None.

    ``remote``: it asks a server, so that its calls may take a minute and are not made in the sandbox. ``judge_all``: the rewards of answers to
    many tasks in one call, None if it can only be asked one by one. ``logged`` gives what it logged of them (``log_metric``). ``functions``: those that decide the reward, whose source is read.
    ``judge_at``: the reward after a share of a training, None if the grader is not told. ``command``: the command line that scores one completion again, None if there is none.
    """

    name: str
    grader: str
    tasks: Sequence[TextTask]
    judge: Judge
    range: tuple[float, float] | None = None
    judge_at: Callable[[float, TextTask, str], float | None] | None = None
    remote: bool = False
    judge_all: Callable[[Sequence[tuple[TextTask, str]]], Sequence[Reward]] | None = None
    logged: Callable[[], Mapping[str, Sequence[float]]] | None = None
    functions: Sequence[Callable[..., Any]] = ()
    command: Callable[[TextTask, str], str] | None = None


def subject_of(spec: EnvironmentSpec, grader: Grader, *, tasks: int) -> TextSubject | None:
    """The text subject of an environment of one turn whose gold policy (or outcome) says right answers; None for any other."""
    if spec.max_turns != 1:
        return None
    made = spec.make()
    environment = blocking(made)
    rows = _questions(spec, environment, tasks=tasks)
    if not any(row.gold for _, row in rows):
        environment.close()
        return None
    place = {text.key: task for task, text in rows}
    rewards = rewards_of(grader)
    # Reward functions over rows see question, completion and columns, never the environment's own judge.
    reads_rows = spec.data_set is not None and isinstance(getattr(grader.compute, "rewards", None), Rewards)

    def answered(task: TextTask, answer: str) -> Episode:
        return _answered(environment, place[task.key], answer, judged=not reads_rows)

    def judge(task: TextTask, answer: str) -> float | None:
        reward = grader.rewards([answered(task, answer)])[0]
        if reward.error:
            raise RuntimeError(reward.error)
        return reward.value

    def judge_all(rows: Sequence[tuple[TextTask, str]]) -> Sequence[Reward]:
        return grader.rewards([answered(task, answer) for task, answer in rows])

    def judge_at(share: float, task: TextTask, answer: str) -> float | None:
        assert rewards is not None
        rewards.trainer_state.max_steps = _STEPS
        rewards.trainer_state.global_step = int(share * _STEPS)
        return judge(task, answer)

    def command(task: TextTask, answer: str) -> str:
        assert rewards is not None
        return try_line(rewards, completion_of(answered(task, answer)))

    return TextSubject(
        name=spec.name,
        grader=grader.name,
        tasks=[row for _, row in rows],
        judge=judge,
        range=grader.range,
        remote=grader.remote,
        judge_at=judge_at if rewards and not grader.remote else None,
        judge_all=judge_all if grader.remote or reads_rows else None,
        logged=(lambda: rewards.metrics) if grader.remote and rewards else None,
        functions=list(rewards.functions.values()) if rewards else [type(made).step, grader.compute],
        command=command if rewards and reads_rows else None,
    )


def _questions(spec: EnvironmentSpec, environment: Any, *, tasks: int) -> list[tuple[Task, TextTask]]:
    """Up to ``tasks`` different questions."""
    wanted = [spec.train_task(i) for i in range(tasks)]  # those that the environment itself has made already
    wanted += [task for name in spec.conditions for task in spec.tasks(name)[:tasks]]  # if rows are few
    rows: list[tuple[Task, TextTask]] = []
    seen: set[str] = set()
    for number, task in enumerate(wanted):
        if len(rows) == tasks:
            break
        observation = environment.reset(seed=task.seed, **task.options)
        if observation.text in seen:
            continue
        seen.add(observation.text)
        gold, before, after = _gold(spec, environment, task, observation)
        key = f"{task.condition}-{task.seed}-{number}"
        rows.append((task, TextTask(key=key, prompt=observation.text, gold=gold, before=before, after=after)))
    return rows


def _gold(spec: EnvironmentSpec, environment: Any, task: Task, observation: Observation) -> tuple[str | None, str, str]:
    """The gold answer, and what stands around it in the gold policy's own text."""
    bare = environment.outcome().get("answer")
    bare = None if bare is None else str(bare)
    if spec.audit.gold is None:
        return bare, "", ""
    start = EpisodeStart(
        task=task,
        system_prompt=environment.system_prompt,
        key=(0, "audit", task.seed),
        group=0,
        member=0,
        environment=environment,
    )
    session = spec.policy(spec.audit.gold).start([start])
    action: Action = session.act([Request(row=0, observation=observation)])[0]
    session.close()
    if bare and bare in action.text:
        before, after = _around(bare, action.text)
        return bare, before, after
    return action.text or bare, "", ""


def _around(gold: str, text: str) -> tuple[str, str]:
    """The text before and behind the gold answer, where it last stands as a word of its own (not the ``a`` of a closing tag)."""
    words = list(re.finditer(rf"(?<![\w</]){re.escape(gold)}(?!\w)", text))
    place = words[-1].start() if words else text.rindex(gold)
    return text[:place], text[place + len(gold) :]


def _answered(environment: Any, task: Task, answer: str, *, judged: bool) -> Episode:
    """The episode of one answer. Without a step unless ``judged``: the time that the environment's own judge takes is not the grader's."""
    first = environment.reset(seed=task.seed, **task.options)
    final = environment.step(answer) if judged else None
    told: dict[str, Any] = {}
    if final is not None:
        told = {"env_reward": final.reward, "valid": final.action_valid, "error": final.action_error}
        told |= {"spans": final.action_spans, "action_data": final.action_data}
    return Episode(
        task=task,
        policy="audit",
        turns=(Turn(index=0, observation=first.text, action=answer, data=first.data, **told),),
        stop=StopReason.TERMINATED,
        system_prompt=environment.system_prompt,
        outcome=environment.outcome(),
        final=final,
    )
