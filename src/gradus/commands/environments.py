"""Environments as people have them: by name, a file of rows, rows in memory, or a specification of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradus import environments
from gradus.commands.given import path_text, whole_number
from gradus.core import ConfigError, EnvironmentSpec, Policy
from gradus.environments import file_name
from gradus.runs.own_code import forget_changed_files

if TYPE_CHECKING:
    from gradus.commands.training import Run
    from gradus.rollouts import RolloutResult

Rows = Sequence[Mapping[str, Any]]
Data = str | Path | EnvironmentSpec | type | Rows


def load_environment(name: Data, *, rewards: Sequence[Any] = ()) -> EnvironmentSpec:
    """An environment by name (``gradus envs`` lists them), by file (``rows.jsonl``, ``mine.py``), a class with ``reset`` and
    ``step``, a list of rows, or as it is.

    ``rewards``: reward functions that become its grader, called ``rewards``; see :func:`gradus.train`.

    >>> import gradus
    >>> gradus.load_environment("arithmetic").max_turns
    1
    """
    forget_changed_files()
    if isinstance(name, type):
        name = environments.from_class(name)
    if isinstance(name, str | Path):
        given = environments.load(file_name(str(name)))
    else:
        given = name if isinstance(name, EnvironmentSpec) else _of_rows(name, rewards)
    spec = environments.with_random(given)
    return with_rewards(spec, rewards) if rewards else spec


def roll_out(
    environment: Data,
    policy: str | Path | Policy | Run,
    *,
    episodes: int = 8,
    condition: str | None = None,
    group_size: int = 1,
    seed: int = 0,
    grader: str | None = None,
) -> RolloutResult:
    """Episodes of a policy (an object, or a name as on the command line) in an environment, graded.

    ``policy`` may be a run too. Training tasks, or those of ``condition``. ``group_size`` episodes of each task.

    >>> import gradus
    >>> result = gradus.roll_out("arithmetic", "gold", episodes=4)
    >>> [episode.reward.value for episode in result.episodes]
    [3.0, 3.0, 3.0, 3.0]
    """
    from gradus.rollouts import roll_out as roll
    from gradus.runs.policies import make_policy
    from gradus.runs.recipe import MOST_EPISODES

    episodes = whole_number("episodes", episodes, least=1, most=MOST_EPISODES)
    group_size = whole_number("group_size", group_size, least=1, most=MOST_EPISODES)
    spec = load_environment(environment)
    tasks = spec.tasks(condition, episodes) if condition else [spec.train_task(index) for index in range(episodes)]
    chosen: Any = policy if hasattr(policy, "start") else make_policy(spec, path_text("policy", policy))
    return roll(spec, chosen, tasks, group_size=group_size, seed=seed, grader=spec.grader(grader))


def list_environments(suite: str | None = None) -> list[dict[str, str]]:
    """Name and summary of every environment, or of those of a suite (``reasoning-gym:``)."""
    from gradus.interop.suites.naming import list_suite

    if suite is None:
        return [{"name": each, "summary": environments.summary(each)} for each in environments.names()]
    return [{"name": suite + each, "summary": text} for each, text in list_suite(suite.removesuffix(":")).items()]


def describe(environment: str | EnvironmentSpec | type) -> dict[str, Any]:
    """What ``gradus envs NAME --json`` prints: graders, conditions, policies, teacher.

    >>> from gradus import commands
    >>> commands.describe("arithmetic")["teacher"]
    'teacher'
    """
    spec = load_environment(environment)
    return {
        "name": spec.name,
        "summary": spec.summary,
        "true_reward": spec.true_reward_name,
        "turns": spec.max_turns,
        "graders": {each.name: each.summary for each in spec.graders.values()},
        "default_grader": spec.default_grader,
        "conditions": {each.name: f"{len(each.seeds)} seeds; {each.summary}" for each in spec.conditions.values()},
        "policies": [*spec.policies, "remote:MODEL", "a model folder or a run folder"],
        "teacher": spec.teacher,
    }


def _functions(rewards: Sequence[Any]) -> list[Any]:
    """Reward functions with their weights."""
    from gradus.rewards import find_reward

    return [(find_reward(each["function"], each["settings"]), each["weight"]) for each in reward_entries(rewards)]


def with_rewards(spec: EnvironmentSpec, rewards: Sequence[Any]) -> EnvironmentSpec:
    """The environment with reward functions as its grader."""
    from gradus.rewards import own_grader

    return replace(
        spec, graders={**spec.graders, "rewards": own_grader(spec, reward_entries(rewards))}, default_grader="rewards"
    )


def reward_entries(rewards: Sequence[Any]) -> list[dict[str, Any]]:
    """Reward functions as a recipe names them: ``NAME``, ``module:function``, ``FILE.py:function``, or what is registered here."""
    from gradus.rewards import parse_reward, register_reward, reward_pairs

    forget_changed_files()
    entries: list[dict[str, Any]] = []
    for function, weight in reward_pairs(rewards):
        if isinstance(function, str):
            entry = parse_reward(function).model_dump()
        else:
            entry = {"function": register_reward(function), "weight": 1.0, "settings": {}}
        entries.append({**entry, **({} if weight is None else {"weight": weight})})
    return entries


def as_name(data: Data, rewards: Sequence[Any] = ()) -> str:
    """The name under which a run loads ``data``; rows and a specification are registered in this process."""
    if isinstance(data, str | Path):
        return file_name(str(data))
    if isinstance(data, type):
        data = environments.from_class(data)
    if isinstance(data, EnvironmentSpec):
        if ":" in data.name:
            raise ConfigError(f"an environment of one's own has a name without a colon, got {data.name!r}")
        environments.register(data.name, lambda _: data)
        return data.name
    spec = _of_rows(data, rewards)
    environments.register(spec.name, lambda _: spec)
    return spec.name


def _of_rows(data: Any, rewards: Sequence[Any]) -> EnvironmentSpec:
    from gradus.environments.verifiable import rows_spec

    return rows_spec(data, _functions(rewards))
