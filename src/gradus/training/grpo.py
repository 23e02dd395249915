"""The GRPO loop: play groups, give credit, update, write down, validate, keep what is best."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradus.core import ConfigError, EnvironmentSpec, Grader, GradusError, Group, Policy
from gradus.policies.loading import LoadedModel, load_model
from gradus.policies.local import LocalPolicy
from gradus.rollouts import play, write_episodes
from gradus.training.alerts import Alarm, OnAlert
from gradus.training.checkpoints import Checkpoint, latest_checkpoint, load_checkpoint, save_checkpoint, save_model
from gradus.training.credit import credit_groups
from gradus.training.distributed import any_of, barrier, gather, share, world
from gradus.training.folder import RunFolder
from gradus.training.grpo_config import GrpoConfig
from gradus.training.interrupt import Interrupt
from gradus.training.optimiser import learning_rate, make_optimiser
from gradus.training.peak import matmul_peak, training_flops
from gradus.training.schedule import Schedule
from gradus.training.screen import Screen
from gradus.training.step_metrics import dead_group, episode_metrics
from gradus.training.tasks import training_tasks, validation_tasks
from gradus.training.trainer import TrainingError, autocast, prepare_model
from gradus.training.update import UpdateResult, policy_update
from gradus.training.validation import chosen_grade, validate

__all__ = ["GrpoLoop", "GrpoResult", "train_grpo"]

FIGURES = {
    "reward": "reward_mean",
    "spread": "reward_std",
    "yardstick": "yardstick_mean",
    "kl": "kl",
    "entropy": "entropy",
    "dead groups": "dead_groups",
    "turns": "turns_mean",
    "tokens": "action_tokens_mean",
    "sampler gap": "sampler_gap",
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
    best_grade: float | None
    stopped: str | None
    seconds: float


@dataclass
class _State:
    """What a checkpoint must remember besides weights and optimiser."""

    step: int = 0
    next_task: int = 0
    best_step: int | None = None
    best_grade: float | None = None
    alarm: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, Any] | None = None


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
    synchronise: Callable[[LoadedModel, int], None] | None = None,
) -> GrpoResult:
    """Train ``model`` in an environment and write metrics, checkpoints, episodes, ``best`` and ``final`` to ``folder``.

    ``grader``: its name in ``spec`` or a grader; None is the environment's default. ``schedule`` changes its weights, the
    learning rate and the optimiser from step to step; validation keeps the grader as it is, so that steps compare. ``monitor`` looks at all records of steps and validations
    after each step and returns alerts (rule, severity, evidence, remedy, and what it would adjust); ``on_alert`` says whether
    to write them down (warn), to stop at a severe one (stop), or to apply safe remedies (adjust). ``on_step`` is given every
    step's record, ``on_record`` all that goes to the metrics, in the process that writes. Resuming gives, bit for
    bit, the weights of an unbroken run. ``sampler`` plays in place of the model in this process (a server, say); its actions
    must carry token ids and log-probs, and ``synchronise`` is called with the weights and the step, before the first step and
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
    context = {"model": str(loaded.path), "environment": spec.name, "grader": judge.name}
    run_folder.open(config, resume=resume, context=context)
    loop = GrpoLoop(loaded, spec, config, run_folder, judge, Alarm(monitor, on_alert))
    loop.policy, loop.synchronise = sampler or loop.policy, synchronise
    loop.schedule = schedule
    if resume:
        loop.restore()
    if synchronise is not None:
        synchronise(loaded, loop.state.step)
    started = time.perf_counter()
    title = f"grpo {spec.name}"
    watched = {label: f"metrics.{key}" for label, key in spec.watched.items()}
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
        best_grade=loop.state.best_grade,
        stopped=loop.alarm.stopped,
        seconds=time.perf_counter() - started,
    )


class GrpoLoop:
    """One run: the model that plays is the model that is trained."""

    def __init__(
        self,
        loaded: LoadedModel,
        spec: EnvironmentSpec,
        config: GrpoConfig,
        folder: RunFolder,
        grader: Grader,
        alarm: Alarm,
    ) -> None:
        self.loaded, self.spec, self.config, self.folder = loaded, spec, config, folder
        self.grader, self.alarm = grader, alarm
        self.paying = grader  # the grader under the weights of the step at hand
        self.schedule: Schedule | None = None
        self.optimiser = make_optimiser(loaded.model, config)
        self.policy: Policy = LocalPolicy(
            loaded, config.sampling, name="grpo", batch_size=config.batch_size, grammar=spec.grammar
        )
        self.synchronise: Callable[[LoadedModel, int], None] | None = None
        self.reference = _reference(loaded, config)
        self.state = _State()
        self.records: list[Mapping[str, Any]] = []

    # -- the loop -------------------------------------------------------------------------------------------------

    def train(self, screen: Screen, interrupt: Interrupt) -> Iterator[dict[str, Any]]:
        """Take the remaining steps and yield each one's record. Raises KeyboardInterrupt behind a checkpoint."""
        if self.state.step == 0:
            self.validate(screen)
        while self.state.step < self.config.max_steps and self.alarm.stopped is None:
            record = self.step(screen)
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
        peak_rate = self.begin(step)
        groups, seconds = self.play(step, screen)
        screen.phase("training")
        credited = credit_groups(groups, self.config, self.loaded.renderer)
        rate = learning_rate(self.config, step, self.config.max_steps) * self.alarm.rate_scale
        rate *= peak_rate / self.config.learning_rate
        credit_seconds = time.perf_counter() - started - sum(seconds.values())
        update = policy_update(
            self.loaded,
            self.optimiser,
            credited,
            self.config,
            rate,
            reference=self.reference,
            key=(step,),
        )
        if self.synchronise is not None:
            self.synchronise(self.loaded, step)
        self.store(step, groups)
        seconds |= update.seconds
        seconds["train"] += max(0.0, credit_seconds)
        seconds["total"] = time.perf_counter() - started
        return self.scheduled(step, self.record(step, groups, update, seconds, rate))

    def begin(self, step: int) -> float:
        """Do what the schedule says before a step; returns the peak learning rate that holds."""
        if self.schedule is None:
            return self.config.learning_rate
        plan = self.schedule.plan(step)
        self.paying = self.schedule.grader(self.grader, step)
        if plan.reset_optimiser:
            self.optimiser = make_optimiser(self.loaded.model, self.config)
        return plan.learning_rate or self.config.learning_rate

    def scheduled(self, step: int, record: dict[str, Any]) -> dict[str, Any]:
        """Add the weights in force to a step's record and let the schedule see what came of them."""
        if self.schedule is None:
            return record
        plan = self.schedule.plan(step)
        self.schedule.observe(step, record["components"])
        return {**record, "stage": plan.stage, "weights": dict(plan.weights)}

    def play(self, step: int, screen: Screen) -> tuple[list[Group], dict[str, float]]:
        """Play a step's groups. With dynamic sampling, groups without signal are replaced in further rounds."""
        config = self.config
        groups: list[Group] = []
        seconds = {"play": 0.0, "environment": 0.0, "grade": 0.0}
        for attempt in range(config.dynamic_sampling + 1):
            missing = config.groups - len(groups)
            tasks = training_tasks(self.spec, config, self.state.next_task, missing)
            self.state.next_task += missing
            mine = share(len(tasks))
            with autocast(self.loaded, self.config):
                result = play(
                    self.spec,
                    self.policy,
                    tasks[mine.start : mine.stop],
                    first_group=mine.start,
                    group_size=config.group_size,
                    seed=config.seed,
                    key=("step", step, attempt),
                    grader=self.paying,
                    max_turns=config.max_turns,
                    progress=lambda done, total: screen.phase(f"playing {done}/{total}"),
                )
            for name in seconds:
                seconds[name] += result.seconds[name]
            last = attempt == config.dynamic_sampling
            groups.extend(group for group in gather(result.groups) if last or not dead_group(group))
            if len(groups) == config.groups:
                break
        _check_played(groups)
        return groups, seconds

    def record(
        self,
        step: int,
        groups: Sequence[Group],
        update: UpdateResult,
        seconds: Mapping[str, float],
        rate: float,
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
            "sampler_gap": update.sampler_gap,
            "grad_norm": update.grad_norm,
            "learning_rate": rate,
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
        records = validate(
            self.loaded, self.spec, validation_tasks(self.spec, self.config), self.config, self.grader, step=step
        )
        found = chosen_grade(records, self.config.best_by)
        if found is not None and (self.state.best_grade is None or found > self.state.best_grade):
            self.state.best_grade, self.state.best_step = found, step
            self.save("best")
            records = [{**record, "best": True} for record in records]
            screen.note(f"best so far at step {step}: validation grade {found:.4f}")
        if self.config.validation_condition is not None:
            tasks = self.spec.tasks(self.config.validation_condition)
            records += validate(self.loaded, self.spec, tasks, self.config, self.grader, step=step)
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
        if self.folder.writing:
            save_checkpoint(self.folder.path, checkpoint, self.loaded.model, self.optimiser, keep=keep)
        barrier()

    def restore(self) -> None:
        """Go back to the newest checkpoint; to the beginning if there is none."""
        path = latest_checkpoint(self.folder.path)
        if path is None:
            self.folder.truncate(0)
            return
        found = load_checkpoint(path, self.loaded.model, self.optimiser)
        self.folder.truncate(found.offset)
        barrier()
        self.state = _State(step=found.step, **found.state)
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
        if self.folder.writing:
            save_model(self.folder.path / name, self.loaded.model, self.loaded.tokenizer)


def _reference(loaded: LoadedModel, config: GrpoConfig) -> nn.Module | None:
    """The frozen model that KL is measured to, loaded only where it is paid for: what the run began with, or a folder."""
    if config.kl_coef == 0:
        return None
    found = load_model(
        config.reference or loaded.path,
        dtype=loaded.dtype,
        device=loaded.device,
        attention=config.attention,
        keep_history=True,  # it scores tokens and renders nothing
    )
    return found.model.requires_grad_(False)


def _check_played(groups: Sequence[Group]) -> None:
    """A step in which nothing could be graded has nothing to learn from, and says why."""
    episodes = [episode for group in groups for episode in group.episodes]
    if any(episode.grade is not None and episode.grade.value is not None for episode in episodes):
        return
    for episode in episodes:
        if episode.failure is not None:
            raise TrainingError(
                f"all {len(episodes)} episodes failed; the first at stage {episode.failure.stage}: "
                f"{episode.failure.type}: {episode.failure.message}"
            )
    error = next((episode.grade.error for episode in episodes if episode.grade), None)
    raise TrainingError(f"none of the {len(episodes)} episodes could be graded: {error or 'no reason was given'}")
