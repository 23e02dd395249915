"""The tasks of a run, again from the order's beginning: each in its turn, every row once an epoch, none that judges. Answers, taken again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from gradus.core import EnvironmentSpec, Episode, Observation, StopReason, Task
from gradus.core.values import plain
from gradus.core.waiting import blocking
from gradus.rollouts import episodes_of
from gradus.training.config import GrpoConfig
from gradus.training.data.sequences import Groups
from gradus.training.data.tasks import NO_IDS, training_tasks
from gradus.training.laws.runner import NotMeasured, Pair, Pairs, holds

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
    """The tasks of a step are those that follow the ``before`` that the run had, by the metrics; none is of ``judging`` or a condition.

    ``trained``: groups that the step trains on.
    """
    walked, _ = training_tasks(spec, config, 0, before + len(groups), reserved)
    expected = sorted((task.seed, task.id) for task in walked[before:])
    actual = sorted((group.task.seed, group.task.id) for group in groups)
    again = sum(one == other for one, other in zip(actual, expected, strict=True))
    place = f"the tasks of the step that are numbers {before} and up in the run's order"
    yield Pair(len(groups), again, place)
    judges = {task.id for task in judging}
    # Endless environments keep the seeds of their conditions apart.
    for name in spec.conditions if spec.content is not None else ():
        judges |= {spec.identify(task).id for task in spec.tasks(name)}
    yield Pair(trained, config.groups, "the groups that the step trains on")
    for group in groups:
        task = group.task
        place = f"the task with seed {task.seed}"
        yield holds(task.id in judges, f"{place}: validation or a condition asks it too", False)
        members = sum(episode.task == task and episode.task.id == task.id for episode in group.episodes)
        yield Pair(len(group.episodes), members, f"{place}: members of its group that have it")


def order_again(spec: EnvironmentSpec, config: GrpoConfig) -> Pairs:
    """An epoch has every row once, the next one in another order, and another seed too."""
    by_row = config.tasks is None and spec.data_set is not None
    number = start = 0
    if config.tasks is not None:
        number = config.tasks - config.held_out
    elif spec.data_set is not None:
        number = spec.data_set.size("train")
    if not _FEW <= number <= _ROWS:
        raise NotMeasured(f"{_FEW} to {_ROWS} different tasks")
    if by_row:  # the first epoch lacks what lies before the offset
        start = -(config.first_task + config.held_out) % number
    walked, _ = training_tasks(spec, config, 0, start + 2 * number, NO_IDS)
    other_seed = config.model_copy(update={"seed": config.seed + 1})
    other, _ = training_tasks(spec, other_seed, 0, number, NO_IDS)
    # A row of the data set is told from all others, also from one that asks the same.
    keys = [id(row_of(spec, task)) if by_row else task.seed for task in walked]
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
    limit = config.max_turns or spec.max_turns
    ends = (StopReason.TERMINATED, StopReason.TURN_LIMIT, StopReason.TOKEN_LIMIT)
    odd: list[str] = []
    for episode in episodes_of(groups):
        count, stop = len(episode.turns), episode.stop
        if count > limit or (stop is StopReason.TURN_LIMIT and count < limit):
            odd.append(f"{member_of(episode)}, {count} turns")
        # A prompt that does not fit, which is a failure, ends an episode at the limit of tokens too.
        if not count or episode.failure is not None or stop not in ends:
            continue
        cut = episode.turns[-1].cut
        if cut != (stop is StopReason.TOKEN_LIMIT):
            state = "cut" if cut else "complete"
            odd.append(f"{member_of(episode)}, {stop.value}, where its last answer was {state}")
    place = f"episodes that end otherwise than max_turns {limit} and the cut of their last answer say ({'; '.join(odd[:2])})"
    yield Pair(len(odd), 0, place)


def played_again(spec: EnvironmentSpec, groups: Groups) -> Pairs:
    """The answers of stored episodes, given to a new environment: it shows, pays and ends as was stored, unless it differs from itself."""
    stepping = spec.stepping
    takes_time = stepping.threads or stepping.limited or stepping.rounds
    if spec.foreign or spec.max_sessions is not None or takes_time:
        raise NotMeasured("an environment that runs in this process and takes no time")
    episodes = [episode for group in groups[::-1] for episode in group.episodes[-1:]]
    chosen = [episode for episode in episodes if episode.failure is None and not episode.tools][:_EPISODES]
    if not chosen:
        raise NotMeasured("an episode without tools that did not fail")
    for episode in chosen:
        stored, again = _stored(episode), _replayed(spec, episode)
        if again != stored and again != _replayed(spec, episode):
            raise NotMeasured("an environment that repeats itself")
        for name, value in stored.items():
            yield holds(value == again[name], f"{name}, of {member_of(episode)}, is what a new environment gives")


def _stored(episode: Episode) -> dict[str, Any]:
    """What an environment made of an episode, by name."""
    seen: dict[str, Any] = {"system prompt": episode.system_prompt, "outcome": plain(episode.outcome)}
    for turn in episode.turns:
        seen[f"what turn {turn.index} showed"] = (turn.observation, turn.messages, plain(turn.data), turn.restart)
        effect = turn.env_reward, turn.valid, turn.error, turn.spans, plain(turn.action_data)
        seen[f"what became of the answer of turn {turn.index}"] = effect
    # The limit of tokens stands in place of the environment's own end.
    if episode.stop is not StopReason.TOKEN_LIMIT:
        seen["the end"] = episode.stop
    return seen


def _replayed(spec: EnvironmentSpec, episode: Episode) -> dict[str, Any]:
    """The same of the same answers in a new environment. Raises NotMeasured if it cannot take them."""
    environment = blocking(spec.make())
    task = episode.task
    try:
        # The name that a rollout gives, so that the environment is given the same.
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
            seen["the end"] = _end(shown)
        return seen
    except Exception as error:
        raise NotMeasured(f"an environment that takes answers again ({type(error).__name__}: {error})") from error
    finally:
        environment.close()


def _end(last: Observation) -> StopReason:
    """Says how an episode ends with an observation."""
    if last.terminated:
        return StopReason.TERMINATED
    return StopReason.TRUNCATED if last.truncated else StopReason.TURN_LIMIT


def _step_rewards(environment: Any) -> list[Any]:
    """The rewards that the steps of a class or game are going to return, as it returns them itself."""
    rewards: list[Any] = []
    if type(environment).__module__.startswith("gradus.") and hasattr(environment, "inner"):
        inner, step = environment.inner, environment.inner.step

        def keep_reward(*args: Any, **options: Any) -> Any:
            result = step(*args, **options)
            values: object = result
            if isinstance(values, tuple):
                rewards.append(cast(tuple[Any, ...], values)[1])
            return result

        inner.step = keep_reward
    return rewards
