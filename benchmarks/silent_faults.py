"""Faults of RL trainers, put one at a time into a small healthy GRPO run: which are refused, stopped or named, and which are missed.

Each run has six steps of a nano model on one core. A fault counts as found if an error or a rule of the doctor comes within five steps and
its text or remedy has the words that lead to the cause. Healthy runs follow, of several sizes, seeds and settings; each alarm there is false.

    python benchmarks/silent_faults.py --healthy 200
"""

from __future__ import annotations

import argparse
import copy
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from _shared import print_line
from _silent_run import (
    LORA,
    ROWS,
    SHAPES,
    Case,
    Lamps,
    cached,
    false_alarms,
    right,
    sampler_beside,
    shifted,
    taught,
    watch,
)

import gradus
from gradus.core import EnvironmentSpec, Group, Vocabulary
from gradus.core.errors import GradusError
from gradus.policies.local import policy
from gradus.policies.nano.model import make_nano
from gradus.training import grpo, learner
from gradus.training.data import credit, tasks
from gradus.training.data.sequences import TrainingSample
from gradus.training.engine import update
from gradus.training.run import splits

WITHIN = 5
Call = Callable[..., Any]
Inject = Callable[[Case], AbstractContextManager[Any]]


def wrapped(where: Any, name: str, make: Callable[[Call], Call], **settings: Any) -> Inject:
    """Puts what ``make`` returns of a function into its place, and sets what the fault needs to show."""

    def inject(case: Case) -> AbstractContextManager[Any]:
        case.settings |= settings
        return patch.object(where, name, make(getattr(where, name)))

    return inject


def then(change: Call) -> Callable[[Call], Call]:
    """Changes what a function returns."""
    return lambda real: lambda *args, **options: change(real(*args, **options))


def samples(change: Callable[[TrainingSample], TrainingSample]) -> Inject:
    """Episodes become other training samples than they should."""
    return wrapped(credit, "episode_samples", then(lambda made: [change(each) for each in made]))


def without_ends(sample: TrainingSample) -> TrainingSample:
    """Leaves out the last token of each answer."""
    last = torch.cat([sample.turns[1:] != sample.turns[:-1], torch.tensor([True])])
    return sample.only(~last)


def with_more(sample: TrainingSample, more: Any) -> TrainingSample:
    """Trains the tokens at ``more``, too."""
    order = torch.cat([sample.positions, more]).argsort()
    columns = {
        name: torch.cat([own := getattr(sample, name), torch.zeros(len(more), dtype=own.dtype)])[order]
        for name in ("logprobs", "turns", "offsets")
    }
    return replace(sample, positions=torch.cat([sample.positions, more])[order], legal=None, **columns)


def less_read(sample: TrainingSample) -> TrainingSample:
    """Drops half of what was read after the first answer."""
    assert sample.read is not None
    kept = torch.ones(len(sample), dtype=torch.bool)
    kept[sample.read[: len(sample.read) // 2]] = False
    return replace(sample, ids=sample.ids[kept], positions=(kept.cumsum(0) - 1)[sample.positions], read=None)


def advantages(values: Callable[[list[Any]], list[Any]]) -> Inject:
    """The samples get other advantages than they should."""

    def change(made: list[TrainingSample]) -> list[TrainingSample]:
        given = values([each.advantages for each in made])
        return [replace(one, advantages=value) for one, value in zip(made, given, strict=True)]

    return wrapped(learner, "credit_groups", then(change))


def next_rows(given: list[Any]) -> list[Any]:
    """Gives each sample the mean advantage of the next one."""
    means = [float(each.mean()) for each in given]
    return [torch.full_like(each, mean) for each, mean in zip(given, means[1:] + means[:1], strict=True)]


def by_columns(real: Call) -> Call:
    """The members of each place become a group, as when a batch is read by columns."""

    def credited(groups: Sequence[Group], *args: Any, **options: Any) -> Any:
        columns = list(zip(*(group.episodes for group in groups), strict=True))
        return real([Group(task=each[0].task, episodes=each) for each in columns], *args, **options)

    return credited


def without_baseline(real: Call) -> Call:
    """The advantage is the reward, from which nothing is taken off."""

    def credited(groups: Sequence[Group], *args: Any, **options: Any) -> Any:
        values = [each.reward.value or 0.0 for each in credit.graded_episodes(groups) if each.reward]
        made = real(groups, *args, **options)
        return [replace(one, advantages=torch.full((one.actions,), values[one.episode])) for one in made]

    return credited


def scored_with(**changes: Any) -> Callable[[Call], Call]:
    """The trainer computes log-probs by another sampling than the sampler's."""

    def make(real: Call) -> Call:
        return lambda model, batch, sampling, **more: real(model, batch, sampling.model_copy(update=changes), **more)

    return make


def served(late: int | None, **settings: Any) -> Inject:
    """A server samples, whose weights come ``late`` steps too late; None for never."""

    def inject(case: Case) -> AbstractContextManager[Any]:
        case.settings |= settings
        sampler_beside(case, late)
        return patch.dict(case.settings)

    return inject


def always_the_first(real: Call) -> Call:
    """The first step's episodes are trained on again and again."""
    first: list[Any] = []

    def take(*args: Any, **options: Any) -> Any:
        first.append(first[0] if first else real(*args, **options))
        return first[0]

    return take


def other_words(real: Call) -> Call:
    """The sampler's ids stand for other words than the trainer's."""

    def act(session: Any, requests: Any) -> Any:
        words, answers = len(session._policy.loaded.tokenizer), real(session, requests)
        moved = [tuple((each + 1) % words for each in answer.tokens.action_ids) for answer in answers]
        return [
            replace(answer, tokens=replace(answer.tokens, action_ids=ids))
            for answer, ids in zip(answers, moved, strict=True)
        ]

    return act


def nothing(case: Case) -> AbstractContextManager[Any]:
    """Changes nothing inside the trainer."""
    return patch.dict(case.settings)


def lost_on_resume(case: Case) -> None:
    """A run of three steps goes on with an optimizer that is new."""
    case.settings["checkpoint_every"] = 3

    def broken_off(real: Call) -> Call:
        def write(loop: Any, record: Any) -> None:
            if record["step"] == 4:
                raise KeyboardInterrupt
            real(loop, record)

        return write

    with wrapped(grpo.GrpoLoop, "write", broken_off)(case), suppress(KeyboardInterrupt):
        case.train()
    stored = max(case.folder.glob("checkpoints/step-*")) / "optimizer.pt"
    torch.save({**torch.load(stored, weights_only=True), "state": {}}, stored)
    case.train(resume=True)


def audited(reward: Call) -> Callable[[Case], None]:
    """`gradus run` and `gradus.train` audit the rewards first, and train nothing if the audit fails."""

    def run(case: Case) -> None:
        result = gradus.audit(gradus.one_turn(ROWS, rewards=[reward])).result
        if result.verdict != "pass":
            raise GradusError(
                "; ".join(f"{each.subject}: {each.evidence}" for each in result.checks if each.status == "fail")
            )

    return run


def leaking(case: Case) -> None:
    """The tasks that validate are not kept from training."""
    case.spec = gradus.one_turn(ROWS, rewards=[right])
    case.model = make_nano(case.folder / "rows", Vocabulary(words=("+", *map(str, range(17)))), SHAPES[0], seed=3)
    case.settings |= {"validation_every": 2, "validation_tasks": 16, "checkpoint_every": 2}
    in_order = patch.object(tasks, "_order", lambda config: lambda place: place)
    with patch.object(splits, "reserved_ids", lambda *_: frozenset()), in_order:
        case.train()


@dataclass(frozen=True)
class Fault:
    """``words``: a pattern; an alarm without it does not lead to the cause. ``met``: an issue in which users met it. ``run``: how it
    runs, if not as one training.
    """

    name: str
    words: str
    inject: Inject
    met: str = ""
    run: Callable[[Case], None] = Case.train


ORDER = "alone and .* in one call|in another order"
MASK = "mask covers"
# fmt: off
FAULTS = (
    Fault("adapters never delivered to the sampler", "new weights", served(None, lora=LORA, lr=2e-3), "verl#7495"),
    Fault("sampler's weights a step too old", "new weights", served(1), "TRL#5312"),
    Fault("temperature not in the log-probs", "temperature", wrapped(update, "score_tokens", scored_with(temperature=1.0)), "TRL#4159"),
    Fault("top_k not in the log-probs", "top_k",
          wrapped(update, "score_tokens", scored_with(top_k=None), sampling={"max_new_tokens": 8, "top_k": 3})),
    Fault("an observation dropped", "token that was read", samples(less_read), "TRL#6067"),
    Fault("mask shifted by one", MASK, samples(lambda one: replace(one, positions=one.positions - 1))),
    Fault("EOS untrained", MASK, samples(without_ends)),
    Fault("prompt trained", MASK, samples(lambda one: with_more(one, torch.arange(1, int(one.positions[0]))))),
    Fault("tool results trained", MASK, samples(lambda one: with_more(one, one.read))),
    Fault("sampler and trainer have other tokenizers", "tokenizer", wrapped(policy.LocalSession, "act", other_words)),
    Fault("advantages shifted by a row", "order of rows", advantages(next_rows)),
    Fault("advantage sign flipped", "sign", advantages(lambda given: [-each for each in given])),
    Fault("no baseline: the reward is the advantage", "advantage", wrapped(learner, "credit_groups", without_baseline)),
    Fault("groups mixed", "a group has episodes of", wrapped(learner, "credit_groups", by_columns)),
    Fault("clip inert", "nothing is clipped",
          wrapped(update.UpdateTrainer, "old_logprobs", lambda real: lambda old, indexes, sampled, now: now.detach(), epochs=3)),
    Fault("learning rate zero", "learning rate was 0", wrapped(grpo, "lr_at", then(lambda lr: 0.0))),
    Fault("optimizer holds other parameters", "holds other parameters",
          wrapped(learner, "make_optimizer", lambda real: lambda model, config: real(copy.deepcopy(model), config))),
    Fault("optimizer's state lost on resume", "optimizer.pt", nothing, run=lost_on_resume),
    Fault("the first batch trained again and again", "earlier step", wrapped(grpo.GrpoLoop, "roll_out", always_the_first)),
    Fault("gradient of one process lost", "gradient of a process",
          wrapped(update, "share", lambda real: lambda count: range(count // 2))),
    Fault("all members sampled with one seed", "seed",
          wrapped(policy, "turn_uniforms", lambda real: lambda key, turn, count: real(key[:-1], turn, count))),
    Fault("truncated answers scored as wrong", "token or turn budget",
          wrapped(grpo, "lr_at", then(float), sampling={"max_new_tokens": 1}), "TRL#5697"),
    Fault("reward rows shifted by one", ORDER, nothing, run=audited(shifted)),
    Fault("reward cached by prompt", ORDER, nothing, run=audited(cached())),
    Fault("validation tasks in training", "in train and in validation", nothing, run=leaking),
)
# fmt: on


def judge(fault: Fault, told: Sequence[tuple[int, str, str]]) -> tuple[str, str]:
    """What became of a fault (refused, error, named, noticed, missed), and the words that say so."""
    soon = [each for each in told if each[0] <= WITHIN]
    leading = [each for each in soon if re.search(fault.words, each[2])]
    for step, how, text in leading[:1]:
        if how == "error":
            return ("refused at the start" if step == 0 else f"stopped in step {step}"), text
        return f"named at step {step} ({how})", text
    return (f"noticed only ({soon[0][1]})", soon[0][2]) if soon else ("missed", "")


def found_of(folder: Path, spec: EnvironmentSpec, model: Path, only: str) -> dict[str, str]:
    """Puts in every fault once and prints a row of the table for it; returns fault -> what became of it."""
    found: dict[str, str] = {}
    print("| fault | met in | what Gradus does |\n|---|---|---|")
    for number, fault in enumerate(each for each in FAULTS if only in each.name):
        case = Case(folder=folder / f"fault-{number}", model=model, spec=spec)
        case.folder.mkdir()
        with fault.inject(case):
            outcome, text = judge(fault, watch(case, fault.run))
        found[fault.name] = outcome
        print(f"| {fault.name} | {fault.met} | {outcome} |", flush=True)
        print(f"    {text}", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--healthy", type=int, default=40, help="healthy runs")
    parser.add_argument("--only", default="", help="faults whose names have this")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="silent-") as name:
        folder = Path(name)
        spec = gradus.load_environment(Lamps)
        models = [taught(folder / f"{shape.hidden_size}", spec, shape) for shape in SHAPES]
        found = found_of(folder, spec, models[0], given.only)
        alarms = false_alarms(folder, spec, models, given.healthy)
    led = sum(outcome.startswith(("refused", "stopped", "named")) for outcome in found.values())
    print(
        f"{led} of {len(found)} faults found within {WITHIN} steps; {len(alarms)} of {given.healthy} healthy runs had an alarm"
    )
    more = {"healthy": given.healthy, "false_alarms": len(alarms), "alarms": Counter(alarms), "found": found}
    share = led / max(1, len(found))
    print_line("silent_faults", ratio=share, ours=led, other=len(found), unit="faults", runs=len(found), **more)


if __name__ == "__main__":
    main()
