"""GRPO: train a model in an environment and write what came of it to a run folder. Read from top to bottom."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradus.core import ConfigError, EnvironmentSpec, Grader, Group
from gradus.core.metrics import StepRecord
from gradus.policies.local.loading import LoadedModel
from gradus.rewards import tell_steps_taken
from gradus.rollouts import write_episodes
from gradus.stats import format_number
from gradus.training.config import GrpoConfig
from gradus.training.data.credit import credit_groups, graded_episodes
from gradus.training.data.sequences import TrainingSample
from gradus.training.distributed.processes import any_of, barrier, from_main, world
from gradus.training.engine.fsdp import shard, sync_inference_model
from gradus.training.engine.loss_step import PassBudget
from gradus.training.engine.optimizers import lr_at, make_optimizer
from gradus.training.engine.prepare import prepare_model
from gradus.training.engine.reference import load_reference
from gradus.training.engine.update import UpdateOptions, policy_update
from gradus.training.run.checkpoints import Checkpoint, go_back, save_checkpoint, save_model
from gradus.training.run.folder import RunFolder
from gradus.training.run.live_screen import FIGURES, Interrupt, Screen
from gradus.training.run.options import GrpoOptions, Observer
from gradus.training.run.splits import GrpoSplits, taught_ids
from gradus.training.run.step_metrics import credit_agreement, step_record
from gradus.training.run.validation import chosen_reward, sampling_policy, validate
from gradus.training.step_rollouts import StepRollouts
from gradus.training.teachers import with_teacher

STORED_GROUPS = 2  # of a step whose episodes are stored


@dataclass
class GrpoState:
    """The state of a run in a checkpoint, besides weights and optimizer.

    ``alerts``: rule and severity of those that hold. ``stopped``: the one that ended the run.
    """

    step: int = 0
    next_task: int = 0
    best_step: int | None = None
    best_reward: float | None = None
    alerts: list[list[str]] = field(default_factory=list)
    stopped: str | None = None
    schedule: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class GrpoResult:
    """The result of a GRPO run. ``best`` and ``final`` are model folders. ``stopped``: the alert that ended the run early, or None."""

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
    resume: bool = False,
    options: GrpoOptions | None = None,
) -> GrpoResult:
    """Train ``model`` in an environment and write metrics, checkpoints, episodes, ``best`` and ``final`` to ``folder``.

    A resumed run gives, bit for bit on a CPU, the weights of an unbroken one. Ctrl-C finishes the step, writes a checkpoint and
    raises KeyboardInterrupt.

    Raises:
        ConfigError: something cannot be used as given.
        StorageError: a file cannot be written. TrainingError: training cannot go on. The run folder then still holds its last
            checkpoint.
    """
    options = options or GrpoOptions()
    if options.sampler is None:
        config.check_own_sampler()
    config = config.model_copy(update={"max_turns": config.max_turns or spec.max_turns})
    run_folder = RunFolder(folder, writing=world().main, observer=options.on_record)
    grader = options.grader if isinstance(options.grader, Grader) else spec.grader(options.grader)
    config = config.resolved(grader)
    loaded = prepare_model(model, config)
    loaded = loaded.with_settings(sampling=config.sampling, environment=loaded.settings.environment or spec.name)
    run_folder.open(config, resume=resume)
    try:
        loop = GrpoLoop(loaded, spec, config, run_folder, grader, options)
        if resume:
            loop.restore()
        loop.sync_weights(loop.state.step)
        started = time.perf_counter()
        watched = {label: f"metrics.{key}" for label, key in spec.presentation.watched.items()}
        steps, done, figures = config.max_steps, loop.state.step, {**FIGURES, **watched}
        screen = Screen(
            f"grpo {spec.name}", steps=steps, figures=figures, done=done, live=options.live and world().main
        )
        screen.note(config.objective())
        loop.run(screen, options.on_step)
    except Exception:
        run_folder.forget_beginning()
        raise
    return loop.result(time.perf_counter() - started)


class GrpoLoop:
    """One run: roll out groups, give credit, update, write down, validate, keep what is best.

    The inference model is the model that is trained, or a full copy of it if that is sharded over processes.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        spec: EnvironmentSpec,
        config: GrpoConfig,
        folder: RunFolder,
        grader: Grader,
        options: GrpoOptions,
    ) -> None:
        self.loaded, self.spec, self.config, self.folder = loaded, spec, config, folder
        self.grader, self.schedule, self.push_weights = grader, options.schedule, options.push_weights
        sampler = options.sampler
        self.step_grader = grader  # the grader under the weights of the step at hand
        self.reference = load_reference(loaded, config)
        # A server samples instead; it needs full weights from here only if adapters are merged into them.
        samples = sampler is None or bool(config.validation_every) or config.lora is not None
        self.inference_model = shard(loaded, samples=samples)
        if config.distill_coef and options.teacher is None:
            raise ConfigError("distill_coef needs a teacher: give one in the options, or set distill_coef = 0")
        self.teacher = options.teacher(loaded) if options.teacher is not None and config.distill_coef else None
        self.optimizer, self.budget = make_optimizer(loaded.model, config), PassBudget(config)
        policy = sampler or sampling_policy(self.inference_model, spec, config)
        self.splits = GrpoSplits(spec, config, taught=taught_ids(Path(loaded.path)))
        self.rollouts = StepRollouts(spec, policy, config, self.splits.reserved)
        self.monitor = options.monitor
        self.state = GrpoState()
        self.records: list[Mapping[str, Any]] = []

    def run(self, screen: Screen, on_step: Observer | None) -> None:
        """Take the remaining steps, show each one, and write the final model."""
        with screen, Interrupt() as interrupt:
            for record in self.train(screen, interrupt):
                screen.step(record)
                if on_step is not None:
                    on_step(record)
        self.finish()

    def result(self, seconds: float) -> GrpoResult:
        """Returns the result of the run."""
        return GrpoResult(
            steps=self.state.step,
            best=self.folder.path / "best",
            final=self.folder.path / "final",
            best_step=self.state.best_step,
            best_reward=self.state.best_reward,
            stopped=self.state.stopped,
            seconds=seconds,
        )

    def train(self, screen: Screen, interrupt: Interrupt) -> Iterator[StepRecord]:
        """Take the remaining steps and yield each one's record. Raises KeyboardInterrupt after a checkpoint."""
        config, state = self.config, self.state
        self.splits.store(self.folder, state.next_task)
        if state.step == 0:
            self.validate(screen)
        while state.step < config.max_steps and state.stopped is None:
            record = from_main(self.step(screen))
            state.step += 1
            self.write(record)
            self.handle_alerts(screen)
            last = state.step == config.max_steps or state.stopped is not None
            if config.validation_every and (state.step % config.validation_every == 0 or last):
                self.validate(screen)
            interrupted = any_of(interrupt.asked)
            if state.step % config.checkpoint_every == 0 or last or interrupted:
                self.checkpoint()
            yield record
            if interrupted and not last:
                raise KeyboardInterrupt

    def step(self, screen: Screen) -> StepRecord:
        """Roll out, credit and update once; returns the step's record."""
        started = time.perf_counter()
        step = self.state.step + 1
        config, lr = self.config.at_step(step), self.begin(step)
        rollout = self.rollouts.roll_out(
            step,
            self.state.next_task,
            self.step_grader,
            progress=lambda done, total: screen.phase(f"rollout {int(done)}/{total}"),
        )
        self.state.next_task, seconds = rollout.next_task, dict(rollout.seconds)
        screen.phase("training")
        credit_started = time.perf_counter()
        samples = self.credit(rollout.groups)
        credit_seconds = time.perf_counter() - credit_started
        update = policy_update(
            self.loaded,
            self.optimizer,
            samples,
            config,
            lr,
            options=UpdateOptions(reference=self.reference, key=(step,), budget=self.budget),
        )
        self.sync_weights(step)
        if config.store_every and step % config.store_every == 0:
            self.store_episodes(step, rollout.groups[:STORED_GROUPS])
        seconds |= update.seconds
        seconds["train"] += credit_seconds
        seconds["total"] = time.perf_counter() - started
        record = step_record(
            step,
            [*rollout.groups, *rollout.dropped],
            update,
            seconds,
            lr=lr,
            dropped=len(rollout.dropped),
        )
        if self.teacher is None:
            record["credit_agreement"] = credit_agreement(rollout.groups, samples)
        return self.observe(step, record)

    def begin(self, step: int) -> float:
        """Do what the schedule says before a step; returns the step's learning rate."""
        lr = lr_at(self.config, step, self.config.max_steps)
        if self.schedule is None:
            return lr
        plan = self.schedule.plan(step)
        self.step_grader = self.schedule.grader(self.grader, step)
        if plan.reset_optimizer:
            self.optimizer = make_optimizer(self.loaded.model, self.config)
        return lr * ((plan.lr or self.config.lr) / self.config.lr)

    def credit(self, groups: Sequence[Group]) -> list[TrainingSample]:
        """Training samples with one advantage per sampled token."""
        samples = credit_groups(groups, self.config, self.loaded.renderer, weights=self.step_grader.weights)
        if self.teacher is None:
            return samples
        return with_teacher(samples, graded_episodes(groups), self.teacher, self.config.distill_coef)

    def observe(self, step: int, record: StepRecord) -> StepRecord:
        """Add the weights in force to a step's record and let the schedule see what came of them."""
        if self.schedule is None:
            return record
        plan = self.schedule.plan(step)
        self.schedule.observe(step, record["components"])
        return {**record, "stage": plan.stage, "weights": dict(plan.weights)}

    def sync_weights(self, step: int) -> None:
        """Give the sampler the weights as they are after ``step``."""
        sync_inference_model(self.inference_model, self.loaded)
        if self.push_weights is not None:
            self.push_weights(self.inference_model, step)

    def validate(self, screen: Screen) -> None:
        """Roll out the held-out tasks; keep the weights if they are the best so far."""
        if not self.splits.validation:
            return
        screen.phase("validating")
        step, state = self.state.step, self.state
        if self.schedule is not None:
            tell_steps_taken(self.grader, step)
        tasks = self.splits.validation
        records = from_main(validate(self.inference_model, self.spec, tasks, self.config, self.grader, step=step))
        reward = chosen_reward(records, self.config.best_by)
        if reward is not None and (state.best_reward is None or reward > state.best_reward):
            state.best_reward, state.best_step = reward, step
            self.save("best")
            for record in records:
                record["best"] = True
            screen.note(f"best so far at step {step}: validation reward {format_number(reward, 4)}")
        for record in records:
            self.write(record)

    def handle_alerts(self, screen: Screen) -> None:
        """Let the monitor look at the run. An alert is told when its rule begins to hold; a severe one may end the run (``on_alert``)."""
        known = self.state.alerts
        alerts = [] if self.monitor is None else self.monitor(self.records)
        self.state.alerts = [[alert["rule"], alert["severity"]] for alert in alerts]
        for alert in alerts:
            if [alert["rule"], alert["severity"]] in known:
                continue
            stops = self.config.on_alert == "stop" and alert["severity"] == "stop"
            self.state.stopped = alert["rule"] if stops else self.state.stopped
            action = "stopped" if stops else "warned"
            told = {name: alert[name] for name in ("rule", "severity", "evidence", "remedy")}
            self.folder.append({"kind": "alert", "step": self.state.step, **told, "action": action})
            screen.note("{severity}: {rule}: {evidence} -> {remedy}".format(**told) + f" ({action})")

    def write(self, record: Mapping[str, Any]) -> None:
        """Add a record to the metrics."""
        self.folder.append(record)
        self.records.append(record)

    def checkpoint(self) -> None:
        """Write down where the run stands."""
        self.state.schedule = None if self.schedule is None else self.schedule.state()
        values = {name: value for name, value in vars(self.state).items() if name != "step"}
        checkpoint = Checkpoint(step=self.state.step, offset=self.folder.offset(), state=values)
        keep = self.config.keep_checkpoints
        save_checkpoint(self.folder.path, checkpoint, self.loaded.model, self.optimizer, keep=keep)
        self.splits.store(self.folder, self.state.next_task)

    def restore(self) -> None:
        """Go back to the newest checkpoint, or to the beginning without one."""
        checkpoint = go_back(self.folder, self.loaded.model, self.optimizer)
        self.state = GrpoState() if checkpoint is None else GrpoState(step=checkpoint.step, **checkpoint.state)
        barrier()
        if self.schedule is not None and self.state.schedule is not None:
            self.schedule.restore(self.state.schedule)
        self.records = [record for record in self.folder.records() if record.get("kind") in ("step", "validation")]

    def finish(self) -> None:
        """Write the final model; it is the best one too if nothing was validated."""
        self.save("final")
        if self.state.best_step is None:
            self.save("best")
        barrier()

    def save(self, name: str) -> None:
        """Write the weights as they are to a model folder of the run."""
        save_model(self.folder.path / name, self.inference_model)

    def store_episodes(self, step: int, groups: Sequence[Group]) -> None:
        """Keep a sample of what was sampled, tokens and log-probs included."""
        if self.folder.writing:
            path = self.folder.path / "episodes" / f"step-{step:06d}.jsonl.gz"
            write_episodes(path, [each for group in groups for each in group.episodes], environment=self.spec.name)
