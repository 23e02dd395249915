"""Episodes of several turns in verifiers' own process: tasksets with tools."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

from gradus.core import (
    AuditHints,
    Condition,
    EnvironmentFault,
    EnvironmentSpec,
    Episode,
    Grader,
    Language,
    Message,
    Observation,
    Panel,
    Reward,
    RewardTerm,
    Task,
    ToolCall,
    Vocabulary,
    child_rng,
)
from gradus.core.calls import call_spans, none_carried_out, read_message, write_calls
from gradus.environments.tools import Tool, call_vocabulary, check_arguments
from gradus.environments.verifiable.items import TRAIN_SEEDS, TableTasks, content_of
from gradus.policies.scripted import Script, constant_policy, policy_factory
from gradus.rollouts import roll_out
from gradus.sandbox.worker import Worker, WorkerError

_EXAMPLES = 24  # episodes that the vocabulary is made of
_keys = count()


class VerifiersEpisode:
    """One episode. Its messages are verifiers' own; calls go there as they were read, and results come back as messages.

    A call that cannot be read is an invalid action with a message that says what was expected; verifiers does not hear of it.
    """

    def __init__(self, worker: Worker, source: TableTasks, module: Mapping[str, Any]) -> None:
        self._worker, self._source, self._module = worker, source, module
        self._key = f"{os.getpid()}-{next(_keys)}"
        self.system_prompt = ""
        self.tools: tuple[Mapping[str, Any], ...] = ()
        self._started, self._steps, self._calls, self._episode_id = False, 0, 0, ""
        self._end: Mapping[str, Any] | None = None

    @property
    def state(self) -> Mapping[str, Any]:
        """Episode id and number of answers taken."""
        return {"episode_id": self._episode_id, "step_count": self._steps}

    def reset(self, *, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        """Begin the task that belongs to ``seed`` and ``split``."""
        self.close()
        self._started, self._steps, self._calls, self._end = True, 0, 0, None
        self._episode_id = episode_id or f"verifiers-{seed or 0}"
        index = self._source.item(options.get("split", "train"), seed or 0).columns["index"]
        return self._seen(self._ask("start", **self._module, index=index, seed=index))

    def step(self, action: str | Message) -> Observation:
        """Give an answer: a message with its calls, or a text in which calls of any known form are read."""
        if not self._started or self._end is not None:
            raise EnvironmentFault("expected reset before this step: the episode is over, or has not begun")
        self._steps += 1
        message = read_message(action, tools=self.tools) if isinstance(action, str) else action
        calls, told = tuple(self._checked(call) for call in message.calls), ""
        if any(call.fault == "malformed" for call in calls):
            calls, told = none_carried_out(calls)
        about: dict[str, Any] = {
            "action_calls": calls,
            "action_spans": call_spans(calls),
            "action_error": next((call.error for call in calls if call.error), None),
        }
        about["action_valid"] = about["action_error"] is None
        if told:
            return Observation(text=told, messages=(Message(role="user", content=told),), **about)
        sent = [{"id": call.id, "name": call.name, "arguments": dict(call.arguments)} for call in calls]
        after = self._ask("step", content=message.content, calls=sent)
        return replace(self._seen(after), **about)

    def outcome(self) -> Mapping[str, Any]:
        """The reward with its parts; an episode that was cut off is rewarded as it stands."""
        self._end = end = self._end or self._ask("finish")
        return {name: end[name] for name in ("reward", "parts", "error") if name in end}

    def close(self) -> None:
        """End the episode there."""
        if self._started:
            self._started = False
            with suppress(EnvironmentFault):  # its process has ended, and the episode with it
                self._ask("close")

    def _checked(self, call: ToolCall) -> ToolCall:
        """The call with an id, and with the fault of a tool that is not there or of arguments that do not fit."""
        self._calls += 1
        call = call if call.id else replace(call, id=f"call{self._calls:05d}")
        if call.fault is not None:
            return call
        tool = next((each for each in self.tools if each["function"]["name"] == call.name), None)
        problem = f"there is no tool {call.name}"
        if tool is not None:
            problem = check_arguments(Tool(schema=tool, run=str), call.arguments)
        return call if problem is None else replace(call, fault="refused", error=problem)

    def _seen(self, told: Mapping[str, Any]) -> Observation:
        """Reads what verifiers tells as an observation. Its first system message is the system prompt."""
        messages = [as_message(each) for each in told["messages"]]
        if messages and messages[0].role == "system":
            self.system_prompt = messages.pop(0).content
        if told["tools"] is not None:
            self.tools = tuple({"type": "function", "function": each} for each in told["tools"])
        if told["done"]:
            self._end = told
        return Observation(
            text="\n".join(each.content for each in messages),
            messages=tuple(messages),
            terminated=told["done"],
            reward=told["reward"] if told["done"] else None,
        )

    def _ask(self, method: str, **more: Any) -> Any:
        try:
            return self._worker.call(method, key=self._key, **more)
        except WorkerError as error:
            raise EnvironmentFault(f"verifiers: {error}") from error


def as_message(values: Mapping[str, Any]) -> Message:
    """A message as the worker tells it."""
    calls = tuple(ToolCall(**each) for each in values["calls"])
    return Message(role=values["role"], content=values["content"], calls=calls, call_id=values["call_id"])


def episode_spec(
    worker: Worker, source: TableTasks, module: Mapping[str, Any], *, summary: str, max_turns: int
) -> EnvironmentSpec:
    """The environment of a module that takes several turns. ``module``: what the worker needs to find it."""
    name, items = source.name, source.splits["train"]
    answered = all(item.answer for item in items)

    def train_task(index: int) -> Task:
        return Task(environment=name, seed=TRAIN_SEEDS + index, options={"split": "train"})

    def random_call(seen: Observation, script: Script) -> str:
        """A call of some tool, with words of the question and small numbers for arguments; without tools a word of the question."""
        words = source.item(script.start.task.options["split"], script.start.task.seed).question.split() or [""]
        if not script.start.tools or script.rng.random() < 0.3:
            return script.rng.choice(words)
        function = script.rng.choice(script.start.tools)["function"]
        kinds = {key: each.get("type") for key, each in (function["parameters"].get("properties") or {}).items()}
        drawn = {key: _drawn(kind, script, words) for key, kind in kinds.items()}
        return write_calls([ToolCall(name=function["name"], arguments=drawn)])

    def gold(seen: Observation, script: Script) -> str:
        return source.item(script.start.task.options["split"], script.start.task.seed).answer

    policies = {"random": random_call, "silence": lambda _, __: "", **({"gold": gold} if answered else {})}
    spec = EnvironmentSpec(
        name=name,
        summary=summary,
        make=lambda: VerifiersEpisode(worker, source, module),
        graders={"reward": Grader(name="reward", compute=_rewards, summary="verifiers' own reward")},
        conditions={
            split: Condition(name=split, seeds=range(source.size(split)), options={"split": split})
            for split in ("in-distribution", "held-out")
        },
        train_task=train_task,
        content=content_of(source),
        max_turns=max_turns,
        policies={
            **{key: policy_factory(key, answer) for key, answer in policies.items()},
            "constant": lambda text: constant_policy(text or ""),
        },
        true_reward=lambda episode: episode.outcome.get("reward"),
        true_reward_name="reward",
        metrics=lambda episode: dict(episode.outcome.get("parts") or {}),
        teacher="gold" if answered else "random",
        language=Language(vocabulary=lambda: _vocabulary(spec)),
        audit=AuditHints(
            panel=Panel(ladder=("silence", "random", *(("gold",) if answered else ())), reflexes=("random", "silence")),
            random_answers=lambda seed: child_rng(seed, "random answer").choice(items).question.split()[-1],
        ),
    )
    return spec


def _drawn(kind: str | None, script: Script, words: Sequence[str]) -> Any:
    if kind in ("integer", "number"):
        return script.rng.randrange(10)
    return script.rng.random() < 0.5 if kind == "boolean" else script.rng.choice(words)


def _rewards(episodes: Sequence[Episode]) -> list[Reward]:
    return [_reward(episode) for episode in episodes]


def _reward(episode: Episode) -> Reward:
    value = episode.outcome.get("reward")
    if value is None:
        error = episode.outcome.get("error") or "no reward can be computed without a sandbox"
        return Reward(grader="reward", value=None, error=error)
    terms: list[tuple[RewardTerm, ...]] = [() for _ in episode.turns]
    terms[-1] = (RewardTerm(component="reward", value=value),)
    return Reward(grader="reward", value=value, components={"reward": value}, terms=tuple(terms))


def _vocabulary(spec: EnvironmentSpec) -> Vocabulary:
    """The words of some random episodes, calls of the tools among them."""
    tasks = [spec.train_task(index) for index in range(_EXAMPLES)]
    episodes = roll_out(spec, spec.policy("random"), tasks, key=("vocabulary",)).episodes
    turns = [turn for episode in episodes for turn in episode.turns]
    texts = [*(turn.observation for turn in turns), *(turn.action for turn in turns), episodes[0].system_prompt]
    return call_vocabulary([call for turn in turns for call in turn.calls], texts)
