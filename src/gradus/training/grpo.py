"""GRPO: train a model in an environment and write what came of it to a run folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradus.core import EnvironmentSpec, Grader, GradusError, Policy
from gradus.policies.local.loading import LoadedModel
from gradus.training.config import GrpoConfig
from gradus.training.distributed.processes import world
from gradus.training.engine.loss_step import prepare_model
from gradus.training.grpo_loop import GrpoLoop, PushWeights
from gradus.training.run.alerts import Alarm, OnAlert
from gradus.training.run.folder import RunFolder
from gradus.training.run.interrupt import Interrupt
from gradus.training.run.live_screen import Screen
from gradus.training.run.schedule import Schedule

__all__ = ["GrpoResult", "train_grpo"]

FIGURES = {
    "reward": "reward_mean",
    "spread": "reward_std",
    "true_reward": "true_reward_mean",
    "kl": "kl",
    "entropy": "entropy",
    "zero-variance groups": "zero_variance_groups",
    "turns": "turns_mean",
    "tokens": "action_tokens_mean",
    "logp diff": "logp_diff_max",
    "gradient norm": "grad_norm",
    "tokens/s": "tokens_per_second",
    "seconds": "seconds.total",
}

Monitor = Callable[[Sequence[Mapping[str, Any]]], Sequence[Mapping[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class GrpoResult:
    """What a run came to. ``best`` and ``final`` are model folders. ``stopped``: the alert that ended the run early, or None."""

    steps: int
    best: Path
    final: Path
    best_step: int | None
    best_reward: float | None
    stopped: str | None
    seconds: float


def train_grpo(
    model: LoadedModel | str | Path,
    spec: EnvironmentSpec,
    config: GrpoConfig,
    folder: Path | str,
    *,
    grader: str | Grader | None = None,
    schedule: Schedule | None = None,
    resume: bool = False,
    monitor: Monitor | None = None,
    on_alert: OnAlert = "warn",
    on_step: Callable[[Mapping[str, Any]], None] | None = None,
    on_record: Callable[[Mapping[str, Any]], None] | None = None,
    live: bool = True,
    sampler: Policy | None = None,
    push_weights: PushWeights | None = None,
) -> GrpoResult:
    """Train ``model`` in an environment and write metrics, checkpoints, episodes, ``best`` and ``final`` to ``folder``.

    ``grader``: its name in ``spec`` or a grader; None is the environment's default. ``schedule`` changes its weights, the
    learning rate and the optimizer from step to step; validation keeps the grader as it is, so that steps compare. ``monitor`` looks at all records of steps and validations
    after each step and returns alerts (rule, severity, evidence, remedy, and what it would adjust); ``on_alert`` says whether
    to write them down (warn), to stop at a severe one (stop), or to apply safe remedies (adjust). ``on_step`` is given every
    step's record, ``on_record`` all that goes to the metrics, in the process that writes. Resuming gives, bit for
    bit, the weights of an unbroken run. ``sampler`` plays in place of the model in this process (a server, say); its actions
    must carry token ids and log-probs, and ``push_weights`` is called with the weights and the step, before the first step and
    after each update, to bring them there. Validation stays in this process. Ctrl-C finishes the step, writes a checkpoint and raises KeyboardInterrupt.

    Raises ConfigError for what cannot be used as given, StorageError if a file cannot be written, TrainingError if training
    cannot go on; the run folder then still holds its last checkpoint.
    """
    config = config.model_copy(update={"max_turns": config.max_turns or spec.max_turns})
    run_folder = RunFolder(folder, writing=world().main, observer=on_record)
    judge = grader if isinstance(grader, Grader) else spec.grader(grader)
    if config.validation_condition is not None:
        spec.tasks(config.validation_condition, 1)  # an unknown name should fail now, not in ten minutes
    loaded = prepare_model(model, config)
    loaded = loaded.with_settings(sampling=config.sampling, environment=loaded.settings.environment or spec.name)
    context = {"model": str(loaded.path), "environment": spec.name, "grader": judge.name}
    run_folder.open(config, resume=resume, context=context)
    alarm = Alarm(monitor, on_alert)
    loop = GrpoLoop(
        loaded, spec, config, run_folder, judge, alarm, sampler=sampler, push_weights=push_weights, schedule=schedule
    )
    if resume:
        loop.restore()
    loop.sync_weights(loop.state.step)
    started = time.perf_counter()
    title = f"grpo {spec.name}"
    watched = {label: f"metrics.{key}" for label, key in spec.presentation.watched.items()}
    screen = Screen(
        title, steps=config.max_steps, figures={**FIGURES, **watched}, done=loop.state.step, live=live and world().main
    )
    try:
        with screen, Interrupt() as interrupt:
            for record in loop.train(screen, interrupt):
                screen.step(record)
                if on_step is not None:
                    on_step(record)
    except GradusError:
        run_folder.forget_beginning()
        raise
    loop.finish()
    return GrpoResult(
        steps=loop.state.step,
        best=run_folder.path / "best",
        final=run_folder.path / "final",
        best_step=loop.state.best_step,
        best_reward=loop.state.best_reward,
        stopped=loop.alarm.stopped,
        seconds=time.perf_counter() - started,
    )
