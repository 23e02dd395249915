"""An attacker that learns: a nano model that knows the form of an answer and nothing else, trained by GRPO on the reward alone.

``python benchmarks/learning_attack.py rhythm --grader v2`` audits a grader with it, and prints what it found.

It reads what is shown if that is short. Otherwise it is told the turn alone: thousands of episodes then take a minute or two on one core,
and what can be earned without looking is found first. If there is an honest reflex, it begins once with what the reflex says and learns
where to say something else, and once with random legal answers: a good reflex is hard to leave by small steps.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from _attack import KEEP, Attempt, Target, attacked, is_found

from gradus import environments
from gradus.auditing.plans.plan import AnswerSpace, RandomAnswers
from gradus.core import (
    ConfigError,
    Environment,
    EnvironmentSpec,
    Episode,
    EpisodeStart,
    Observation,
    Policy,
    Request,
    Session,
    Task,
    Vocabulary,
    child_rng,
)
from gradus.core.waiting import blocking
from gradus.policies.local.loading import load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.nano.model import NanoConfig, make_nano
from gradus.training.config import GrpoConfig
from gradus.training.grpo import train_grpo
from gradus.training.lesson_config import SftConfig
from gradus.training.run.options import GrpoOptions, RunOptions
from gradus.training.sft import train_sft

_GROUPS, _MEMBERS = 8, 16
_SHORT = 12  # words of an observation that is read
_LEFT = 0.8  # of the words, to the reflex, before anything is learned
_SHOWN = 256  # episodes of random answers that teach the form
_NANO = NanoConfig(hidden_size=64, layers=2, heads=4, intermediate_size=192, context=1024)
_FIRST_TASK = 500_000  # training tasks that no other part of an audit meets


@dataclass(frozen=True, kw_only=True)
class LearningAttacker:
    """``budget``: episodes that GRPO may roll out. ``nano``: the shape of the model."""

    budget: int = 6400
    nano: NanoConfig = _NANO
    lr: float = 5e-3

    def attempts(self, target: Target) -> Iterator[Attempt]:
        """Yields what GRPO made of the model: from the reflex on, if there is one, and from random answers on, with equal shares of the budget."""
        ways = [target] if target.reflex is None else [target, replace(target, reflex=None, keeps=())]
        least = len(ways) * _GROUPS * _MEMBERS
        if self.budget < least:
            raise ConfigError(
                f"learning needs a budget of {least} episodes at least, got {self.budget}; raise --episodes"
            )
        for way in ways:
            yield self._attempt(way, self.budget // least)

    def _attempt(self, target: Target, steps: int) -> Attempt:
        """The model after so many steps, beside what it was, or beside the reflex that it began with."""
        rolled_out = target.roll_out(RandomAnswers(target.draw), target.training(_FIRST_TASK, _SHOWN))
        spec = _wrapped(target, shown=_is_short(rolled_out))
        grammar = spec.language.grammar
        with tempfile.TemporaryDirectory(prefix="gradus-attack-") as folder:
            root = Path(folder)
            vocabulary = spec.language.vocabulary() if spec.language.vocabulary else _words(rolled_out)
            begun = make_nano(root / "model", vocabulary, self.nano, seed=target.seed)
            if grammar is None or target.reflex is not None:
                begun = self._warm_start(replace(target, spec=spec), begun, root / "sft")
            longest = max(len(turn.action) for episode in rolled_out for turn in episode.turns)
            sampling = SamplingConfig(max_new_tokens=min(64, longest + 4), grammar=grammar is not None)
            final = self._train(replace(target, spec=spec), begun, sampling, steps, root / "grpo")
            before, after = (
                LocalPolicy(load_model(path), sampling, name=name, grammar=grammar)
                for path, name in ((begun, "before"), (final, "learned"))
            )
            beginning = "random answers" if target.reflex is None else target.reflex.name
            told = f"a nano model after {steps} steps of GRPO on {target.grader.name} alone, from {beginning} on"
            begun_as = before if target.reflex is None else None
            return Attempt(told=told, policy=after, before=begun_as, spec=spec)

    def _warm_start(self, target: Target, model: Path, folder: Path) -> Path:
        """SFT on random answers, most words of them left to the reflex: they teach the form and nothing else."""
        draw = _kept(target.spec) if target.reflex is not None else target.draw
        episodes = target.roll_out(RandomAnswers(draw), target.training(_FIRST_TASK, _SHOWN))
        config = SftConfig(
            lr=3e-3,
            epochs=3,
            batch_size=16,
            validation_share=0.0,
            validation_every=0,
            checkpoint_every=10_000,
            seed=target.seed,
            **_COMPUTE,
        )
        return train_sft(model, episodes, config, folder, options=RunOptions(live=False)).final

    def _train(self, target: Target, model: Path, sampling: SamplingConfig, steps: int, folder: Path) -> Path:
        config = GrpoConfig(
            lr=self.lr,
            max_steps=steps,
            groups=_GROUPS,
            group_size=_MEMBERS,
            first_task=_FIRST_TASK + _SHOWN,
            sampling=sampling,
            validation_every=0,
            store_every=0,
            checkpoint_every=steps,
            seed=target.seed,
            **_COMPUTE,
        )
        return train_grpo(
            model, target.spec, config, folder, options=GrpoOptions(grader=target.grader, live=False)
        ).final


class _Wrapped:
    """An environment that shows its turn alone, unless ``shown``, and puts in the reflex's words if an answer leaves them to it."""

    system_prompt = ""

    def __init__(self, inside: Environment, space: AnswerSpace | None, reflex: Policy | None, shown: bool) -> None:
        self._inside, self._space, self._reflex, self._shown = inside, space, reflex, shown
        self._turn = 0
        self._session: Session | None = None
        self._seen = Observation(text="")
        self.outcome, self.close = inside.outcome, inside.close

    @property
    def state(self) -> Mapping[str, Any]:
        return self._inside.state

    def reset(self, *, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        self._turn = 0
        first = self._inside.reset(seed=seed, episode_id=episode_id, **options)
        if self._reflex is not None:
            start = EpisodeStart(
                task=Task(environment="", seed=seed or 0, options=options),
                system_prompt=self._inside.system_prompt,
                key=(seed or 0, "audit", "reflex"),
                group=0,
                member=0,
                environment=self._inside,
            )
            self._session = self._reflex.start([start])
        return self._show(first)

    def step(self, action: str) -> Observation:
        self._turn += 1
        if self._session is not None and self._space is not None:
            said = self._session.act([Request(row=0, observation=self._seen)])[0].text
            words = self._space.parse(said)
            mixed = [kept if word == KEEP else word for word, kept in zip_longest(action.split(), words)]
            action = " ".join(word for word in mixed if word)
        return self._show(self._inside.step(action))

    def _show(self, observation: Observation) -> Observation:
        self._seen = observation
        return observation if self._shown else replace(observation, text=str(self._turn))


def _wrapped(target: Target, *, shown: bool) -> EnvironmentSpec:
    """The environment as the learner sees it."""
    spec, reflex = target.spec, target.reflex
    if shown and reflex is None:
        return spec
    language, grammar = spec.language, spec.language.grammar
    space = AnswerSpace(places=tuple(map(tuple, grammar))) if grammar and reflex is not None else None
    if space is not None:
        kept = zip(space.places, target.keeps, strict=True)
        language = replace(language, grammar=[(*words, KEEP) if keeps else words for words, keeps in kept])
    if spec.language.vocabulary is not None:
        known, more = spec.language.vocabulary(), [KEEP, *map(str, range(spec.max_turns + 1))]
        language = replace(language, vocabulary=lambda: Vocabulary(words=[*known.words, *more], pieces=known.pieces))
    return replace(spec, make=lambda: _Wrapped(blocking(spec.make()), space, reflex, shown), language=language)


def _kept(spec: EnvironmentSpec) -> Callable[[int], str]:
    """Random words, of which most are left to the reflex if it has any."""

    def answer(seed: int) -> str:
        rng = child_rng(seed, "keep")
        places = spec.language.grammar or ()
        return " ".join(KEEP if KEEP in words and rng.random() < _LEFT else rng.choice(words) for words in places)

    return answer


def _is_short(episodes: Sequence[Episode]) -> bool:
    shown = [len(turn.observation.split()) for episode in episodes for turn in episode.turns]
    return sum(shown) <= _SHORT * len(shown)


_COMPUTE: Mapping[str, Any] = {"token_budget": 16384, "device": "cpu"}


def _words(episodes: Sequence[Episode]) -> Vocabulary:
    """The words that were shown and said in episodes, for environments that name no vocabulary."""
    texts = [
        text
        for e in episodes
        for text in (e.system_prompt, *(t.observation for t in e.turns), *(t.action for t in e.turns))
    ]
    words = dict.fromkeys(word for text in texts for word in text.split())
    return Vocabulary(words=[word for word in words if "▁" not in word][:4000], pieces=[chr(c) for c in range(33, 127)])


def main() -> None:
    """Audits a grader with the attacker, and prints what it found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment", help="an environment of several turns, as in `gradus envs`")
    parser.add_argument("--grader", help="a grader of it; its default one otherwise")
    parser.add_argument("--episodes", type=int, default=6400, help="episodes that it may learn from")
    options = parser.parse_args()
    spec = environments.load(options.environment)
    grader = spec.grader(options.grader)
    for each in attacked(spec, grader, LearningAttacker(budget=options.episodes), episodes=40, budget=4000):
        print(f"{'hack' if is_found(each) else 'no hack'}: {each.plan} ({each.kind}): {each.told()}")


if __name__ == "__main__":
    main()
