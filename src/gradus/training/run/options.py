"""The observers of a training run, and GRPO's options besides its config."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradus.core import Grader, Policy
from gradus.core.frozen_record import frozen_record
from gradus.core.values import Json
from gradus.policies.local.loading import LoadedModel
from gradus.rewards import RewardSchedule
from gradus.training.teachers import Teacher

Monitor = Callable[[Sequence[Json]], Sequence[Json]]
Observer = Callable[[Json], None]
PushWeights = Callable[[LoadedModel, int], None]


@frozen_record
class RunOptions:
    """The observers of a run.

    ``on_step`` is given every step's record, ``on_record`` all that goes to the metrics, in the process that writes. ``live``: show the
    run on the screen. ``stop`` is asked behind each step: True ends the run behind a checkpoint, as Ctrl-C does.
    """

    on_step: Observer | None = None
    on_record: Observer | None = None
    live: bool = True
    stop: Callable[[], bool] | None = None


@frozen_record
class GrpoOptions(RunOptions):
    """The observers of a GRPO run, its sampler and its grader.

    ``monitor`` is given the records of steps and validations and returns alerts. ``grader``: its name in the environment, or a grader; None is the environment's default. ``schedule`` changes the grader's weights, the
    learning rate and the optimizer from step to step; validation keeps the grader as it is, so that steps compare.

    ``sampler`` samples in place of the model in this process (a server, say). Its actions must carry token ids and log-probs. Validation
    stays in this process. ``push_weights`` is called with the weights and the step, before the first step and after each. ``teacher``: makes what ``distill_coef`` learns from, for the model that is trained.
    ``seconds``: time for the run; steps that do not fit are left out.
    """

    monitor: Monitor | None = None
    grader: str | Grader | None = None
    schedule: RewardSchedule | None = None
    sampler: Policy | None = None
    push_weights: PushWeights | None = None
    teacher: Callable[[LoadedModel], Teacher] | None = None
    seconds: float | None = None
