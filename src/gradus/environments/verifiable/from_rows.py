"""Makes an environment of one turn from rows and reward functions, or from rows and a judge."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gradus.core import ConfigError, EnvironmentSpec, Episode, Grader, Reward
from gradus.core.foreign import GRADER_SECONDS, raised_at, within
from gradus.core.values import Json, number_of
from gradus.environments.verifiable.environment import Judge, Judgement, judge_marked
from gradus.environments.verifiable.items import SYSTEM_PROMPT, Item, TableTasks, example_of, split_items
from gradus.environments.verifiable.policies import in_format
from gradus.environments.verifiable.rows import check_answers, list_rows, read_items, usual_columns
from gradus.environments.verifiable.spec import MARKED, answering_of, one_turn_of, one_turn_spec
from gradus.rewards import RewardFunction, choose_rewards, grader_of, load_rewards, reads_tags
from gradus.rewards.compose import copied_cell
from gradus.rewards.grading import rewards_of

_MARKS = ("<answer>", "boxed", "####")  # a question with one of them says itself how to mark the answer
_WAY_OUT = ", or gradus.one_turn(rows, test=...)"


def one_turn(
    rows: Sequence[Json],
    rewards: Sequence[RewardFunction | str | tuple[RewardFunction | str, float]] = (),
    *,
    judge: Callable[[Json, str], float] | None = None,
    name: str = "rows",
    system_prompt: str = "",
    answer_format: str = "{answer}",
    test: Sequence[Json] | None = None,
    time_limit: float = GRADER_SECONDS.remote,
) -> EnvironmentSpec:
    """Makes an environment of rows with ``question`` (or ``prompt``) and perhaps ``answer``, and of what judges their completions.

    ``rewards``: functions in TRL's signature, or pairs of function and weight. ``judge(row, completion)`` returns a score, 1 for
    right. One of the two must be given; with both, the rewards train and the judge is the true reward. ``answer_format``: how a
    gold answer is written as a completion. ``test``: rows that are held out; without them a tenth is. ``time_limit``: seconds for one call
    of a judge or a reward function.

    >>> rows = [{"question": f"{n} + 1", "answer": str(n + 1)} for n in range(40)]
    >>> spec = one_turn(rows, judge=lambda row, text: float(text.strip() == row["answer"]))
    >>> spec.max_turns, spec.teacher, list(spec.graders)
    (1, 'gold', ['score'])
    """
    choice = choose_rewards(rewards)
    if not choice.entries and judge is None:
        raise ConfigError("one_turn needs rewards=[...] or judge=..., got neither")
    if "{answer}" not in answer_format:
        raise ConfigError(f"answer_format must have {{answer}} in it, got {answer_format!r}")
    items = _items(rows)
    held_out = None if test is None else _items(test)
    tasks = split_items(name, items, held_out, system_prompt=system_prompt, way_out=_WAY_OUT)
    # With both, the rewards train and come first; the judge's score is the truth beside them.
    graders: list[Grader] = []
    if choice.entries:
        composed = load_rewards(choice.entries, functions=choice.functions, messages=tasks.chats)
        composed.time_limit = time_limit
        graders.append(grader_of(composed, name="rewards", summary="the given rewards"))
    if judge is not None:
        graders.append(score_grader())
    answering = answering_of(
        tasks.splits["train"], system_prompt, write=lambda _, answer: answer_format.replace("{answer}", answer)
    )
    return one_turn_of(
        tasks,
        answering,
        judge=judge_of(judge, time_limit) if judge else unjudged,
        graders=graders,
        summary=f"{len(items)} rows of one turn",
        true_reward=None if judge else graded,
    )


def judge_of(function: Callable[[Json, str], float], seconds: float) -> Judge:
    """Makes a judge of a function of row and completion. An exception is an error of that answer."""

    def judge(item: Item, text: str) -> Judgement:
        try:
            # A judge that changes its row would change the task for all others of the group.
            row = {name: copied_cell(cell) for name, cell in item.columns.items()}
            score = number_of(within(seconds, "the judge", partial(function, row, text)))
        except (Exception, SystemExit) as error:
            # An error is missing, not zero: zero would teach the model to break the judge.
            raised = f"the judge raised {type(error).__name__}: {error}{raised_at(error)}"
            return Judgement(score=None, answer=text, error=raised)
        if not math.isfinite(score):
            return Judgement(score=None, answer=text, error=f"the judge returned {score}; expected a finite number")
        return Judgement(score=score, answer=text or None, problem=None if text else "the answer is empty")

    return judge


def score_grader(summary: str = "the judge's score", *, limits: tuple[float, float] | None = (0.0, 1.0)) -> Grader:
    """Makes the grader that gives the score of the environment's judge, which lies within ``limits``."""

    def compute(episodes: Sequence[Episode]) -> list[Any]:
        return [_score(episode) for episode in episodes]

    return Grader(name="score", summary=summary, compute=compute, range=limits)


def _score(episode: Episode) -> Reward | float:
    value = episode.outcome.get("correct")
    if value is None:
        return Reward(grader="score", value=None, error=episode.outcome.get("error") or "the answer was not judged")
    return value


def unjudged(item: Item, text: str) -> Judgement:
    """Takes the text as the answer and leaves the judgement to the rewards."""
    answer = text.strip() or None
    return Judgement(score=None, answer=answer, problem=None if answer else "the answer is empty")


def graded(episode: Episode) -> float | None:
    """Returns the reward as the true reward: rewards of one's own are the truth unless there is a judge."""
    return episode.reward_value


def rows_spec(data: Any) -> EnvironmentSpec:
    """Makes an environment of rows, or of a table of pandas, as of a file of them."""
    items = _items(list_rows(data))
    answered = any(item.answer for item in items)
    if answered:
        check_answers(items, "")
    tasks = split_items("rows", items, system_prompt=SYSTEM_PROMPT if answered else "", way_out=_WAY_OUT)
    return spec_of(tasks, f"{len(items)} rows of one turn", way_out="give rows with question and answer")


def spec_of(tasks: TableTasks, summary: str, recipe: str | None = None, *, way_out: str) -> EnvironmentSpec:
    """Makes an environment of rows of which all have an answer, or none; ``way_out``: how they get answers.

    Without answers it is one of questions alone, for reward functions that need none. Without those nothing can be graded.
    """
    items = tasks.splits["train"]
    if items[0].answer:
        answering = answering_of(items, tasks.system_prompt, worked=all(item.worked for item in items))
        return one_turn_spec(tasks, answering, summary=summary, recipe=recipe)

    def refuse(episodes: Sequence[Episode]) -> list[Any]:
        raise ConfigError(
            f"{tasks.name} has no answers; its columns are {', '.join(items[0].columns)}; {way_out}, or give reward functions "
            "that need none (--reward)"
        )

    return one_turn_of(
        tasks,
        answering_of(items, tasks.system_prompt, write=lambda _, answer: answer),
        judge=unjudged,
        graders=[Grader(name="answers", compute=refuse, summary="none: the rows have no answers, so give rewards")],
        summary=f"{summary}, for rewards of your own",
        true_reward=graded,
    )


def with_own_rewards(spec: EnvironmentSpec, grader: Grader, *, system_prompt: str | None = None) -> EnvironmentSpec:
    """Returns the environment with a grader of reward functions as its default one.

    Rows that would be read in tags become plain questions if no function reads tags, or if the questions ask for tags themselves: they are
    asked with ``system_prompt``, or without one, and the reward is the true reward. Rows that are examples in the prompt are not trained on.
    """
    rewards = rewards_of(grader)
    tasks = spec.data_set
    beside = replace(spec, graders={**spec.graders, grader.name: grader}, default_grader=grader.name)
    if rewards is None or not isinstance(tasks, TableTasks) or MARKED not in spec.graders:
        return beside
    items = tasks.splits["train"]
    # A function is read for the tags that its code looks for.
    tags = any(map(reads_tags, rewards.functions.values()))
    prompts = [(item.system or "") + item.question for item in items]
    marked = any(mark in prompt for prompt in prompts for mark in _MARKS)
    if tags and not marked:
        return beside
    # A prompt of one's own stays; ours asks for tags that nobody would read.
    prompt = (system_prompt or "") if tasks.system_prompt == SYSTEM_PROMPT else tasks.system_prompt
    trained = [item for item in items if example_of(item) not in prompt]
    return one_turn_spec(
        TableTasks(tasks.name, {**tasks.splits, "train": trained}, system_prompt=prompt),
        answering_of(items, prompt, write=in_format if tags else lambda _, answer: answer),
        summary=spec.summary,
        recipe=spec.recipe,
        judge=judge_marked if tags else unjudged,
        graders=[grader, *spec.graders.values()],
        conditions=tuple(spec.conditions),
        true_reward=None if tags else graded,
    )


def _items(data: Any) -> list[Item]:
    rows = list_rows(data)
    return read_items(rows, usual_columns(rows, "rows", "rename it if it holds something else"))
