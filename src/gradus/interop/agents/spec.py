"""The environment of an agent, its tasks and its rewards: given as objects, or by a name.

``agent.py:my_agent`` is a function or coroutine ``my_agent(task, client)``; ``command:node agent.js`` is a program in any language. Options stand
behind a question mark: ``tasks=FILE`` (rows, as in ``rows.jsonl``; a file of Python may hold them as ``tasks``), and the fields of
:class:`~gradus.interop.agents.calls.AgentLimits`. A file's ``rewards``, a list of functions, are its grader unless others are given.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from gradus.core import (
    ConfigError,
    Environment,
    EnvironmentSpec,
    Episode,
    Grader,
    Language,
    Policy,
    Stepping,
    Task,
    Vocabulary,
)
from gradus.core.naming import file_sources, import_file, import_object
from gradus.core.values import Json, JsonDict
from gradus.environments.options import format_of, known_options
from gradus.environments.verifiable.from_files import read_rows
from gradus.environments.verifiable.from_rows import graded, one_turn, weighted
from gradus.environments.verifiable.items import TableTasks
from gradus.environments.verifiable.rows import list_rows, question_column
from gradus.environments.verifiable.spec import text_vocabulary
from gradus.interop.agents.calls import AgentLimits
from gradus.interop.agents.environment import Agent, AgentCommand, AgentEnvironment, Rows
from gradus.rewards import Rewards, grader_of
from gradus.rollouts import roll_out

_TAUGHT = 8  # episodes of a teacher whose words a nano model knows
_MOST_TEXTS = 2000  # cells whose words a nano model knows for sure
_OPTIONS = {
    "tasks": str,
    "seconds": float,
    "calls": int,
    "tokens": int,
    "episodes": int,
    "wait_ms": float,
    "endpoint_host": str,
    "hosts": str,
}


def agent_spec(
    agent: Agent,
    tasks: Any,
    rewards: Sequence[Any] = (),
    *,
    name: str = "agent",
    limits: AgentLimits | None = None,
    teacher: Policy | None = None,
    missing: Sequence[type[BaseException] | int] = (ConnectionError,),
    vocabulary: Sequence[str] = (),
) -> EnvironmentSpec:
    """Make the environment of an agent.

    ``tasks``: a list of rows, or an environment whose tasks the agent takes. The agent gets a row without the column of the right answer;
    of an environment without rows it gets ``seed`` and the options of its reset. ``rewards``: functions in TRL's signature, which get the
    row's columns, ``task`` (what the agent got), ``result`` (what it returned) and ``conversation`` (what was said); or one :class:`~gradus.core.Grader`, which may give terms
    for each call. ``teacher``: a policy that answers the agent's calls, for SFT. ``missing``: exceptions of the agent, and exit codes of a
    command, that are no fault of the model: such an episode is left out. ``vocabulary``: texts whose words a nano model knows; without them those of some of the
    teacher's episodes.

    Raises ConfigError if the agent cannot be called with a task and a client, or without tasks.
    """
    if not is_agent(agent):
        raise ConfigError(
            f"an agent is a function or coroutine of a task and a client, as in async def my_agent(task, client); got {agent!r:.60}"
        )
    limits = limits or AgentLimits()
    base = tasks if isinstance(tasks, EnvironmentSpec) else _rows_of(tasks, name)
    grader = _grader(rewards)

    def make() -> Environment:  # its steps are coroutines, which the rollout waits for
        return cast(Environment, AgentEnvironment(agent, _tasks_of(base), limits, missing))

    def train_task(index: int) -> Task:
        return replace(base.train_task(index), environment=name)

    def taught(_: str | None) -> Policy:
        assert teacher is not None
        return teacher

    spec = EnvironmentSpec(
        name=name,
        summary=(inspect.getdoc(agent) or "").partition("\n")[0] or "an agent that calls the model as it likes",
        make=make,
        graders={grader.name: grader},
        conditions=base.conditions,
        train_task=train_task,
        content=base.content,
        data_set=base.data_set,
        sources=base.sources,
        max_turns=limits.calls + 1,  # the agent's own limit comes first, and says its name
        max_sessions=limits.episodes,
        foreign=True,
        # Answers come when all episodes wait for one, so that rounding does not depend on who came first.
        stepping=Stepping(
            episode_seconds=limits.seconds,
            rounds=limits.wait_ms is None,
            by_content=True,
            wait_ms=limits.wait_ms or 0.0,
        ),
        policies={"teacher": taught} if teacher else {},
        teacher="teacher" if teacher else None,
        true_reward=graded,
        true_reward_name="reward",
        language=_language(base, vocabulary),
    )
    if teacher is None or vocabulary or not isinstance(base.data_set, TableTasks):
        return spec

    def words() -> Vocabulary:
        make = _language(base, _taught_texts(spec, teacher)).vocabulary
        assert make is not None
        return make()

    return replace(spec, language=Language(vocabulary=words))


def is_agent(value: object) -> bool:
    """True for a function that takes two arguments, a task and a client, and for an :class:`AgentCommand`."""
    if isinstance(value, AgentCommand):
        return True
    if not callable(value) or isinstance(value, type):
        return False
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return False
    # Options behind them may have defaults; two must be given.
    positional = [parameter for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    return sum(parameter.default is parameter.empty for parameter in positional) == 2


def load(argument: str | None) -> EnvironmentSpec:
    """Load ``agent:FILE.py:NAME?OPTIONS`` or ``agent:module:NAME?OPTIONS``."""
    place, options = _parsed("agent", argument)
    agent: Any = import_object(place, "agent")
    module = place.rpartition(":")[0]
    members: Any = import_file(module, "agent") if module.endswith(".py") else inspect.getmodule(agent)
    tasks = options.pop("tasks", getattr(members, "tasks", None))
    if tasks is None:
        raise ConfigError(
            f"{place} has no tasks; give rows, as in agent:{place}?tasks=rows.jsonl, or a list called tasks in that file"
        )
    spec = _named(f"agent:{argument}", agent, tasks, options, getattr(members, "rewards", ()))
    return replace(spec, sources=file_sources(module))


def load_command(argument: str | None) -> EnvironmentSpec:
    """Load ``command:LINE?tasks=FILE``."""
    line, options = _parsed("command", argument)
    if "tasks" not in options:
        raise ConfigError(f"a command needs tasks, as in command:{line}?tasks=rows.jsonl")
    return _named(f"command:{argument}", AgentCommand(line), options.pop("tasks"), options, ())


def _parsed(kind: str, argument: str | None) -> tuple[str, JsonDict]:
    place, _, query = (argument or "").partition("?")
    if not place:
        raise ConfigError(f"{kind} needs a place, as in agent:agent.py:my_agent or command:node agent.js")
    return place, known_options(f"{kind}:{argument}", query, _OPTIONS)


def _named(name: str, agent: Any, tasks: Any, options: Json, rewards: Sequence[Any]) -> EnvironmentSpec:
    if isinstance(tasks, str | Path):
        path = Path(tasks)
        tasks = read_rows(path, format_of(path.name) or "jsonl")
    return agent_spec(agent, tasks, rewards, name=name, limits=AgentLimits(**options))


def _rows_of(data: Any, name: str) -> EnvironmentSpec:
    """The tasks of rows. A row without a question is told apart by all that it holds."""
    rows = list_rows(data)
    # Rows are told apart by their question, so one is made of all that they hold.
    if question_column(rows) is None:
        rows = [{"question": json.dumps(row, default=str), **row} for row in rows]
    return one_turn(rows, judge=lambda row, text: 0.0, name=name)


def _tasks_of(base: EnvironmentSpec) -> Rows:
    """Returns what an agent is given for a seed and the options of reset, and what reward functions get."""
    table = base.data_set

    def of_seed(seed: int, options: Json) -> tuple[Json, Json]:
        task = {"seed": seed, **options}
        return task, task

    def of_row(seed: int, options: Json) -> tuple[Json, Json]:
        item = table.item(options.get("split", "train"), seed)
        columns = {"answer": item.answer, **item.columns}
        task = {"question": item.question}
        for name, value in item.columns.items():
            # The gold answer may stand in a second column under another name.
            is_answer = name == "answer" or (item.answer and value == item.answer)
            if not is_answer:
                task[name] = value
        return task, columns

    return of_row if isinstance(table, TableTasks) else of_seed


def _language(base: EnvironmentSpec, vocabulary: Sequence[str]) -> Language:
    """The words of a nano model: those of all columns, for what an agent asks for may stand in any of them, and of ``vocabulary``."""
    table = base.data_set
    if not isinstance(table, TableTasks):
        return Language(vocabulary=base.language.vocabulary)
    items = table.splits["train"]
    cells = [cell for item in items for cell in item.columns.values() if isinstance(cell, str)]
    different = list(dict.fromkeys(cells))
    texts = [*vocabulary, *different[:_MOST_TEXTS]]
    return Language(vocabulary=lambda: text_vocabulary(items, texts))


def _taught_texts(spec: EnvironmentSpec, teacher: Policy) -> list[str]:
    """All texts of some of the teacher's episodes: what a framework writes around a task stands in no row."""
    tasks = [spec.train_task(index) for index in range(_TAUGHT)]
    texts: list[str] = []
    for episode in roll_out(spec, teacher, tasks, key=("vocabulary",)).episodes:
        texts += [episode.system_prompt, json.dumps(list(episode.tools))]
        for turn in episode.turns:
            texts += [turn.action, *(message.content for message in turn.messages), turn.observation]
    return list(dict.fromkeys(texts))


def _grader(rewards: Sequence[Any]) -> Grader:
    """Makes the grader of reward functions; a grader alone is taken as it is, with terms by call."""
    # Functions give one number for the episode; a grader may pay each call by itself.
    if len(rewards) == 1 and isinstance(rewards[0], Grader):
        return rewards[0]
    pairs = weighted(rewards)
    if pairs:
        return grader_of(Rewards(pairs), name="rewards", summary="the given rewards", per_turn=False)

    def refuse(episodes: Sequence[Episode]) -> list[Any]:
        raise ConfigError(
            "an agent's episodes need rewards; give functions, as in rewards=[score] or --reward agent.py:score, or a list called "
            "rewards in the agent's file"
        )

    return Grader(name="rewards", compute=refuse, summary="none: give reward functions")
