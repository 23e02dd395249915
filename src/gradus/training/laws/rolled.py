"""What was rolled out, for training, to validate or to be taught, again: who is whose member, where answers end, what they did, their text and their draws."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from gradus.core import EnvironmentSpec, Episode, Grader, Observation, Renderer, StopReason, child_seed
from gradus.core.values import plain
from gradus.core.waiting import blocking
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.sampling import SamplingConfig
from gradus.rollouts import episodes_of
from gradus.training.data.sequences import Groups, TrainingSample, episode_samples
from gradus.training.laws.grading import asked_again, graded_again, member_of, weighed_again
from gradus.training.laws.plain_pass import STRIDE, beginning, plain_scores
from gradus.training.laws.runner import LawRunner, NotMeasured, Pair, Pairs, holds, in_order
from gradus.training.laws.tokens import text_again

_EPISODES = 8  # that are taken again, as long as there is time
_SECONDS = 0.02


@dataclass(frozen=True, kw_only=True)
class RolledOut:
    """How episodes must have been rolled out, by the settings.

    ``seed`` and ``key``: of their random numbers; with ``rounds`` the number of one of so many further rounds stands behind it.
    ``size``: members of a group; ``first``: the number of the first group. ``limit``: of turns. ``loaded``: the model that sampled them,
    None if it is not here. ``grader``: None if nothing asks for their rewards.
    """

    spec: EnvironmentSpec
    sampling: SamplingConfig
    seed: int
    key: tuple[int | str, ...]
    size: int
    limit: int
    renderer: Renderer
    loaded: LoadedModel | None
    grader: Grader | None = None
    exact: bool = True
    first: int = 0
    rounds: int | None = None

    def check(self, laws: LawRunner, groups: Groups) -> None:
        """Holds groups to it. Raises LawBroken."""
        spec, grader = self.spec, self.grader
        laws.check("draws", self.members_again, groups)
        laws.check("replay", self.ends_again, groups)
        laws.check("replay", played_again, spec, groups)
        laws.check("text", text_again, groups, self.renderer)
        if grader is not None:
            laws.check("grading", weighed_again, groups, grader)
            laws.check("grading", asked_again, spec, groups, grader)
            laws.check("grading", graded_again, spec, groups, grader)
        if self.loaded is not None:
            self._check_draws(laws, self.loaded, groups)

    def members_again(self, groups: Groups) -> Pairs:
        """Each member of a group has its task, and the numbers of group and member that are its place: they key its random numbers."""
        for number, group in enumerate(groups):
            first = self.first + number if self.rounds is None else group.episodes[0].group
            where = f"group {number}, of the task with seed {group.task.seed}"
            members = [(each.task, each.task.id, each.group, each.member) for each in group.episodes]
            again = [(group.task, group.task.id, first, place) for place in range(self.size)]
            what = "members (group_size) that have its task and numbers of group and member, which key their random numbers, of their own"
            yield in_order(members, again, f"{where}: {what}")

    def ends_again(self, groups: Groups) -> Pairs:
        """An episode ends at the limit of turns or where its last answer was cut; an answer at its first stop token or at the limit of tokens."""
        ends = (StopReason.TERMINATED, StopReason.TURN_LIMIT, StopReason.TOKEN_LIMIT)
        odd: list[str] = []
        for episode in episodes_of(groups):
            count, stop = len(episode.turns), episode.stop
            if count > self.limit or (stop is StopReason.TURN_LIMIT and count < self.limit):
                odd.append(f"{member_of(episode)}, {count} turns")
            if self.loaded is not None:
                odd += [f"{member_of(episode)}, {words}" for words in self._odd_answers(episode, self.loaded)]
            # A prompt that does not fit, which is a failure, ends an episode at the limit of tokens too.
            if not count or episode.failure is not None or stop not in ends:
                continue
            cut = episode.turns[-1].cut
            if cut != (stop is StopReason.TOKEN_LIMIT):
                odd.append(
                    f"{member_of(episode)}, {stop.value}, where its last answer was {'cut' if cut else 'complete'}"
                )
        place = f"episodes that end otherwise than max_turns {self.limit}, max_new_tokens, stop tokens and the cut of answers say"
        yield Pair(len(odd), 0, f"{place} ({'; '.join(odd[:2])})")

    def _odd_answers(self, episode: Episode, loaded: LoadedModel) -> list[str]:
        """Answers that do not end at their first stop token or, cut, at the limit of tokens."""
        longest, stop_ids, odd = self.sampling.max_new_tokens, self.renderer.stop_ids, list[str]()
        for turn in episode.turns:
            if turn.tokens is None or turn.usage is None or turn.asked is not None:
                continue
            ids = turn.tokens.action_ids
            is_full = turn.usage.prompt_tokens + len(ids) == loaded.context
            stops = [token in stop_ids for token in ids]
            ends = not any(stops) and (len(ids) == longest or is_full)
            if not turn.cut:
                ends = sum(stops) == 1 and stops[-1]
            if not ends or len(ids) > longest:
                odd.append(f"turn {turn.index}, {len(ids)} tokens, {'cut' if turn.cut else 'complete'}")
        return odd

    @torch.no_grad()
    def _check_draws(self, laws: LawRunner, loaded: LoadedModel, groups: Groups) -> None:
        """Holds the log-probs and the random numbers of one episode, another one at each step, to a plain pass. Raises LawBroken."""
        sampled = [episode for episode in episodes_of(groups) if any(_is_sampled(episode))]
        if not sampled:
            return
        started = time.perf_counter()
        episode = sampled[laws.step * STRIDE % len(sampled)]
        stretches = episode_samples(episode)
        sample = beginning(loaded, stretches[laws.step % len(stretches)])
        scores = plain_scores(loaded, self.sampling, sample).double().cpu()
        laws.seconds += time.perf_counter() - started
        if not sample.actions:
            laws.not_measured["draws"] = "an answer behind a shorter prompt"
        elif self.sampling.greedy:
            laws.check("draws", likeliest_again, scores, sample, 1e-3 if self.exact else 0.5)
        else:
            laws.check("sampler", logprobs_again, scores, sample, 5e-4 if self.exact else 0.5)
            # Calls of agents of somebody else come in any order: their numbers are drawn by the content of what is read.
            if not self.spec.stepping.by_content and not self.spec.foreign:
                laws.check("draws", self.drawn_again, scores.exp(), episode, sample)

    def drawn_again(self, chances: Tensor, episode: Episode, sample: TrainingSample) -> Pairs:
        """The random number of each token, a function of its key, group, member and turn alone, lies within the token's share of the distribution."""
        rows = torch.arange(len(chances))
        above = chances.cumsum(-1)[rows, sample.learned_ids]
        below = above - chances[rows, sample.learned_ids]
        distances: list[Tensor] = []
        # An episode does not say in which round of dynamic sampling it was rolled out: one of them must fit.
        rounds = [()] if self.rounds is None else [(number,) for number in range(self.rounds + 1)]
        for ending in rounds:
            points = torch.zeros_like(above)
            for turn, rows in sample.by_turn():
                seed = child_seed(self.seed, *self.key, *ending, episode.group, episode.member, turn)
                numbers = np.random.default_rng(seed).random(self.sampling.max_new_tokens)
                points[rows] = torch.from_numpy(numbers)[sample.offsets[rows]]
            distances.append(torch.maximum(below - points, points - above))
        distance = min(distances, key=lambda values: float(values.max()))
        worst = int(distance.argmax())
        turn, offset = int(sample.turns[worst]), int(sample.offsets[worst])
        outside = "how far its random number (seed, key of the step, group, member) lies outside of the token's share"
        place = f"group {episode.group}, member {episode.member}, turn {turn}, token {offset}: {outside}"
        yield Pair(max(0.0, float(distance[worst])), 0.0, place, 1e-3 if self.exact else 0.1)


def _is_sampled(episode: Episode) -> list[bool]:
    """Says of each turn that was delivered whether it has tokens; nothing of an episode that has a turn without them."""
    sampled = [turn.tokens is not None for turn in episode.turns if not turn.undelivered]
    return sampled if all(sampled) else []


def logprobs_again(scores: Tensor, sample: TrainingSample, rounding: float) -> Pairs:
    """The log-probs of the sampled tokens; ``scores`` (A, V)."""
    distance = (scores.gather(1, sample.learned_ids[:, None])[:, 0] - sample.logprobs).abs().mean()
    place = f"the mean difference of log-probs of a sample of group {sample.key[0]} (temperature, top_p, what was read)"
    yield Pair(float(distance), 0.0, place, rounding)


def likeliest_again(scores: Tensor, sample: TrainingSample, rounding: float) -> Pairs:
    """A greedy answer has the likeliest token at each place, and says that it was certain."""
    below = scores.max(-1).values - scores.gather(1, sample.learned_ids[:, None])[:, 0]
    yield Pair(
        float(below.max()),
        0.0,
        "how far a token of a greedy answer lies below the likeliest one (temperature)",
        rounding,
    )
    yield Pair(float(sample.logprobs.abs().max()), 0.0, "the log-prob of a token of a greedy answer (temperature)")


def played_again(spec: EnvironmentSpec, groups: Groups) -> Pairs:
    """The answers of stored episodes, given to a new environment: it shows, pays and ends as was stored, unless it differs from itself."""
    stepping = spec.stepping
    takes_time = stepping.threads or stepping.limited or stepping.rounds
    if spec.foreign or spec.max_sessions is not None or takes_time:
        raise NotMeasured("an environment that runs in this process and takes no time")
    usable = [episode for episode in episodes_of(groups)[::-1] if episode.failure is None and not episode.tools]
    if not usable:
        raise NotMeasured("an episode without tools that did not fail")
    # Answers that are refused come first: what becomes of these is rarely seen.
    usable.sort(key=lambda episode: all(turn.valid for turn in episode.turns))
    started = time.perf_counter()
    for number, episode in enumerate(usable[:_EPISODES]):
        if number > 1 and time.perf_counter() - started > _SECONDS:
            return
        stored, again = _stored(episode), _replayed(spec, episode)
        if again != list(stored.values()) and again != _replayed(spec, episode):
            raise NotMeasured("an environment that repeats itself")
        for (name, value), other in zip(stored.items(), again, strict=True):
            yield holds(value == other, f"{name}, of {member_of(episode)}, is what a new environment gives")


def _stored(episode: Episode) -> dict[str, Any]:
    """What an environment made of an episode, by name."""
    seen: dict[str, Any] = {"system prompt": episode.system_prompt}
    for turn in episode.turns:
        seen[f"what turn {turn.index} showed"] = (turn.observation, turn.messages, plain(turn.data), turn.restart)
        effect = turn.env_reward, turn.valid, turn.error, turn.spans, plain(turn.action_data)
        seen[f"what became of the answer of turn {turn.index}"] = effect
    seen["outcome"] = plain(episode.outcome)
    # The limit of tokens stands in place of the environment's own end.
    if episode.stop is not StopReason.TOKEN_LIMIT:
        seen["the end"] = episode.stop
    return seen


def _replayed(spec: EnvironmentSpec, episode: Episode) -> list[Any]:
    """The same of the same answers in a new environment, in this order. Raises NotMeasured if it cannot take them."""
    environment = blocking(spec.make())
    task = episode.task
    try:
        rewards = _step_rewards(environment)
        shown: Observation = environment.reset(seed=task.seed, **task.options)
        seen: list[Any] = [environment.system_prompt or ""]
        for turn in episode.turns:
            seen.append((shown.text, shown.messages, plain(shown.data), shown.restart))
            shown = environment.step(turn.action)
            reward = rewards[-1] if rewards else shown.reward
            data = plain(shown.action_data)
            seen.append((reward, shown.action_valid, shown.action_error, shown.action_spans, data))
        seen.append(plain(dict(environment.outcome() or {})))
        if episode.stop is not StopReason.TOKEN_LIMIT:
            seen.append(_end(shown))
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
