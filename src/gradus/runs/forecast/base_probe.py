"""Asks the base model questions of the run before anything is spent: what it earns, what is cut, how long a step takes here."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch

from gradus.core import EnvironmentSpec, Episode, Group, Turn
from gradus.core.frozen_record import frozen_record
from gradus.environments.verifiable.items import SYSTEM_PROMPT
from gradus.evidence.evaluation import first_failure
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.rollouts import RolloutResult, roll_out
from gradus.runs.job import Job
from gradus.runs.progress import progress_bar
from gradus.stats import Interval, format_interval, mean_interval
from gradus.training.config import GrpoConfig
from gradus.training.data.sequences import TrainingSample, episode_samples, sampled_tokens
from gradus.training.data.sft_sequences import text_sequences
from gradus.training.data.tasks import reserved_ids, training_tasks
from gradus.training.engine.loss_step import TrainingError
from gradus.training.engine.optimizers import make_optimizer
from gradus.training.engine.prepare import prepare_model
from gradus.training.engine.update import policy_update
from gradus.training.lesson_model import LocalLessonModel
from gradus.training.run.validation import sampling_policy
from gradus.training.sft import likelihood

QUESTIONS, SAMPLES = 24, 4
_PARTS = 4  # of the questions; the speed of each part is one measurement
_STATED = 0.1  # share of answers that hold the gold from where on form, not skill, is what they lack
_CUT = 0.5
_SIGNAL = 0.1  # share of questions that tell answers apart, below which most steps of GRPO have nothing to learn from


@frozen_record
class BaseProbe:
    """The base on questions of the run, under the run's own sampling."""

    reward: Interval
    varied: Interval  # share of questions whose answers earned different rewards
    cut: Interval  # share of answers that ended at the limit of tokens
    speed: Interval  # sampled tokens a second
    # Seconds of one episode that is sampled and graded, of training on one episode, and of one update of the weights.
    rollout: float
    train: float
    update: float
    # What shorter answers do not save: seconds of an episode before its answer, and tokens of its prompt. Both are 0 for several turns.
    prompt_seconds: float
    prompt_tokens: float
    # Seconds of environment and reward for one episode, which are a part of ``rollout``; and of loading the model.
    grading: float
    load: float
    paid: int | None  # tokens of the longest answer that earned more than the least
    lengths: Sequence[Sequence[int]]  # tokens of each episode's answers, by turn
    longest_gold: int  # letters
    stated: float  # share of answers that hold the gold text
    example: tuple[str, str, float | None]  # the end of a prompt, the answer, and its reward
    asks_for_tags: bool
    error: str  # why the first answer without a reward has none
    sft_step: float | None = None  # seconds of a step of SFT on reference answers; None if it was not timed
    taught: float | None = None  # mean tokens of a reference answer, as long as answers are after SFT; None without any

    @property
    def silent(self) -> bool:
        """Too few questions told one answer from another: GRPO has nothing to learn from."""
        return (self.varied.mean or 0.0) < _SIGNAL

    def answer_tokens(self, config: GrpoConfig, *, trained: bool = True) -> float:
        """Returns the mean tokens of an answer with the limit of ``config``. After SFT answers are as long as those that were taught."""
        tokens = self._mean_tokens(config.sampling.max_new_tokens)
        return min(tokens, self.taught) if trained and self.taught is not None else tokens

    def _mean_tokens(self, most: float = math.inf) -> float:
        """Sampled tokens of an episode, on average, if no answer has more than ``most``; at least 1."""
        tokens = sum(min(length, most) for turns in self.lengths for length in turns)
        return max(1.0, tokens / len(self.lengths))

    def episode_seconds(self, config: GrpoConfig, *, trained: bool = True) -> float:
        """Returns the seconds of one episode that is sampled and graded, by the base or by a ``trained`` model."""
        share = self.answer_tokens(config, trained=trained) / self._mean_tokens()
        return self.prompt_seconds + (self.rollout - self.prompt_seconds) * share

    def step_seconds(self, config: GrpoConfig) -> float:
        """Returns the seconds of a step of GRPO here."""
        prompt = self.prompt_tokens / config.group_size  # a group shares it
        train = self.train * (prompt + self.answer_tokens(config)) / (prompt + self._mean_tokens())
        episode = self.episode_seconds(config) + config.epochs * train
        updates = config.epochs * config.minibatches
        # Sampling and the passes of training grow with the episodes; an update of the weights costs the same for any number of them.
        return config.groups * config.group_size * episode + updates * self.update

    def lines(self) -> list[str]:
        """Returns the three lines that a person is told."""
        prompt, answer, value = self.example
        varied = f"{format_interval(self.varied)} of {self.varied.n} questions have answers that differ in reward"
        cut = f"{format_interval(self.cut)} of answers are cut"
        reward = "none" if value is None else f"{value:.3g}"
        return [
            f"the base earns {format_interval(self.reward)}; {varied}",
            f"{cut}; {format_interval(self.speed)} tokens a second are sampled",
            f"for example ...{prompt[-60:]!r} -> {answer[:80]!r}: reward {reward}",
        ]


def load_base(job: Job) -> tuple[LoadedModel, float]:
    """Loads the model that the run begins with, as GRPO trains it, and returns it with the seconds that it took."""
    began = time.perf_counter()
    loaded = prepare_model(load_model(job.base_model(Path()), **job.loading()), job.recipe.grpo)
    return loaded, time.perf_counter() - began


def probe_base(job: Job, loaded: LoadedModel, load_seconds: float) -> BaseProbe:
    """Samples, grades and trains once, on a model that is thrown away. Several turns take a quarter of the questions."""
    config, spec = job.recipe.grpo, job.environment
    policy = sampling_policy(loaded, spec, config, name="base")
    count = QUESTIONS if spec.max_turns == 1 else QUESTIONS // _PARTS
    # What judges is not asked: the settings are fitted to these answers.
    tasks, _ = training_tasks(spec, config, 0, count, reserved_ids(spec, config))
    part = count // _PARTS
    groups: list[Group] = []
    speeds: list[float] = []
    seconds = grading = 0.0

    def ask(asked: LocalPolicy, first: int) -> tuple[RolloutResult, float]:
        began = time.perf_counter()
        rolled = roll_out(
            spec,
            asked,
            tasks[first : first + part],
            group_size=SAMPLES,
            seed=job.recipe.seed,
            key=("probe",),
            grader=job.grader,
            max_turns=config.max_turns,
            first_group=first,
        )
        return rolled, time.perf_counter() - began

    with progress_bar("probe of the base", count * SAMPLES, "answers") as advance:
        for first in range(0, len(tasks), part):
            rolled, spent = ask(policy, first)
            groups += rolled.groups
            seconds += spent
            grading += rolled.seconds["environment"] + rolled.seconds["reward"]
            speeds.append(sum(map(sampled_tokens, rolled.episodes)) / spent)
            advance(len(groups) * SAMPLES, count * SAMPLES)
    prompt_seconds = 0.0
    if spec.max_turns == 1:
        one_token = config.model_copy(update={"sampling": config.sampling.changed(max_new_tokens=1)})
        rolled, spent = ask(sampling_policy(loaded, spec, one_token, name="base"), 0)
        prompt_seconds = min(spent / len(rolled.episodes), seconds / (len(groups) * SAMPLES))
    train, update = _training_seconds(loaded, config, [group.episodes for group in groups[:part]])
    episodes = [episode for group in groups for episode in group.episodes]
    return _figures(
        spec,
        episodes,
        speed=mean_interval(speeds),
        rollout=seconds / len(episodes),
        prompt_seconds=prompt_seconds,
        grading=grading / len(episodes),
        train=train,
        update=update,
        load=load_seconds,
    )


def _figures(spec: EnvironmentSpec, episodes: Sequence[Episode], **costs: Any) -> BaseProbe:
    """The figures of the probe's episodes, beside its ``costs``; SAMPLES of one question follow each other."""
    values = [episode.reward_value for episode in episodes]
    least = min((value for value in values if value is not None), default=0.0)
    paid: list[int] = []
    stated: list[bool] = []
    cut: list[float] = []
    longest_gold = 0
    for episode, value in zip(episodes, values, strict=True):
        gold = str(episode.outcome.get("answer") or "")
        longest_gold = max(longest_gold, len(gold))
        stated.append(bool(gold) and _states(_answers(episode), gold))
        cut += [float(turn.cut) for turn in episode.turns]
        if episode.turns and value is not None and value > least:
            paid.append(max(map(_length, episode.turns)))
    rewards = [set(values[first : first + SAMPLES]) - {None} for first in range(0, len(values), SAMPLES)]
    # The most telling example is an answer that holds the gold and earns nothing.
    unpaid = [place for place, holds in enumerate(stated) if holds and not values[place]]
    place = next(iter(unpaid), 0)
    example = episodes[place]
    return BaseProbe(
        # Answers to one question resemble each other, so that questions are the units of the interval.
        reward=mean_reward(episodes, clusters=[str(number // SAMPLES) for number in range(len(values))]),
        varied=mean_interval([float(len(different) > 1) for different in rewards]),
        cut=mean_interval(cut),
        paid=max(paid, default=None),
        lengths=[[*map(_length, episode.turns)] for episode in episodes],
        prompt_tokens=_prompt_tokens(episodes) if spec.max_turns == 1 else 0.0,
        longest_gold=longest_gold,
        stated=sum(stated) / len(stated),
        example=(example.turns[0].observation if example.turns else "", _answers(example), values[place]),
        error=first_failure(episodes) or "no reward came",
        asks_for_tags=getattr(spec.data_set, "system_prompt", "") == SYSTEM_PROMPT,
        **costs,
    )


def mean_reward(episodes: Sequence[Episode], **options: Any) -> Interval:
    """Returns the mean reward of episodes with its interval; those without a reward are left out."""
    return mean_interval([episode.reward_value for episode in episodes], **options)


def _states(answer: str, gold: str) -> bool:
    """True if an answer holds the gold text as words of its own."""
    return re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", answer, re.IGNORECASE) is not None


def _answers(episode: Episode) -> str:
    """All answers of an episode as one text."""
    return "\n".join(turn.action for turn in episode.turns)


def _length(turn: Turn) -> int:
    """Sampled tokens of a turn."""
    return len(turn.tokens.action_ids) if turn.tokens else 0


def _prompt_tokens(episodes: Sequence[Episode]) -> float:
    """Mean tokens of the prompts of episodes of one turn."""
    tokens = [len(turn.tokens.context_ids) for episode in episodes for turn in episode.turns if turn.tokens]
    return sum(tokens) / max(1, len(tokens))


def _training_seconds(
    loaded: LoadedModel, config: GrpoConfig, groups: Sequence[Sequence[Episode]]
) -> tuple[float, float]:
    """Seconds of training on one episode, and of one update of the weights, from real steps with advantages of +1 and -1.

    Two steps are taken and the second is timed: the first one also allocates the optimizer's state and compiles what is compiled. Answers are
    repeated to the size of a group of the run, which shares its prompt. Raises TrainingError if the clock says that a step takes no time.
    """
    groups = [[*islice(cycle(members), config.group_size)] for members in groups]
    samples: list[TrainingSample] = []
    for number, members in enumerate(groups):
        for index, episode in enumerate(members):
            for sample in episode_samples(episode, index=len(samples), group=number):
                sign = torch.full((sample.actions,), 1.0 - 2.0 * (index % 2), dtype=torch.float64)
                samples.append(replace(sample, advantages=sign))
    optimizer = make_optimizer(loaded.model, config)
    # The second step has other weights than the sampler had. The clock is asked, not the model: nothing that is computed here is kept.
    config = config.model_copy(update={"max_logp_diff": math.inf})
    policy_update(loaded, optimizer, samples, config, config.lr)
    result = policy_update(loaded, optimizer, samples, config, config.lr)
    train, update = result.seconds["train"], result.seconds["update"]
    if train <= 0 or update <= 0:  # every plan of time is a multiple of these
        took = f"a training step of the probe took {train:g} s and its update {update:g} s"
        raise TrainingError(f"{took}; the clock stands still")
    episodes = sum(len(members) for members in groups)
    return train / config.epochs / episodes, update / (config.epochs * config.minibatches)


def with_sft_step(probe: BaseProbe, job: Job, loaded: LoadedModel) -> BaseProbe:
    """Returns the probe with a step of SFT on reference answers. The second of two is timed: the first also allocates the optimizer's state."""
    spec, config = job.environment, job.recipe.sft
    assert spec.teacher is not None
    tasks = [spec.train_task(index) for index in range(config.batch_size)]
    lessons = text_sequences(loaded, roll_out(spec, spec.policy(spec.teacher), tasks).episodes)
    model = LocalLessonModel(loaded, config, partial(likelihood, loaded))
    model.update(lessons, config.lr)
    began = time.perf_counter()
    model.update(lessons, config.lr)
    seconds = time.perf_counter() - began
    return replace(probe, sft_step=seconds, taught=sum(lesson.actions for lesson in lessons) / len(lessons))


def _for_cut_answers(probe: BaseProbe, spec: EnvironmentSpec, config: GrpoConfig) -> str:
    """Returns the one remedy for answers that end at the limit: a prompt if the reference answers are far shorter, else a higher limit."""
    limit = config.sampling.max_new_tokens
    # A token is at least a letter, so that a gold answer of fewer letters than the limit fits.
    if spec.teacher is None or probe.longest_gold > limit:
        longer = max(2 * limit, probe.longest_gold + 1)
        return f"allow longer answers with --set grpo.sampling.max_new_tokens={longer}"
    if getattr(spec.data_set, "system_prompt", ""):
        return "warm-start it with --set teach.enabled=true"
    return "ask for the answer alone with --set model.system_prompt='Reply with the answer and nothing else.'"


def way_out(probe: BaseProbe, spec: EnvironmentSpec, config: GrpoConfig) -> tuple[str, str]:
    """Says why the base has nothing to learn from, and what to do about it: whichever cause its own answers show."""
    mean, cut = probe.reward.mean or 0.0, probe.cut.mean or 0.0
    if probe.reward.mean is None:
        return f"none of its answers could be graded: {probe.error}", "try the reward with gradus rewards try"
    same = round(probe.varied.n * (1.0 - (probe.varied.mean or 0.0)))
    why = f"its answers to {same} of {probe.varied.n} questions earn the same ({mean:.3g} on average)"
    if mean > 0 and probe.stated > _CUT:
        return why, "the questions are too easy for it: bring harder ones"
    # Faults of form come before faults of skill: they cost a line of the recipe.
    gold = f"{probe.stated:.0%} of them hold the gold answer"
    if probe.stated >= _STATED and probe.asks_for_tags:
        remedy = (
            "judge the last sentence with --reward final_answer, or a reward of your own, and no tags are asked for"
        )
        return f"{why}, though {gold}: it does not write the tags", remedy
    if cut >= _CUT:
        return f"{why}, and {cut:.0%} of them are cut", _for_cut_answers(probe, spec, config)
    if probe.stated >= _STATED:
        remedy = "say in the question how to answer, or fix the reward (gradus rewards try)"
        return f"{why}, though {gold}, as {probe.example[1][:60]!r}", remedy
    if spec.teacher is not None:
        return f"{why}, and {gold}", "warm-start it with --set teach.enabled=true, or bring easier questions"
    remedy = "bring easier questions, or name a teacher with --set teach.policy=remote:MODEL --set teach.enabled=true"
    return why, remedy
