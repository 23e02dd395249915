"""Environments as people have them: by name, a file of rows, rows in memory, or a specification of their own."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gradus import environments
from gradus.commands.entries import command
from gradus.commands.options import WORD, Data, known_options
from gradus.commands.output import JSON_FILE, CommandCall, Listing, Shown, next_command, note
from gradus.core import ConfigError, EnvironmentSpec, Episode, Observation, Policy, Task
from gradus.core.values import JsonDict
from gradus.environments import file_name

if TYPE_CHECKING:
    from gradus.commands.training import Run
    from gradus.rollouts import RolloutResult


def load_environment(name: Data, *, rewards: Sequence[Any] = ()) -> EnvironmentSpec:
    """An environment by name (``gradus envs`` lists them), by file (``rows.jsonl``, ``mine.py``), a class with ``reset`` and
    ``step``, a list of rows, or as it is.

    ``rewards``: reward functions that become its grader, called ``rewards``; see :func:`gradus.train`.

    >>> import gradus
    >>> gradus.load_environment("arithmetic").max_turns
    1
    """
    from gradus.environments.verifiable.from_rows import rows_spec
    from gradus.runs.sources import forget_changed_files

    forget_changed_files()
    if isinstance(name, str | Path):
        spec = environments.load(file_name(str(name)))
    elif isinstance(name, type):
        spec = environments.from_class(name)
    else:
        spec = name if isinstance(name, EnvironmentSpec) else rows_spec(name)
    spec = environments.with_random(spec)
    return with_rewards(spec, rewards) if rewards else spec


def agent(
    function: Callable[..., Any],
    tasks: Any,
    rewards: Sequence[Any] = (),
    *,
    name: str | None = None,
    teacher: Policy | None = None,
    missing: Sequence[type[BaseException] | int] = (ConnectionError,),
    vocabulary: Sequence[str] = (),
    **limits: Any,
) -> EnvironmentSpec:
    """An environment of an agent: any function or coroutine ``my_agent(task, client)`` that talks to the OpenAI client that it is given.

    ``tasks``: a list of rows; a task is a row without its answer. ``rewards``: functions in TRL's signature, which also get ``result`` (what
    the agent returned) and ``conversation``. ``teacher``: a policy that answers the agent's calls, for SFT. ``missing``: exceptions, and exit
    codes of a command, that are no fault of the model: such an episode is left out. ``vocabulary``: texts whose words a nano model knows.
    ``limits``: of an episode, ``seconds``, ``calls`` and ``tokens``.
    """
    from gradus.interop.agents.calls import AgentLimits
    from gradus.interop.agents.spec import agent_spec

    named = ("function", "tasks", "rewards", "name", "teacher", "missing", "vocabulary")
    known_options(limits, AgentLimits, "gradus.agent", also=named)
    called = name or getattr(function, "__name__", "agent")
    if called in environments.own_names():  # a run of it would stand for the one that comes with Gradus
        called = f"my-{called}"
    return agent_spec(
        function,
        tasks,
        rewards,
        name=called,
        limits=AgentLimits(**limits),
        teacher=teacher,
        missing=missing,
        vocabulary=vocabulary,
    )


def roll_out(
    environment: Data,
    policy: str | Path | Policy | Run,
    *,
    episodes: int = 8,
    condition: str | None = None,
    group_size: int = 1,
    seed: int = 0,
    grader: str | None = None,
    tasks: Sequence[Task] | None = None,
) -> RolloutResult:
    """Episodes of a policy (an object, or a name as on the command line) in an environment, graded.

    ``policy`` may be a run too. Training tasks, those of ``condition``, or ``tasks``. ``group_size`` episodes of each task.

    >>> import gradus
    >>> result = gradus.roll_out("arithmetic", "gold", episodes=4)
    >>> [episode.reward.value for episode in result.episodes]
    [3.0, 3.0, 3.0, 3.0]
    """
    from gradus.rollouts import roll_out as roll
    from gradus.runs.policies import make_policy

    spec = load_environment(environment)
    if tasks is None:
        tasks = spec.tasks(condition, episodes) if condition else [spec.train_task(index) for index in range(episodes)]
    if isinstance(policy, str | os.PathLike):
        policy = make_policy(spec, os.fspath(policy))
    return roll(spec, policy, tasks, group_size=group_size, seed=seed, grader=spec.grader(grader))


class EnvironmentFacts(Shown, JsonDict):
    """One environment: graders, conditions, policies, teacher."""

    def to_json(self) -> JsonDict:
        """The dict itself."""
        return self

    def tables(self) -> Sequence[Any]:
        """Everything about it, a line for each grader and condition."""
        from rich.text import Text

        turns = "one turn" if self["turns"] == 1 else f"at most {self['turns']} turns"
        lines = [
            Text.assemble((self["name"], "bold"), f"  {self['summary']}"),
            Text(f"true reward: {self['true_reward']}; {turns}; teacher: {self['teacher'] or 'none'}"),
        ]
        for title in ("graders", "conditions"):
            lines.append(Text(title, style="bold"))
            lines += [Text(f"  {key:<18}{text}") for key, text in self[title].items()]
        return [*lines, Text("policies", style="bold"), Text("  " + ", ".join(self["policies"]))]


def _after_envs(result: Listing | EnvironmentFacts, call: CommandCall) -> None:
    if isinstance(result, EnvironmentFacts):
        return next_command("show", str(call["name"]), "--play")
    if JSON_FILE.get() != "-":
        note("Your own: rows.jsonl, rows.csv, FILE.py:NAME, or module:attribute of an installed package")
    return next_command("envs", "rhythm")


_NAME = Parameter(name="name", help="One environment; or a suite, as in reasoning-gym:, for a list of what is in it.")


@command("envs", _after_envs, shown=True)
def envs(
    name: Annotated[str | EnvironmentSpec | type | None, WORD, _NAME] = None,
) -> Listing | EnvironmentFacts:
    """List the environments, or show one. A suite, as in reasoning-gym:, lists what is in it.

    >>> from gradus import commands
    >>> commands.envs("arithmetic")["teacher"]
    'teacher'
    """
    from gradus.interop.suites.naming import list_suite

    if name is None:
        return Listing({"name": word, "summary": environments.summary(word)} for word in environments.names())
    if isinstance(name, str) and name.endswith(":"):
        return Listing({"name": name + word, "summary": text} for word, text in list_suite(name[:-1]).items())
    spec = load_environment(name)
    return EnvironmentFacts(
        name=spec.name,
        summary=spec.summary,
        true_reward=spec.true_reward_name,
        turns=spec.max_turns,
        graders={grader.name: grader.summary for grader in spec.graders.values()},
        default_grader=spec.default_grader,
        conditions={name: f"{len(one.seeds)} seeds; {one.summary}" for name, one in spec.conditions.items()},
        policies=[*spec.policies, "remote:MODEL", "a model folder or a run folder"],
        teacher=spec.teacher,
    )


def play(environment: Data = "rhythm", *, seed: int | None = None) -> Episode:
    """Play one episode yourself in the terminal; what was hidden is shown at its end. ``seed``: which task; another one each day without it."""
    from rich.text import Text

    from gradus.core.terminal import Terminal
    from gradus.evidence.reports import show_episode
    from gradus.rollouts import roll_out
    from gradus.stats import format_number, format_signed

    spec = load_environment(environment)
    options = spec.tasks(next(iter(spec.conditions)), 1)[0].options
    task_seed = date.today().toordinal() if seed is None else seed
    task = Task(environment=spec.name, seed=task_seed, condition="play", options=options)
    console = Terminal(highlight=False)
    episode = roll_out(spec, _person(console), [task], grader=spec.grader()).episodes[0]
    console.rule("what you could not see")
    console.print(show_episode(episode, spec.presentation.view(episode) if spec.presentation.view else None))
    if episode.reward and episode.reward.value is not None:
        console.print(
            Text.assemble(f"reward ({episode.reward.grader}): ", (format_number(episode.reward.value), "bold"))
        )
    true_reward = episode.metrics.get("true_reward")
    if true_reward is not None:
        console.print(Text.assemble(f"{spec.true_reward_name}: ", (format_signed(true_reward, 2), "bold")))
    word = environment if isinstance(environment, str) else spec.name
    policies = ",".join(list(spec.policies)[:3]) or "MODEL"  # one's own environment may have no policy
    console.print(f"compare: gradus eval {shlex.quote(word)} --policy {policies}")
    return episode


def _person(console: Any) -> Policy:
    """A policy whose answers a person types in the terminal; it is told the rules first."""
    from gradus.policies.scripted import FunctionPolicy

    def answer(observation: Observation, script: Any) -> str:
        if not script.memory:
            script.memory["rules"] = True
            console.rule("the rules")
            console.print(script.start.system_prompt)
            console.print("Ctrl-C ends it.", style="dim")
            console.rule()
        if observation.action_error:
            console.print(f"not understood: {observation.action_error}", style="yellow")
        console.print(observation.text, style="bold")
        text = ""
        while not text:
            try:
                text = console.input("> ").strip()
            except EOFError as error:  # an error of the policy would end in a failed episode, and not the game
                raise KeyboardInterrupt from error
        return text

    return FunctionPolicy("you", answer)


def graded_environment(
    name: Data, rewards: Sequence[Any], graders: Sequence[str | None]
) -> tuple[EnvironmentSpec, list[Any]]:
    """Loads an environment as a run trains on it, and returns it with its reward functions.

    Rows have their default reward if neither functions nor a grader are named. Raises ConfigError if reward functions are given but only
    other graders are asked for, so that they would have no effect.
    """
    from gradus.runs.recipe.starter import default_rewards

    functions = list(rewards)
    named = [grader for grader in graders if grader is not None]
    if functions and named and "rewards" not in named:
        idle = f"reward functions are a grader of their own, called rewards, and the grader {', '.join(named)}"
        raise ConfigError(f"{idle} was asked for instead; leave out the grader or the reward functions")
    spec = load_environment(name, rewards=functions)
    if not functions and not named:
        functions = default_rewards(spec)
        spec = with_rewards(spec, functions) if functions else spec
    return spec, functions


def with_rewards(spec: EnvironmentSpec, rewards: Sequence[Any]) -> EnvironmentSpec:
    """The environment with reward functions as its grader."""
    from gradus.environments.verifiable.from_rows import with_own_rewards
    from gradus.rewards import choose_rewards, own_grader

    return with_own_rewards(spec, own_grader(spec, choose_rewards(rewards)))


def environment_of(data: Data) -> str | EnvironmentSpec:
    """Returns the name of an environment as a recipe has it, or the environment of rows, a class or a specification. Raises ConfigError."""
    if isinstance(data, str | Path):
        return file_name(str(data))
    spec = load_environment(data)
    if ":" in spec.name:  # in a recipe it would be the name of a file or a suite
        raise ConfigError(f"an environment of one's own has a name without a colon, got {spec.name!r}")
    if spec.name in environments.own_names():
        raise ConfigError(
            f"{spec.name!r} is an environment that comes with Gradus; for that one give its name, for your own choose another, "
            "as in dataclasses.replace(spec, name='mine')"
        )
    return spec
