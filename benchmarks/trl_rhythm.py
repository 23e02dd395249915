"""One GRPO step on Rhythm, Gradus against TRL with its own way to play: ``rollout_func`` and transformers' ``generate`` each turn.

0.9 million parameters (d 128, 4 layers), float32, two threads. Playing, environment, loss and update are all timed. ``--turns``
beyond 28 chains weeks of different persons into one episode, to see what long episodes cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from _against_trl import Alternate, OurSteps, arguments, compare, nano, our_config, trl_trainer

from gradus.core import Environment, EnvironmentSpec, Episode, Grader, Observation, Reward, RewardTerm
from gradus.policies.local.renderers import ChatRenderer
from gradus.policies.nano.model import NanoConfig
from gradus_worlds.rhythm import load

SIZE, NEW, RATE, WEEK = 8, 5, 3e-4, 28
ROWS = 16  # of one of TRL's training passes
SHAPE = NanoConfig(hidden_size=128, layers=4, heads=4, intermediate_size=384, context=8192)


class Weeks:
    """Several weeks in a row, each with another person, as one episode of ``turns`` turns."""

    def __init__(self, make: Callable[[], Environment], turns: int) -> None:
        self._inner, self._turns, self._taken, self._seed = make(), turns, 0, 0

    @property
    def system_prompt(self) -> str:
        return self._inner.system_prompt

    def reset(self, *, seed: int | None = None, **options: Any) -> Observation:
        self._taken, self._seed = 0, seed or 0
        return self._inner.reset(seed=self._seed, **options)

    def step(self, action: str) -> Observation:
        self._taken += 1
        seen = self._inner.step(action)
        if self._taken >= self._turns:
            return replace(seen, terminated=True)
        if seen.terminated:
            fresh = self._inner.reset(seed=self._seed + 1_000_003 * (self._taken // WEEK))
            return replace(fresh, reward=seen.reward, action_valid=seen.action_valid, action_error=seen.action_error)
        return seen

    def outcome(self) -> Mapping[str, Any]:
        return {}

    def close(self) -> None:
        self._inner.close()


def worth(reward: float | None, answer: str) -> float:
    """What a turn is paid: what the person felt, and a little for a long answer.

    A fresh model says nothing that Rhythm understands, so all members of a group would fare alike, and Gradus would rightly
    skip the training that is to be measured.
    """
    return (reward or 0.0) + 0.01 * len(answer)


def reward(episodes: Sequence[Episode]) -> Sequence[Reward]:
    """The worth of all turns."""
    result: list[Reward] = []
    for episode in episodes:
        paid = [worth(turn.env_reward, turn.action) for turn in episode.turns]
        terms = tuple((RewardTerm(component="felt", value=value),) for value in paid)
        result.append(Reward(grader="felt", value=sum(paid), terms=terms))
    return result


def spec(turns: int) -> EnvironmentSpec:
    """Rhythm with episodes of ``turns`` turns, graded by their reward."""
    rhythm = load()
    felt = Grader(name="felt", summary="worth of all turns", weights={"felt": 1.0}, compute=reward, per_turn=True)
    return replace(
        rhythm,
        make=lambda: Weeks(rhythm.make, turns),
        graders={"felt": felt},
        default_grader="felt",
        max_turns=turns,
        metrics=None,
        true_reward=lambda episode: episode.env_return,
    )


@dataclass
class _Play:
    """One episode in TRL's hands."""

    environment: Environment
    ids: list[int]
    prompt: int
    mask: list[int] = field(default_factory=list)
    reward: float = 0.0
    done: bool = False


class Rollout:
    """``rollout_func``: all episodes turn by turn, each turn one ``generate`` over the padded histories."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        self._spec = spec
        self._renderer: ChatRenderer | None = None

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        self._renderer = self._renderer or ChatRenderer(trainer.processing_class)
        plays = [self._open(int(prompt[0]["content"])) for prompt in prompts]
        model = trainer.accelerator.unwrap_model(trainer.model)
        while waiting := [play for play in plays if not play.done]:
            for play, answer in zip(waiting, self._generate(model, trainer, waiting), strict=True):
                self._take(play, answer)
        return {
            "prompt_ids": [play.ids[: play.prompt] for play in plays],
            "completion_ids": [play.ids[play.prompt :] for play in plays],
            "logprobs": None,
            "env_mask": [play.mask for play in plays],
            "felt": [play.reward for play in plays],
        }

    def _open(self, seed: int) -> _Play:
        assert self._renderer is not None
        environment = self._spec.make()
        seen = environment.reset(seed=seed)
        ids = list(self._renderer.first(environment.system_prompt, seen.text))
        return _Play(environment=environment, ids=ids, prompt=len(ids))

    @torch.no_grad()
    def _generate(self, model: Any, trainer: Any, waiting: Sequence[_Play]) -> list[list[int]]:
        tokenizer = trainer.processing_class
        longest = max(len(play.ids) for play in waiting)
        pads = [longest - len(play.ids) for play in waiting]
        ids = torch.tensor([[tokenizer.pad_token_id] * pad + play.ids for pad, play in zip(pads, waiting, strict=True)])
        mask = (torch.arange(longest) >= torch.tensor(pads)[:, None]).long()
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=NEW,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        answers: list[list[int]] = []
        for row in out[:, longest:].tolist():
            end = row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else len(row)
            answers.append(row[:end])
        return answers

    def _take(self, play: _Play, answer: list[int]) -> None:
        assert self._renderer is not None
        text = self._renderer.decode(answer)
        seen = play.environment.step(text)
        play.reward += worth(seen.reward, text)
        play.ids += answer
        play.mask += [1] * len(answer)
        if seen.terminated:
            play.done = True
            return
        stopped = answer[-1] == self._renderer.stop_id
        frame = [*([] if stopped else [self._renderer.stop_id]), *self._renderer.following(seen.text)]
        play.ids += frame
        play.mask += [0] * len(frame)


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--turns", type=int, default=28)
    parser.add_argument("--groups", type=int, default=16)
    options = parser.parse_args()
    steps = options.steps + 1
    environment = spec(options.turns)

    def ours(folder: Path) -> OurSteps:
        shape = {"groups": options.groups, "group_size": SIZE, "token_budget": 8192}
        config = our_config(options, new=NEW, lr=RATE, credit="episode", **shape)
        return OurSteps(nano(folder, environment, SHAPE), environment, config, folder / "run")

    def theirs(folder: Path, watch: Alternate) -> Any:
        seeds = [environment.train_task(index).seed for index in range(options.groups * steps)]
        return trl_trainer(
            nano(folder, environment, SHAPE),
            [str(seed) for seed in seeds],
            lambda felt, **_: felt,
            folder / "trl",
            steps=steps,
            groups=options.groups,
            group_size=SIZE,
            max_tokens=24 * options.turns,
            lr=RATE,
            rows=ROWS,
            rollout=Rollout(environment),
            callback=watch,
            bf16=options.bf16,
        )

    again = ["--turns", str(options.turns), "--groups", str(options.groups)]
    compare(f"trl_rhythm_{options.turns}", options, ours, theirs, again)


if __name__ == "__main__":
    main()
