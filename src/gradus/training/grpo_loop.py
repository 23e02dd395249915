"""The GRPO loop: play groups, give credit, update, write down, validate, keep what is best."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gradus.core import ConfigError, EnvironmentSpec, Grader, Group, Policy
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.rollouts import write_episodes
from gradus.training.config import GrpoConfig
from gradus.training.data.credit import credit_groups
from gradus.training.data.step_rollouts import roll_out_step
from gradus.training.data.tasks import validation_tasks
from gradus.training.distributed.fsdp import shard, sync_inference_model
from gradus.training.distributed.processes import any_of, barrier, from_main
from gradus.training.engine.loss_step import autocast
from gradus.training.engine.optimizers import lr_at, make_optimizer
from gradus.training.engine.throughput import matmul_peak, training_flops
from gradus.training.engine.update import UpdateResult, policy_update
from gradus.training.run.alerts import Alarm
from gradus.training.run.checkpoints import Checkpoint, latest_checkpoint, load_checkpoint, save_checkpoint, save_model
from gradus.training.run.folder import RunFolder
from gradus.training.run.interrupt import Interrupt
from gradus.training.run.live_screen import Screen
from gradus.training.run.schedule import Schedule
from gradus.training.run.step_metrics import episode_metrics
from gradus.training.run.validation import chosen_reward, validate

__all__ = ["GrpoLoop", "PushWeights"]

PushWeights = Callable[[LoadedModel, int], None]


@dataclass
class _State:
    """What a checkpoint must remember besides weights and optimizer."""

    step: int = 0
    next_task: int = 0
    best_step: int | None = None
    best_reward: float | None = None
    alarm: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, Any] | None = None


class GrpoLoop:
    """One run. The model that plays is the model that is trained, or a whole copy of it where that is sharded over processes."""

    def __init__(
        self,
        loaded: LoadedModel,
        spec: EnvironmentSpec,
        config: GrpoConfig,
        folder: RunFolder,
        grader: Grader,
        alarm: Alarm,
        *,
        sampler: Policy | None = None,
        push_weights: PushWeights | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        self.loaded, self.spec, self.config, self.folder = loaded, spec, config, folder
        self.grader, self.alarm, self.schedule, self.push_weights = grader, alarm, schedule, push_weights
        self.step_grader = grader  # the grader under the weights of the step at hand
        self.reference = _reference(loaded, config)
        # A server samples instead; it needs whole weights from here only where adapters are merged into them.
        samples = sampler is None or bool(config.validation_every) or config.lora is not None
        self.inference_model = shard(loaded, samples=samples)
        self.optimizer = make_optimizer(loaded.model, config)
        self.policy: Policy = sampler or LocalPolicy(
            self.inference_model,
            config.sampling,
            name="grpo",
            batch_size=config.batch_size,
            grammar=spec.language.grammar,
        )
        self.state = _State()
        self.records: list[Mapping[str, Any]] = []

    # -- the loop -------------------------------------------------------------------------------------------------

    def train(self, screen: Screen, interrupt: Interrupt) -> Iterator[dict[str, Any]]:
        """Take the remaining steps and yield each one's record. Raises KeyboardInterrupt behind a checkpoint."""
        if self.state.step == 0:
            self.validate(screen)
        while self.state.step < self.config.max_steps and self.alarm.stopped is None:
            record = from_main(self.step(screen))
            self.state.step += 1
            self.folder.append(record)
            self.records.append(record)
            self.listen(screen)
            every = self.config.validation_every
            last = self.state.step == self.config.max_steps or self.alarm.stopped is not None
            if every and (self.state.step % every == 0 or last):
                self.validate(screen)
            asked = any_of(interrupt.asked)
            if self.state.step % self.config.checkpoint_every == 0 or last or asked:
                self.checkpoint()
            yield record
            if asked and not last:
                raise KeyboardInterrupt

    def step(self, screen: Screen) -> dict[str, Any]:
        """Play, credit and update once; returns the step's record."""
        started = time.perf_counter()
        step = self.state.step + 1
        lr = self.begin(step)
        with autocast(self.loaded, self.config):
            played = roll_out_step(
                self.spec,
                self.policy,
                self.config,
                self.step_grader,
                step=step,
                next_task=self.state.next_task,
                progress=lambda done, total: screen.phase(f"playing {done}/{total}"),
            )
        groups, seconds, self.state.next_task = played.groups, dict(played.seconds), played.next_task
        screen.phase("training")
        credited = credit_groups(groups, self.config, self.loaded.renderer)
        credit_seconds = time.perf_counter() - started - sum(seconds.values())
        update = policy_update(
            self.loaded, self.optimizer, credited, self.config, lr, reference=self.reference, key=(step,)
        )
        self.sync_weights(step)
        self.store(step, groups)
        seconds |= update.seconds
        seconds["train"] += max(0.0, credit_seconds)
        seconds["total"] = time.perf_counter() - started
        return self.scheduled(step, self.record(step, groups, update, seconds, lr))

    def sync_weights(self, step: int) -> None:
        """Let whoever plays have the weights as they are after ``step``."""
        sync_inference_model(self.inference_model, self.loaded)
        if self.push_weights is not None:
            self.push_weights(self.inference_model, step)

    def begin(self, step: int) -> float:
        """Do what the schedule says before a step; returns the step's learning lr."""
        lr = lr_at(self.config, step, self.config.max_steps) * self.alarm.lr_scale
        if self.schedule is None:
            return lr
        plan = self.schedule.plan(step)
        self.step_grader = self.schedule.grader(self.grader, step)
        if plan.reset_optimizer:
            self.optimizer = make_optimizer(self.loaded.model, self.config)
        return lr * ((plan.lr or self.config.lr) / self.config.lr)

    def scheduled(self, step: int, record: dict[str, Any]) -> dict[str, Any]:
        """Add the weights in force to a step's record and let the schedule see what came of them."""
        if self.schedule is None:
            return record
        plan = self.schedule.plan(step)
        self.schedule.observe(step, record["components"])
        return {**record, "stage": plan.stage, "weights": dict(plan.weights)}

    def record(
        self,
        step: int,
        groups: Sequence[Group],
        update: UpdateResult,
        seconds: Mapping[str, float],
        lr: float,
    ) -> dict[str, Any]:
        """One line of docs/metrics.md."""
        turns = [turn for group in groups for episode in group.episodes for turn in episode.turns if turn.tokens]
        sampled = sum(len(turn.tokens.action_ids) for turn in turns if turn.tokens)
        read = sum(len(turn.tokens.context_ids) for turn in turns if turn.tokens)
        peak = matmul_peak(self.loaded.device.type, torch.bfloat16 if self.config.autocast else self.loaded.dtype)
        flops = training_flops(self.loaded.model, update.passes)
        return {
            "kind": "step",
            "step": step,
            **episode_metrics(groups),
            **update.figures,
            "logp_diff_max": update.logp_diff_max,
            "grad_norm": update.grad_norm,
            "lr": lr,
            "action_tokens": sampled,
            "trained_tokens": update.trained_tokens,
            "tokens": sampled + read,
            "seconds": dict(seconds),
            "tokens_per_second": (sampled + read) / seconds["total"],
            "matmul_peak_share": flops / (peak * seconds["train"]) if update.passes else None,
        }

    # -- what happens beside ---------------------------------------------------------------------------------------

    def listen(self, screen: Screen) -> None:
        """Let the monitor look at the run and do what ``on_alert`` says."""
        for alert in self.alarm.listen(self.state.step, self.records):
            self.folder.append(alert)
            screen.note(
                f"{alert['severity']}: {alert['rule']}: {alert['evidence']} -> {alert['remedy']} ({alert['action']})"
            )

    def validate(self, screen: Screen) -> None:
        """Play the held-out tasks; keep the weights if they are the best so far."""
        if not self.config.validation_every:
            return
        screen.phase("validating")
        step = self.state.step
        tasks = validation_tasks(self.spec, self.config)
        records = from_main(validate(self.inference_model, self.spec, tasks, self.config, self.grader, step=step))
        reward = chosen_reward(records, self.config.best_by)
        if reward is not None and (self.state.best_reward is None or reward > self.state.best_reward):
            self.state.best_reward, self.state.best_step = reward, step
            self.save("best")
            records = [{**record, "best": True} for record in records]
            screen.note(f"best so far at step {step}: validation reward {reward:.4f}")
        if self.config.validation_condition is not None:
            tasks = self.spec.tasks(self.config.validation_condition)
            records += from_main(validate(self.inference_model, self.spec, tasks, self.config, self.grader, step=step))
        for record in records:
            self.folder.append(record)
        self.records += records

    def store(self, step: int, groups: Sequence[Group]) -> None:
        """Keep a sample of what was played, tokens and log-probs included."""
        if self.folder.writing and self.config.store_every and step % self.config.store_every == 0:
            sample = [episode for group in groups[: self.config.store_groups] for episode in group.episodes]
            path = self.folder.path / "episodes" / f"step-{step:06d}.jsonl"
            write_episodes(path, sample, environment=self.spec.name)

    def checkpoint(self) -> None:
        """Write down where the run stands."""
        self.state.alarm = self.alarm.state()
        self.state.schedule = None if self.schedule is None else self.schedule.state()
        state = {name: value for name, value in vars(self.state).items() if name != "step"}
        checkpoint = Checkpoint(step=self.state.step, offset=self.folder.offset(), state=state)
        keep = self.config.keep_checkpoints
        save_checkpoint(self.folder.path, checkpoint, self.loaded.model, self.optimizer, keep=keep)

    def restore(self) -> None:
        """Go back to the newest checkpoint; to the beginning if there is none."""
        path = latest_checkpoint(self.folder.path)
        if path is None:
            self.folder.truncate(0)
            return
        checkpoint = load_checkpoint(path, self.loaded.model, self.optimizer)
        self.folder.truncate(checkpoint.offset)
        barrier()
        self.state = _State(step=checkpoint.step, **checkpoint.state)
        self.alarm.restore(self.state.alarm)
        if (self.schedule is None) != (self.state.schedule is None):
            stored, now = ("none", "one") if self.state.schedule is None else ("one", "none")
            raise ConfigError(f"the run in {self.folder.path} had {stored} schedule of rewards, now there is {now}")
        if self.schedule is not None and self.state.schedule is not None:
            self.schedule.restore(self.state.schedule)
        self.records = [record for record in self.folder.records() if record["kind"] in ("step", "validation")]

    def finish(self) -> None:
        """Write the final model; it is the best one too where nothing was validated."""
        self.save("final")
        if self.state.best_step is None:
            self.save("best")
        barrier()

    def save(self, name: str) -> None:
        """Write the weights as they are to a folder of the run."""
        inference = self.inference_model
        save_model(self.folder.path / name, inference.model, inference.tokenizer, self.loaded.settings)


def _reference(loaded: LoadedModel, config: GrpoConfig) -> nn.Module | None:
    """The frozen model that KL is measured to, loaded only if kl_coef is not 0: what the run began with, or a folder."""
    if config.kl_coef == 0:
        return None
    loaded_reference = load_model(
        config.reference or loaded.path,
        dtype=loaded.dtype,
        device=loaded.device,
        attention=config.attention,
        keep_history=True,  # it scores tokens and renders nothing
    )
    return loaded_reference.model.requires_grad_(False)
