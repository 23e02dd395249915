"""GRPO: train a model in an environment and write what came of it to a run folder. Read from top to bottom."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gradus.core import EnvironmentSpec, Grader, Group, StopReason, child_seed
from gradus.core.frozen_record import frozen_record
from gradus.core.metrics import StepRecord, ValidationRecord
from gradus.core.printing import go_around
from gradus.core.values import Json, JsonDict
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.tinker.service import ServerLost
from gradus.rewards import reweigh, tell_steps_taken
from gradus.rollouts import MAX_CONCURRENT, episodes_of, lowest_reward, roll_out, write_episodes
from gradus.stats import format_number
from gradus.training.config import GrpoConfig
from gradus.training.data.sequences import Groups
from gradus.training.data.tasks import training_tasks
from gradus.training.distributed.processes import any_of, barrier, from_main, gather, share, world
from gradus.training.engine.loss_step import TrainingError
from gradus.training.engine.optimizers import lr_at
from gradus.training.laws.credit import dropped_again, settings_again
from gradus.training.laws.grading import add_pairs, independence, kinds_of
from gradus.training.laws.movement import scheduled_rate
from gradus.training.laws.rolled import RolledOut
from gradus.training.laws.runner import begun
from gradus.training.laws.step import is_exact
from gradus.training.laws.storing import (
    best_again,
    check_checkpoint,
    episodes_again,
    figures_again,
    is_looked_at,
    line_again,
    splits_again,
    stored_again,
    taught_before,
    validated_again,
)
from gradus.training.laws.tasks import epochs_again, judges_again, same_tasks, tasks_again, trained_again
from gradus.training.learner import Learner, StepLearner
from gradus.training.run.checkpoints import Checkpoint, go_back, loop_values, save_checkpoint
from gradus.training.run.folder import RunFolder
from gradus.training.run.live_screen import FIGURES, Interrupt, Screen
from gradus.training.run.options import GrpoOptions, Observer
from gradus.training.run.splits import GrpoSplits, taught_ids
from gradus.training.run.step_metrics import step_record
from gradus.training.run.validation import chosen_reward, validate

STORED_GROUPS = 2  # of a step whose episodes are stored
_SILENT_STEPS = 5  # without a difference in any group: then a run ends
_PLANNED_AGAIN = (2, 5)  # steps after which the last step is chosen anew, by what a step has taken


@dataclass
class GrpoState:
    """The state of a run in a checkpoint, besides weights and optimizer.

    ``lowest_reward``: the least so far, at most 0. ``alerts``: rule and severity of those that hold. ``stopped``: the one that ended the run.
    ``last_step``: the last one that fits the time, None as long as all do. ``pairs``: sums over groups of equal first answers.
    ``kinds``: what has been seen of :func:`kinds_of`.
    """

    step: int = 0
    next_task: int = 0
    best_step: int | None = None
    best_reward: float | None = None
    lowest_reward: float = 0.0
    alerts: list[list[str]] = field(default_factory=list[list[str]])
    stopped: str | None = None
    schedule: JsonDict | None = None
    last_step: int | None = None
    pairs: list[float] = field(default_factory=lambda: [0.0] * 5)
    kinds: list[str] = field(default_factory=list[str])


@frozen_record
class GrpoResult:
    """The result of a GRPO run. ``best`` and ``final`` are model folders. ``stopped``: the alert that ended the run early, or None."""

    steps: int
    best: Path
    final: Path
    best_step: int | None
    best_reward: float | None
    stopped: str | None
    seconds: float


@frozen_record
class StepRollout:
    """The groups of a step, the first place in the order of tasks that is still unused, and this process's seconds by phase.

    ``dropped``: groups that dynamic sampling replaced. They are not trained on, but count in what the step's metrics say of the policy.
    """

    groups: Groups
    dropped: Groups
    next_task: int
    seconds: Mapping[str, float]


def train_grpo(
    model: LoadedModel | str | Path,
    spec: EnvironmentSpec,
    config: GrpoConfig,
    folder: Path | str,
    *,
    resume: bool = False,
    options: GrpoOptions | None = None,
) -> GrpoResult:
    """Trains ``model`` in an environment and writes metrics, checkpoints, episodes, ``best`` and ``final`` to ``folder``.

    A resumed run gives, bit for bit on a CPU, the weights of an unbroken one. Ctrl-C finishes the step, writes a checkpoint and
    raises KeyboardInterrupt.

    Raises:
        ConfigError: something cannot be used as given.
        StorageError: a file cannot be written. TrainingError: training cannot go on. The run folder then still holds its last
            checkpoint.
    """
    options = options or GrpoOptions()
    grader = options.grader if isinstance(options.grader, Grader) else spec.grader(options.grader)
    learner = Learner(model, spec, config, grader=grader, options=options)
    return train_learner(learner, spec, folder, resume=resume, options=options)


def train_learner(
    learner: StepLearner, spec: EnvironmentSpec, folder: Path | str, *, resume: bool, options: GrpoOptions
) -> GrpoResult:
    """:func:`train_grpo` of any learner. If a server loses its weights, the run goes back to its last checkpoint, once."""
    with begun(folder, learner.config, options, resume=resume) as run_folder:
        loop = GrpoLoop(learner, spec, run_folder, options)
        if resume:
            loop.restore()
        learner.sync_weights()
        try:
            return loop.run()
        except ServerLost as error:
            go_around(str(error), "the run goes on from its last checkpoint in a new session")
        learner.reopen()
        loop.restore()
        learner.sync_weights()
        return loop.run()


class GrpoLoop:
    """One run: roll out groups, give credit, update, write down, validate, keep what is best."""

    def __init__(
        self,
        learner: StepLearner,
        spec: EnvironmentSpec,
        folder: RunFolder,
        options: GrpoOptions | None = None,
    ) -> None:
        self.learner, self.spec, self.folder = learner, spec, folder
        self.config, self.laws = learner.config, learner.laws
        self.options = options or GrpoOptions()
        self.schedule = self.options.schedule
        self.grader = learner.grader  # as it is weighed without a schedule; validation keeps it, so that steps compare
        self.splits = GrpoSplits(spec, self.config, taught=taught_ids(Path(learner.name)))
        self.state = GrpoState()
        self.records: list[Json] = []
        self.began = time.perf_counter()
        self.validation_seconds = 0.0  # of the last one

    @property
    def last_step(self) -> int:
        """The step after which the run ends: the last one of the settings, or of those that fit the time."""
        return self.config.max_steps if self.state.last_step is None else self.state.last_step

    def run(self) -> GrpoResult:
        """Takes the remaining steps, shows each one, and writes the final model."""
        started = time.perf_counter()
        watched = {label: f"metrics.{key}" for label, key in self.spec.presentation.watched.items()}
        screen = Screen(
            f"grpo {self.spec.name}",
            steps=self.config.max_steps,
            figures={**FIGURES, **watched},
            done=self.state.step,
            live=self.options.live and world().main,
        )
        screen.note(self.config.objective())
        on_step: Observer | None = self.options.on_step
        with screen, Interrupt(self.options.stop) as interrupt:
            for record in self.train(screen, interrupt):
                screen.step(record)
                if on_step is not None:
                    on_step(record)
        self.finish()
        return GrpoResult(
            steps=self.state.step,
            best=self.folder.path / "best",
            final=self.folder.path / "final",
            best_step=self.state.best_step,
            best_reward=self.state.best_reward,
            stopped=self.state.stopped,
            seconds=time.perf_counter() - started,
        )

    def train(self, screen: Screen, interrupt: Interrupt) -> Iterator[StepRecord]:
        """Takes the remaining steps and yields each one's record. Raises KeyboardInterrupt after a checkpoint."""
        config, state = self.config, self.state
        self.splits.store(self.folder, state.next_task)
        if state.step == 0:
            self.validate(screen)
        while state.step < self.last_step and state.stopped is None:
            # Processes may differ in the last bits of a figure; what is decided by one must not differ.
            record = from_main(self.step(screen))
            state.step += 1
            self.write(record)
            if self.laws.due and self.folder.writing:
                self.laws.check("records", line_again, self.folder.metrics, record)
            self.handle_alerts(screen)
            self.end_if_silent(screen)
            self.keep_to_time(screen)
            last = state.step == self.last_step or state.stopped is not None
            if config.validation_every and (state.step % config.validation_every == 0 or last):
                self.validate(screen)
            self.write_laws()
            interrupted = any_of(interrupt.requested)
            if state.step % config.checkpoint_every == 0 or last or interrupted:
                self.checkpoint()
            yield record
            if interrupted and not last:
                raise KeyboardInterrupt

    def step(self, screen: Screen) -> StepRecord:
        """Rolls out, credits and updates once; returns the step's record."""
        started = time.perf_counter()
        state, laws = self.state, self.laws
        step = state.step + 1
        # What a checkpoint measured is left out: a run that went on from it has the same metrics as one that did not.
        laws.worst.clear()
        laws.new = False
        lr = self.begin(step)
        rollout = self.roll_out(step, screen)
        state.next_task = rollout.next_task
        state.lowest_reward = lowest_reward(episodes_of(rollout.groups), state.lowest_reward)
        kinds = {*state.kinds, *kinds_of(rollout.groups, rollout.dropped)}
        laws.new = len(kinds) > len(state.kinds)
        state.kinds = sorted(kinds)
        screen.phase("training")
        credit_started = time.perf_counter()
        samples = self.learner.credit(rollout.groups)
        credit_seconds = time.perf_counter() - credit_started
        self.check_laws(rollout, lr)
        update = self.learner.update(samples, lr=lr)
        self.learner.sync_weights()
        if self.config.store_every and step % self.config.store_every == 0:
            self.store_episodes(step, rollout.groups)
        seconds = {**rollout.seconds, **update.seconds, "laws": laws.seconds}
        seconds["train"] += credit_seconds
        laws.seconds = 0.0
        seconds["total"] = time.perf_counter() - started
        groups = [*rollout.groups, *rollout.dropped]
        record = step_record(step, groups, update, seconds, lr=lr, dropped=len(rollout.dropped))
        if laws.due:
            counts = {"lr": lr, "episodes": len(episodes_of(groups)), "dropped_groups": len(rollout.dropped)}
            laws.check("records", figures_again, record, groups, counts)
        return self.observe(step, record)

    def check_laws(self, rollout: StepRollout, lr: float) -> None:
        """Looks at the tasks and groups of a step and at its rate. Raises LawBroken."""
        laws, spec, config = self.laws, self.spec, self.config
        groups = [*rollout.groups, *rollout.dropped]
        add_pairs(self.state.pairs, groups)
        if not laws.due:
            return
        laws.check("independence", independence, self.state.pairs)
        laws.check("credit", settings_again, self.learner.asked, config, self.grader)
        laws.check("credit", dropped_again, rollout.dropped)
        if self.schedule is None:
            laws.check("optimizer", scheduled_rate, config, config.max_steps, self.state.step + 1, lr)
        if world().size > 1:
            return
        laws.check(
            "tasks", tasks_again, spec, config, self.splits.validation, self.trained, groups, len(rollout.groups)
        )
        if laws.step == 1:
            laws.check("tasks", epochs_again, spec, config)
        key, rounds = ("step", laws.step), config.dynamic_sampling
        rolled = self.rolled_out(config.sampling, config.seed, key, self.learner.grader)
        replace(rolled, size=config.group_size, rounds=rounds, first=0).check(laws, groups)

    @property
    def trained(self) -> int:
        """The tasks so far, by the metrics."""
        return sum(record["groups"] for record in self.records if record["kind"] == "step")

    def rolled_out(self, sampling: SamplingConfig, seed: int, key: tuple[int | str, ...], grader: Grader) -> RolledOut:
        """Says how episodes of the run must be rolled out, one a task."""
        model = self.learner.local_model
        return RolledOut(
            spec=self.spec,
            sampling=sampling,
            seed=seed,
            key=key,
            size=1,
            limit=self.config.max_turns or self.spec.max_turns,
            renderer=self.learner.words.renderer,
            loaded=model,
            grader=grader,
            exact=model is not None and is_exact(model, self.config),
        )

    def roll_out(self, step: int, screen: Screen) -> StepRollout:
        """Rolls out and grades ``groups`` groups. With dynamic sampling, those without an advantage are replaced in further rounds.

        Each process rolls out its share. Raises TrainingError if not one episode could be graded.
        """
        config = self.config
        groups: list[Group] = []
        dropped: list[Group] = []
        seconds = {"policy": 0.0, "environment": 0.0, "reward": 0.0}
        next_task = self.state.next_task
        for attempt in range(config.dynamic_sampling + 1):
            missing = config.groups - len(groups)
            tasks, next_task = training_tasks(self.spec, config, next_task, missing, self.splits.reserved)
            local = share(len(tasks))
            result = roll_out(
                self.spec,
                self.learner.policy,
                tasks[local.start : local.stop],
                first_group=local.start,
                group_size=config.group_size,
                seed=config.seed,
                key=("step", step, attempt),
                grader=self.learner.grader,
                max_turns=config.max_turns,
                lowest=self.state.lowest_reward,
                # Episodes that are rolled out to their end before others begin need no turns in the sampler's cache.
                max_concurrent=max(config.group_size, config.batch_size or MAX_CONCURRENT),
                progress=lambda done, total: screen.phase(f"rollout {int(done)}/{total}"),
            )
            for name in seconds:
                seconds[name] += result.seconds[name]
            rolled_out = gather(result.groups)
            trained = set(range(len(rolled_out)))
            if attempt < config.dynamic_sampling:
                trained = self.trained_groups(rolled_out)
            for number, group in enumerate(rolled_out):
                (groups if number in trained else dropped).append(group)
            if len(groups) == config.groups:
                break
        _check_graded(groups)
        return StepRollout(groups=groups, dropped=dropped, next_task=next_task, seconds=seconds)

    def trained_groups(self, groups: Groups) -> set[int]:
        """Returns the numbers of the groups whose tokens have an advantage: equal totals may hide turns that differ."""
        return {sample.key[0] for sample in self.learner.credit(groups) if sample.live}

    def begin(self, step: int) -> float:
        """Does what the schedule says before a step; returns the step's learning rate."""
        lr = lr_at(self.config, step, self.config.max_steps)
        if self.schedule is None:
            return lr
        plan = self.schedule.plan(step)
        tell_steps_taken(self.grader, step - 1)
        if plan.weights != self.learner.grader.weights:
            self.learner.grader = reweigh(self.grader, plan.weights)
        if plan.reset_optimizer:
            self.learner.reset_optimizer()
        return lr * ((plan.lr or self.config.lr) / self.config.lr)

    def observe(self, step: int, record: StepRecord) -> StepRecord:
        """Adds the weights in force to a step's record and lets the schedule see what came of them."""
        if self.schedule is None:
            return record
        plan = self.schedule.plan(step)
        self.schedule.observe(step, record["components"])
        return {**record, "stage": plan.stage, "weights": dict(plan.weights)}

    def validate(self, screen: Screen) -> None:
        """Rolls out the held-out tasks; keeps the weights if they are the best so far."""
        tasks, state = self.splits.validation, self.state
        if not tasks:
            return
        screen.phase("validating")
        began = time.perf_counter()
        if self.schedule is not None:
            tell_steps_taken(self.grader, state.step)
        policies = self.learner.validation_policies()
        if state.step == 0:
            self.laws.check("tasks", judges_again, self.spec, self.config, tasks, taught_ids(Path(self.learner.name)))
        validations = validate(self.spec, tasks, self.config, self.grader, policies, step=state.step)
        if self.laws.due and world().size == 1:
            for record, groups in validations:
                self.look_at_validation(record, groups)
        records = from_main([record for record, _ in validations])
        reward = chosen_reward(records, self.config.best_by)
        if reward is not None and (state.best_reward is None or reward > state.best_reward):
            state.best_reward, state.best_step = reward, state.step
            self.save("best")
            for record in records:
                record["best"] = True
            screen.note(f"best so far at step {state.step}: validation reward {format_number(reward, 4)}")
        for record in records:
            self.write(record)
        self.validation_seconds = time.perf_counter() - began

    def look_at_validation(self, record: ValidationRecord, groups: Groups) -> None:
        """Holds what a validation rolled out, and its record, to the settings. Raises LawBroken."""
        laws, config, tasks = self.laws, self.config, self.splits.validation
        sampling = config.sampling
        if record["decoding"] == "greedy":
            constraints = {"max_new_tokens", "grammar", "constrain"}
            sampling = SamplingConfig(greedy=True, **sampling.model_dump(include=constraints))
        laws.check("tasks", same_tasks, tasks, groups)
        self.rolled_out(sampling, child_seed(config.seed, "validation"), (), self.grader).check(laws, groups)
        completed = sum(episode.stop is not StopReason.FAILED for episode in episodes_of(groups))
        laws.check("records", figures_again, record, groups, {"episodes": completed})
        laws.check("records", validated_again, record, groups)

    def handle_alerts(self, screen: Screen) -> None:
        """Lets the monitor look at the run.

        An alert is written down when its rule begins to hold; a severe one may end the run (``on_alert``).
        """
        if self.options.monitor is None:
            return
        before = self.state.alerts
        alerts = self.options.monitor(self.records)
        self.state.alerts = [[alert["rule"], alert["severity"]] for alert in alerts]
        for alert in alerts:
            if [alert["rule"], alert["severity"]] in before:
                continue
            action = "warned"
            if self.config.on_alert == "stop" and alert["severity"] == "stop":
                self.state.stopped = alert["rule"]
                action = "stopped"
            self.alert(screen, alert, action)

    def alert(self, screen: Screen, alert: Json, action: str) -> None:
        """Writes down an alert and shows it."""
        record = {name: alert[name] for name in ("rule", "severity", "evidence", "remedy")}
        self.folder.append({"kind": "alert", "step": self.state.step, **record, "action": action})
        screen.note("{severity}: {rule}: {evidence} -> {remedy}".format(**record) + f" ({action})")

    def end_if_silent(self, screen: Screen) -> None:
        """Ends the run if nothing could be learned at several steps: without a difference in any group no weight is changed."""
        config = self.config
        trains_besides = config.kl_coef or config.distill_coef or config.entropy_coef or config.observations
        steps = [record for record in self.records if record.get("kind") == "step"][-_SILENT_STEPS:]
        if self.state.stopped is not None or trains_besides or len(steps) < _SILENT_STEPS:
            return
        if all(record["zero_variance_groups"] == 1.0 for record in steps):
            self.state.stopped = "no variance"
            evidence, remedy = _silence(steps)
            alert = {"rule": self.state.stopped, "severity": "stop", "evidence": evidence, "remedy": remedy}
            self.alert(screen, alert, "stopped")

    def keep_to_time(self, screen: Screen) -> None:
        """Chooses the last step that fits the time, after steps 2 and 5 and when the time is nearly up."""
        limit, state = self.options.seconds, self.state
        steps = [record["seconds"]["total"] for record in self.records if record.get("kind") == "step"]
        if limit is None or len(steps) < _PLANNED_AGAIN[0]:
            return
        remaining = limit - (time.perf_counter() - self.began)
        # The first step is left out: it also allocates the optimizer's state.
        step = sum(steps[1:]) / len(steps[1:])
        every = self.config.validation_every
        with_validation = step
        if every:
            with_validation += self.validation_seconds / every
        # The last step is followed by a validation of its own.
        fitting = state.step + max(0, int((remaining - self.validation_seconds) / with_validation))
        fitting = min(fitting, self.config.max_steps)
        is_up = fitting == state.step < self.last_step
        if is_up or (state.step in _PLANNED_AGAIN and fitting != self.last_step):
            state.last_step = fitting
            screen.ends_at(fitting)
            screen.note(f"{fitting} steps fit the time: a step takes {step:.1f} s")

    def write(self, record: Json) -> None:
        """Adds a record to the metrics."""
        self.folder.append(record)
        self.records.append(record)

    def write_laws(self) -> None:
        """Adds to the metrics what was measured of the laws since the last time."""
        record = self.laws.record()
        if record is not None:
            self.write(record)

    def checkpoint(self) -> None:
        """Writes down where the run stands."""
        self.state.schedule = None if self.schedule is None else self.schedule.state()
        checkpoint = Checkpoint(step=self.state.step, offset=self.folder.offset(), state=loop_values(self.state))
        save_checkpoint(self.folder.path, checkpoint, self.learner.state)
        self.splits.store(self.folder, self.state.next_task)
        if self.folder.writing:
            path, step, every = self.folder.path, self.state.step, self.config.checkpoint_every
            self.laws.check("records", stored_again, path, step, (step - 1) % every + 1, self.config.store_every)
            if is_looked_at(step, every):
                judging = {task.id for task in self.splits.validation}
                trained = trained_again(self.spec, self.config, judging, self.trained)
                roles = {"teach": taught_before(Path(self.learner.name)), "validation": judging, "train": trained}
                self.laws.check("records", splits_again, path, roles)
        self.check_checkpoint(self.config.checkpoint_every)

    def check_checkpoint(self, every: int = 0) -> None:
        """Holds the newest checkpoint to the run in memory; of those of ``every`` so many steps some as a whole. Raises LawBroken."""
        state = {name: value for name, value in vars(self.state).items() if name not in ("step", "schedule")}
        check_checkpoint(self.laws, self.folder.path, self.learner.state, self.learner.steps, state, every)

    def restore(self) -> None:
        """Goes back to the newest checkpoint, or to the beginning without one."""
        checkpoint = go_back(self.folder, self.learner.state)
        self.state = GrpoState() if checkpoint is None else GrpoState(step=checkpoint.step, **checkpoint.state)
        self.learner.steps = self.state.step
        barrier()
        if self.schedule is not None and self.state.schedule is not None:
            self.schedule.restore(self.state.schedule)
        self.records = [record for record in self.folder.records() if record.get("kind") in ("step", "validation")]
        self.check_checkpoint()

    def finish(self) -> None:
        """Writes the final model; it is the best one too if nothing was validated."""
        self.save("final")
        if self.state.best_step is None:
            self.save("best")
        if self.folder.writing:
            state = self.state
            args = (self.folder.metrics, self.config.best_by, state.best_step, state.best_reward)
            self.laws.check("records", best_again, *args)
        self.write_laws()
        barrier()

    def save(self, name: str) -> None:
        """Writes the weights as they are to a model folder of the run."""
        self.learner.save(self.folder.path / name)

    def store_episodes(self, step: int, groups: Groups) -> None:
        """Keeps a sample of what was sampled, tokens and log-probs included."""
        if self.folder.writing:
            path = self.folder.path / "episodes" / f"step-{step:06d}.jsonl.gz"
            write_episodes(path, episodes_of(groups[:STORED_GROUPS]), environment=self.spec.name)
            self.laws.check("records", episodes_again, self.folder.path, step, groups)


def _check_graded(groups: Groups) -> None:
    """Raises TrainingError, with the first reason, if nothing of a step could be graded."""
    episodes = episodes_of(groups)
    rewards = [episode.reward for episode in episodes if episode.reward is not None]
    if any(reward.value is not None for reward in rewards):
        return
    for episode in episodes:
        if episode.failure is not None:
            raise TrainingError(
                f"all {len(episodes)} episodes failed; the first at stage {episode.failure.stage}: "
                f"{episode.failure.type}: {episode.failure.message}"
            )
    reason = (rewards[0].error if rewards else None) or "no reason was given"
    raise TrainingError(f"none of the {len(episodes)} episodes could be graded: {reason}")


def _silence(steps: Sequence[Json]) -> tuple[str, str]:
    """Says what steps without a difference within any group came to, and what to change."""
    rewards = {record["reward_mean"] for record in steps}
    if len(rewards) > 1 or any(record["reward_total_std"] for record in steps):
        evidence = f"in no group of the last {_SILENT_STEPS} steps did rewards differ"
        remedy = "bring easier or harder tasks, sample at a higher temperature, or warm-start with teach.enabled = true"
    else:
        evidence = f"every answer of the last {_SILENT_STEPS} steps earned {rewards.pop():g}"
        remedy = (
            "if that is the most that the reward gives, the tasks are solved: bring harder ones; else bring easier ones"
        )
    return f"{evidence}, so no weight was changed", remedy
