"""One-turn tasks with gold answers, and the grader that judges answers to them: all that the probes of text graders need."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import CodeType
from typing import Any

from gradus.core import (
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
from gradus.core.frozen_record import frozen_record
from gradus.core.values import as_mapping
from gradus.core.waiting import blocking
from gradus.rewards import Rewards
from gradus.rewards.grading import completion_of, rewards_of
from gradus.rewards.tryout import try_line

TASKS = 48  # of an audit, if nothing is said
CALLS_SECONDS = 20.0  # what all calls of a grader may take together, if nothing is said; an audit then stays below 30
PROGRAM_SECONDS = 180.0  # the same if answers are programs: each is a process of its own
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class NoReward(RuntimeError):
    """The grader gave an answer no reward; the message is the reward's own error, which names what was raised and where."""


@frozen_record
class TextTask:
    """A question and an answer known to be right (None if nobody knows one).

    ``before`` and ``after``: what stands around an answer if the task asks for a form, as ``<answer>`` and ``</answer>``.
    ``ordered``: whether the order of the answer's elements matters, as the row says; None if it does not say.
    """

    key: str
    prompt: str
    gold: str | None
    before: str = ""
    after: str = ""
    ordered: bool | None = None

    @property
    def answer(self) -> str:
        """The gold answer, empty if nobody knows one."""
        return self.gold or ""

    def completion(self, answer: str) -> str:
        """The answer in the form that the task asks for; silence has none."""
        if answer:
            return f"{self.before}{answer}{self.after}"
        return ""

    @property
    def gold_completion(self) -> str:
        """The gold answer in this form."""
        return self.completion(self.answer)


Judge = Callable[[TextTask, str], "float | None"]
Answer = tuple[TextTask, str]
Answers = Sequence[Answer]
Functions = Sequence[Callable[..., Any]]


def codes_of(functions: Functions) -> list[CodeType]:
    """The code of each function that is written in Python; what is built in has none."""
    codes = (getattr(inspect.unwrap(function), "__code__", None) for function in functions)
    return [code for code in codes if code is not None]


@frozen_record
class TextSubject:
    """A grader under audit. ``judge`` takes a task and an answer and returns the reward, or None."""

    name: str
    grader: str
    tasks: Sequence[TextTask]
    judge: Judge
    range: tuple[float, float] | None = None
    remote: bool = False  # it asks a server: its calls may take a minute, and are not made in the sandbox
    # The rewards of answers to many tasks in one call, None if it can only be asked one by one.
    judge_all: Callable[[Answers], Sequence[Reward]] | None = None
    # The reward functions that it is made of, which log figures and hear of the training's step.
    rewards: Rewards | None = None
    functions: Functions = ()  # those that decide the reward, whose source is read
    # The command line that scores one completion again, None if there is none.
    command: Callable[[TextTask, str], str] | None = None


def subject_of(spec: EnvironmentSpec, grader: Grader, *, tasks: int) -> TextSubject | None:
    """The text subject of an environment of one turn whose gold policy (or outcome) says right answers, or of a function of rows; None for any other."""
    if spec.max_turns != 1:
        return None
    maker = spec.make()
    environment = blocking(maker)
    rows = _questions(spec, environment, tasks=tasks)
    rewards = rewards_of(grader)
    # Reward functions over rows see question, completion and columns, never the environment's own judge.
    reads_rows = spec.data_set is not None and rewards is not None
    # Where nobody knows a right answer, policies play, but for functions of rows, whose columns may say what is right.
    if not any(text.gold for text in rows) and (grader.remote or not reads_rows):
        environment.close()
        return None
    tasks_by_key = {text.key: task for text, task in rows.items()}

    def episode(text: TextTask, answer: str) -> Episode:
        return _answered(environment, tasks_by_key[text.key], answer, judged=not reads_rows)

    def judge_all(answers: Answers) -> Sequence[Reward]:
        return grader.rewards([episode(*answer) for answer in answers])

    def judge(text: TextTask, answer: str) -> float | None:
        (reward,) = judge_all([(text, answer)])
        if reward.error:
            raise NoReward(reward.error)
        return reward.value

    def command(text: TextTask, answer: str) -> str:
        assert rewards is not None
        return try_line(rewards, completion_of(episode(text, answer)))

    return TextSubject(
        name=spec.name,
        grader=grader.name,
        tasks=list(rows),
        judge=judge,
        range=grader.range,
        remote=grader.remote,
        judge_all=judge_all if grader.remote or reads_rows else None,
        rewards=rewards,
        functions=list(rewards.functions.values()) if rewards else [type(maker).step, grader.compute],
        command=command if reads_rows else None,
    )


def _answered(environment: Any, task: Task, answer: str, *, judged: bool) -> Episode:
    """The episode of one answer. Without a step unless ``judged``: the time that the environment's own judge takes is not the grader's."""
    # Anew for each answer: a step ends the episode, and an outcome belongs to its task.
    first = environment.reset(seed=task.seed, **task.options)
    final: Observation = environment.step(answer) if judged else Observation(text="")
    turn = Turn(
        index=0,
        observation=first.text,
        action=answer,
        data=first.data,
        env_reward=final.reward,
        valid=final.action_valid,
        error=final.action_error,
        spans=final.action_spans,
        action_data=final.action_data,
    )
    return Episode(
        task=task,
        policy="audit",
        turns=(turn,),
        stop=StopReason.TERMINATED,
        system_prompt=environment.system_prompt,
        outcome=environment.outcome(),
        final=final,
    )


def _questions(spec: EnvironmentSpec, environment: Any, *, tasks: int) -> dict[TextTask, Task]:
    """Up to ``tasks`` different questions.

    A question that comes back with the words of its answer in another order shows that order does not matter in these answers.
    """
    candidates = [spec.train_task(i) for i in range(tasks)]  # those that the environment itself has made already
    for name in spec.conditions:  # if rows are few
        candidates += spec.tasks(name)[:tasks]
    # By the question: endless sources ask some again.
    rows: dict[str, tuple[TextTask, Task]] = {}
    any_order = False
    for number, task in enumerate(candidates):
        if len(rows) == tasks:
            break
        observation = environment.reset(seed=task.seed, **task.options)
        text = _text_task(spec, environment, task, observation, number)
        earlier, _ = rows.setdefault(text.prompt, (text, task))
        any_order = any_order or _differ_in_order(text.answer, earlier.answer)
    if not any_order:
        return dict(rows.values())
    return {replace(text, ordered=bool(text.ordered)): task for text, task in rows.values()}


def _differ_in_order(first: str, second: str) -> bool:
    """Returns True if two answers have the same words in another order."""
    return first != second and Counter(re.findall(r"\w+", first)) == Counter(re.findall(r"\w+", second))


def _text_task(
    spec: EnvironmentSpec,
    environment: Any,
    task: Task,
    observation: Observation,
    number: int,
) -> TextTask:
    """The task with its gold answer, and with what stands around it in the gold policy's own text."""
    outcome = environment.outcome()
    answer = outcome.get("answer")
    bare = "" if answer is None else str(answer)
    text = _gold_text(spec, environment, task, observation) or bare
    before, after = _around(bare, text) if bare and bare in text else ("", "")
    # The text of a gold policy need not hold the answer of the row; then all of it is gold.
    gold = text[len(before) : len(text) - len(after)]
    row = as_mapping(outcome.get("columns"))
    return TextTask(
        key=f"{task.condition}-{task.seed}-{number}",
        prompt=observation.text,
        gold=gold or None,
        before=before,
        after=after,
        ordered=_TRUTH.get(str(row.get("ordered")).lower()),
    )


def _gold_text(
    spec: EnvironmentSpec,
    environment: Any,
    task: Task,
    observation: Observation,
) -> str:
    """The completion of the gold policy, empty if there is none."""
    if spec.audit.gold is None:
        return ""
    start = EpisodeStart(
        task=task,
        system_prompt=environment.system_prompt,
        key=(0, "audit", task.seed),
        group=0,
        member=0,
        environment=environment,
    )
    session = spec.policy(spec.audit.gold).start([start])
    (action,) = session.act([Request(row=0, observation=observation)])
    session.close()
    return action.text


def _around(gold: str, text: str) -> tuple[str, str]:
    """The text before and behind the gold answer, where it last stands as a word of its own (not the ``a`` of a closing tag)."""
    # The last: reasoning before it may hold the answer too.
    words = list(re.finditer(rf"(?<![\w</]){re.escape(gold)}(?!\w)", text))
    place = words[-1].start() if words else text.rindex(gold)
    return text[:place], text[place + len(gold) :]
