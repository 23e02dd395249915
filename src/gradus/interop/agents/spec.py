"""The environment of an agent, its tasks and its rewards: given as objects, or by a name.

``agent.py:my_agent`` is a function or coroutine ``my_agent(task, client)``; ``command:node agent.js`` is a program in any language. Options stand
behind a question mark: ``tasks=FILE`` (rows, as in ``rows.jsonl``; a file of Python may hold them as ``tasks``), and the limits of an episode
``seconds``, ``calls`` and ``tokens``. A file's ``rewards``, a list of functions, are its grader unless others are given.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradus.core import AuditHints, ConfigError, EnvironmentSpec, Grader, Language, Policy, Presentation, Stepping
from gradus.core.naming import file_sources, import_file, import_object
from gradus.environments.verifiable.from_files import read_rows
from gradus.environments.verifiable.from_rows import one_turn
from gradus.environments.verifiable.items import TableTasks
from gradus.environments.verifiable.rows import QUESTIONS, list_rows
from gradus.environments.verifiable.spec import text_vocabulary
from gradus.interop.agents.calls import AgentLimits
from gradus.interop.agents.environment import Agent, AgentEnvironment, Command
from gradus.interop.suites.naming import known_options
from gradus.rewards import Rewards, find_reward, grader_of, reward_pairs

_MOST_TEXTS = 2000  # cells whose words a nano model knows for sure
_OPTIONS = {"tasks": str, "seconds": float, "calls": int, "tokens": int, "episodes": int}


def agent_spec(
    agent: Agent,
    tasks: Any,
    rewards: Sequence[Any] = (),
    *,
    name: str = "agent",
    limits: AgentLimits | None = None,
    teacher: Policy | None = None,
) -> EnvironmentSpec:
    """Make the environment of an agent.

    ``tasks``: a list of rows, or an environment whose tasks the agent takes. The agent gets a row without the column of the right answer;
    of an environment without rows it gets ``seed`` and the options of its reset. ``rewards``: functions in TRL's signature, which get the
    row's columns, ``result`` (what the agent returned) and ``conversation`` (what was said); or one :class:`~gradus.core.Grader`, which may give terms
    for each call. ``teacher``: a policy that answers the agent's calls, for SFT.

    Raises ConfigError if the agent cannot be called with a task and a client, or without tasks.
    """
    if not is_agent(agent):
        raise ConfigError(
            f"an agent is a function or coroutine of a task and a client, as in async def my_agent(task, client); got {agent!r:.60}"
        )
    limits = limits or AgentLimits()
    base = tasks if isinstance(tasks, EnvironmentSpec) else _rows_of(tasks, name)
    spec = replace(
        base,
        name=name,
        summary=(inspect.getdoc(agent) or "").partition("\n")[0] or "an agent that calls the model as it likes",
        make=lambda: AgentEnvironment(agent, _tasks_of(base), limits),
        graders={"rewards": _no_rewards()},
        default_grader="rewards",
        max_turns=limits.calls + 1,  # the agent's own limit comes first, and says its name
        max_sessions=limits.episodes,
        foreign=True,
        # Answers come when all episodes wait for one, so that rounding does not depend on who came first.
        stepping=Stepping(episode_seconds=limits.seconds, rounds=True),
        policies={"teacher": lambda _: teacher} if teacher else {},
        teacher="teacher" if teacher else None,
        recipe=None,
        metrics=None,
        true_reward=lambda episode: episode.reward.value if episode.reward else None,
        true_reward_name="reward",
        presentation=Presentation(),
        language=_language(base),
        audit=AuditHints(),
        train_task=lambda index: replace(base.train_task(index), environment=name),
    )
    if len(rewards) == 1 and isinstance(rewards[0], Grader):  # with terms by call
        return replace(spec, graders={rewards[0].name: rewards[0]}, default_grader=rewards[0].name)
    pairs = [
        (find_reward(each) if isinstance(each, str) else each, 1.0 if weight is None else weight)
        for each, weight in reward_pairs(rewards)
    ]
    grader = grader_of(Rewards(pairs), name="rewards", summary="the given rewards", per_turn=False) if pairs else None
    return replace(spec, graders={"rewards": grader}) if grader else spec


def is_agent(value: object) -> bool:
    """True for a function that takes two arguments, a task and a client, and for a :class:`Command`."""
    if isinstance(value, Command):
        return True
    if not callable(value) or isinstance(value, type):
        return False
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [each for each in parameters if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD]
    return len(needed) == 2


def load(argument: str | None) -> EnvironmentSpec:
    """Load ``agent:FILE.py:NAME?OPTIONS`` or ``agent:module:NAME?OPTIONS``."""
    place, options = _parsed("agent", argument)
    agent = import_object(place, "agent")
    module = place.rpartition(":")[0]
    held: Any = import_file(module, "agent") if module.endswith(".py") else inspect.getmodule(agent)
    tasks = options.pop("tasks", getattr(held, "tasks", None))
    if tasks is None:
        raise ConfigError(
            f"{place} has no tasks; give rows, as in agent:{place}?tasks=rows.jsonl, or a list called tasks in that file"
        )
    spec = _named(f"agent:{argument}", agent, tasks, options, getattr(held, "rewards", ()))
    return replace(spec, sources=file_sources(module))


def load_command(argument: str | None) -> EnvironmentSpec:
    """Load ``command:LINE?tasks=FILE``."""
    line, options = _parsed("command", argument)
    if "tasks" not in options:
        raise ConfigError(f"a command needs tasks, as in command:{line}?tasks=rows.jsonl")
    return _named(f"command:{argument}", Command(line), options.pop("tasks"), options, ())


def _parsed(kind: str, argument: str | None) -> tuple[str, dict[str, Any]]:
    place, _, query = (argument or "").partition("?")
    if not place:
        raise ConfigError(f"{kind} needs a place, as in agent:agent.py:my_agent or command:node agent.js")
    return place, known_options(f"{kind}:{argument}", query, _OPTIONS)


def _named(name: str, agent: Any, tasks: Any, options: Mapping[str, Any], rewards: Sequence[Any]) -> EnvironmentSpec:
    if isinstance(tasks, str | Path):
        path = Path(tasks)
        tasks = read_rows(path, "csv" if path.suffix.lower() in (".csv", ".tsv") else "jsonl")
    return agent_spec(agent, tasks, rewards, name=name, limits=AgentLimits(**options))


def _rows_of(data: Any, name: str) -> EnvironmentSpec:
    """The tasks of rows. A row without a question is told apart by all that it holds."""
    rows = list_rows(data)
    if rows and not any(each in rows[0] for each in QUESTIONS):
        rows = [{"question": json.dumps(row, default=str), **row} for row in rows]
    return one_turn(rows, judge=lambda row, text: 0.0, name=name)


def _tasks_of(base: EnvironmentSpec) -> Callable[[int, Mapping[str, Any]], tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Returns what an agent is given for a seed and the options of reset, and what reward functions get."""
    table = base.data_set

    def of_row(seed: int, options: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        item = table.item(options.get("split", "train"), seed)
        columns = {"answer": item.answer, **item.columns}
        hidden = {"answer", *(name for name, value in columns.items() if item.answer and value == item.answer)}
        task = {"question": item.question, **{name: v for name, v in item.columns.items() if name not in hidden}}
        return task, columns

    def of_seed(seed: int, options: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        task = {"seed": seed, **options}
        return task, task

    return of_row if isinstance(table, TableTasks) else of_seed


def _language(base: EnvironmentSpec) -> Language:
    """The words of a nano model: those of all columns, for what an agent asks for may stand in any of them."""
    table = base.data_set
    if not isinstance(table, TableTasks):
        return Language(vocabulary=base.language.vocabulary)
    items = table.splits["train"]
    texts = dict.fromkeys(str(value) for item in items for value in item.columns.values() if isinstance(value, str))
    return Language(vocabulary=lambda: text_vocabulary(items, list(texts)[:_MOST_TEXTS]))


def _no_rewards() -> Grader:
    def refuse(episodes: Sequence[Any]) -> list[Any]:
        raise ConfigError(
            "an agent's episodes need rewards; give functions, as in rewards=[score] or --reward agent.py:score, or a list called "
            "rewards in the agent's file"
        )

    return Grader(name="rewards", compute=refuse, summary="none: give reward functions")
