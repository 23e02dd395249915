"""The tasks of a run, again from the order's beginning: each in its turn, every row once an epoch, none that judges. Answers, taken again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from gradus.core import EnvironmentSpec, Episode, Observation, StopReason, Task, Turn
from gradus.core.values import plain
from gradus.core.waiting import blocking
from gradus.training.config import GrpoConfig
from gradus.training.data.tasks import NO_IDS, training_tasks
from gradus.training.laws.runner import Groups, NotMeasured, Pair, Pairs, holds

_ROWS = 10_000  # of a set whose order is looked at as a whole
_FEW = 12  # rows of which two shuffles may be equal by chance
_EPISODES = 2  # that are taken again


def tasks_again(
    spec: EnvironmentSpec,
    config: GrpoConfig,
    judging: Sequence[Task],
    reserved: frozenset[str],
    before: int,
    groups: Groups,
    trained: int,
) -> Pairs:
    """The step trains on ``trained`` groups. The tasks of a step are those that follow the ``before`` that the run had, by the metrics; none is of ``judging`` or a condition."""
    walked, _ = training_tasks(spec, config, 0, before + len(groups), reserved)
    expected = sorted((task.seed, task.id) for task in walked[before:])
    actual = sorted((group.task.seed, group.task.id) for group in groups)
    again = sum(one == other for one, other in zip(actual, expected, strict=True))
    place = f"the tasks of the step that are numbers {before} and up in the run's order"
    yield Pair(len(groups), again, place)
    conditions = spec.conditions if spec.content is not None else ()
    judges = {spec.identify(task).id for name in conditions for task in spec.tasks(name)}
    judges |= {task.id for task in judging}
    yield Pair(trained, config.groups, "the groups that the step trains on")
    for group in groups:
        task = group.task
        place = f"the task with seed {task.seed}"
        yield holds(task.id in judges, f"{place}: validation or a condition asks it too", False)
        members = sum(episode.task == task and episode.task.id == task.id for episode in group.episodes)
        yield Pair(len(group.episodes), members, f"{place}: members of its group that have it")


def order_again(spec: EnvironmentSpec, config: GrpoConfig) -> Pairs:
    """An epoch has every row once, the next one in another order, and another seed too."""
    offset = config.first_task + config.held_out
    rows = spec.data_set.size("train") if config.tasks is None and spec.data_set is not None else None
    number = rows if config.tasks is None else config.tasks - config.held_out
    if number is None or not _FEW <= number <= _ROWS:
        raise NotMeasured(f"{_FEW} to {_ROWS} different tasks")
    start = -offset % number if rows else 0  # the first epoch lacks what lies before the offset
    walked, _ = training_tasks(spec, config, 0, start + 2 * number, NO_IDS)
    other, _ = training_tasks(spec, config.model_copy(update={"seed": config.seed + 1}), 0, number, NO_IDS)
    # A row of the data set is told from all others, also from one that asks the same.
    keys = [id(row_of(spec, task)) if rows else task.seed for task in walked]
    first, second = keys[start : start + number], keys[start + number :]
    yield Pair(len({*first}) + len({*second}), 2 * number, "different rows in two epochs")
    yield holds(first == second, "two epochs have one order", False)
    same = all(one.seed == task.seed for one, task in zip(walked, other, strict=False))
    yield holds(same, "two seeds have one order", False)


def member_of(episode: Episode) -> str:
    """Names an episode."""
    return f"member {episode.member} of the task with seed {episode.task.seed}"


def row_of(spec: EnvironmentSpec, task: Task) -> Any:
    """The row of the data set that a task asks."""
    assert spec.data_set is not None
    return spec.data_set.item(task.options.get("split", "train"), task.seed)


def ends_again(spec: EnvironmentSpec, config: GrpoConfig, groups: Groups) -> Pairs:
    """How an episode ends follows from its turns: their number, and whether a limit cut the last answer."""
    limit, odd = config.max_turns or spec.max_turns, list[str]()
    ends = (StopReason.TERMINATED, StopReason.TURN_LIMIT, StopReason.TOKEN_LIMIT)
    for episode in (episode for group in groups for episode in group.episodes):
        count, stop = len(episode.turns), episode.stop
        # A prompt that does not fit, which is a failure, ends an episode at the limit of tokens too.
        known = bool(count) and episode.failure is None and stop in ends
        cut = known and episode.turns[-1].cut
        if count > limit or (stop is StopReason.TURN_LIMIT and count < limit):
            odd.append(f"{member_of(episode)}, {count} turns")
        if known and cut != (stop is StopReason.TOKEN_LIMIT):
            odd.append(f"{member_of(episode)}, {stop.value}, where its last answer was {'cut' if cut else 'complete'}")
    place = f"episodes that end otherwise than max_turns {limit} and the cut of their last answer say ({'; '.join(odd[:2])})"
    yield Pair(len(odd), 0, place)


def played_again(spec: EnvironmentSpec, groups: Groups) -> Pairs:
    """The answers of stored episodes, given to a new environment: it shows, pays and ends as was stored, unless it differs from itself."""
    stepping = spec.stepping
    if spec.foreign or spec.max_sessions is not None or stepping.threads or stepping.limited or stepping.rounds:
        raise NotMeasured("an environment that runs in this process and takes no time")
    episodes = [episode for group in groups[::-1] for episode in group.episodes[-1:]]
    chosen = [episode for episode in episodes if episode.failure is None and not episode.tools][:_EPISODES]
    if not chosen:
        raise NotMeasured("an episode without tools that did not fail")
    for episode in chosen:
        again = _replayed(spec, episode)
        if again != _stored(episode) and again != _replayed(spec, episode):
            raise NotMeasured("an environment that repeats itself")
        for name, value in _stored(episode).items():
            yield holds(value == again[name], f"{name}, of {member_of(episode)}, is what a new environment gives")


def _stored(episode: Episode) -> dict[str, Any]:
    """What an environment made of an episode, by name."""
    seen: dict[str, Any] = {"system prompt": episode.system_prompt, "outcome": plain(episode.outcome)}
    for turn in episode.turns:
        seen[f"what turn {turn.index} showed"] = (turn.observation, turn.messages, plain(turn.data), turn.restart)
        seen[f"what became of the answer of turn {turn.index}"] = _effect(turn)
    if episode.stop is not StopReason.TOKEN_LIMIT:
        seen["the end"] = episode.stop
    return seen


def _effect(turn: Turn) -> tuple[Any, ...]:
    return turn.env_reward, turn.valid, turn.error, turn.spans, plain(turn.action_data)


def _replayed(spec: EnvironmentSpec, episode: Episode) -> dict[str, Any]:
    """The same of the same answers in a new environment. Raises NotMeasured if it cannot take them."""
    environment = blocking(spec.make())
    task = episode.task
    try:
        name = f"{task.condition}-{task.seed}-{episode.member}"
        rewards = _step_rewards(environment)
        shown: Observation = environment.reset(seed=task.seed, episode_id=name, **task.options)
        seen: dict[str, Any] = {"system prompt": environment.system_prompt or ""}
        for turn in episode.turns:
            seen[f"what turn {turn.index} showed"] = (shown.text, shown.messages, plain(shown.data), shown.restart)
            shown = environment.step(turn.action)
            reward = rewards[-1] if rewards else shown.reward
            effect = reward, shown.action_valid, shown.action_error, shown.action_spans, plain(shown.action_data)
            seen[f"what became of the answer of turn {turn.index}"] = effect
        seen["outcome"] = plain(dict(environment.outcome() or {}))
        if episode.stop is not StopReason.TOKEN_LIMIT:
            unfinished = StopReason.TRUNCATED if shown.truncated else StopReason.TURN_LIMIT
            seen["the end"] = StopReason.TERMINATED if shown.terminated else unfinished
        return seen
    except Exception as error:
        raise NotMeasured(f"an environment that takes answers again ({type(error).__name__}: {error})") from error
    finally:
        environment.close()


def _step_rewards(environment: Any) -> list[Any]:
    """The rewards that the steps of a class or game are going to return, as it returns them itself."""
    rewards: list[Any] = []
    if type(environment).__module__.startswith("gradus.") and hasattr(environment, "inner"):
        inner, step = environment.inner, environment.inner.step

        def kept(*args: Any, **options: Any) -> Any:
            result = step(*args, **options)
            values: object = result
            if isinstance(values, tuple):
                rewards.append(cast(tuple[Any, ...], values)[1])
            return result

        inner.step = kept
    return rewards
