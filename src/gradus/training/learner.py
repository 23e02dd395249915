"""A model that learns in a loop of one's own: the parts of :mod:`gradus.training.grpo` without its folder, validation and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gradus.core import EnvironmentSpec, Grader, Group
from gradus.policies.local.loading import LoadedModel
from gradus.training.config import GrpoConfig
from gradus.training.data.credit import credit_groups
from gradus.training.data.sequences import TrainingSample
from gradus.training.engine.loss_step import PassBudget
from gradus.training.engine.optimizers import lr_at, make_optimizer
from gradus.training.engine.prepare import prepare_model
from gradus.training.engine.reference import load_reference
from gradus.training.engine.update import UpdateOptions, UpdateResult, policy_update
from gradus.training.run.checkpoints import save_model
from gradus.training.run.validation import sampling_policy


class Learner:
    """Holds a model with its optimizer. ``policy`` samples from it; :meth:`credit` and :meth:`update` are the other half of a step.

    ``model`` is a folder, a name, or what ``gradus.load_model`` gives. ``grader``: the environment's own by default; its components and
    weights are told to the algorithm. ``config.max_steps`` is what the learning rate's schedule ends at.
    """

    def __init__(
        self,
        model: LoadedModel | str | Path,
        spec: EnvironmentSpec,
        config: GrpoConfig,
        *,
        grader: Grader | None = None,
    ) -> None:
        config.check_own_sampler()
        self.grader = grader or spec.grader()
        config = config.model_copy(update={"max_turns": config.max_turns or spec.max_turns})
        self.config = config.resolved(self.grader)
        model = prepare_model(model, self.config)
        self.model = model.with_settings(sampling=config.sampling, environment=spec.name)
        self.policy = sampling_policy(self.model, spec, config)
        self.optimizer = make_optimizer(self.model.model, self.config)
        self.steps = 0
        self._reference, self._budget = load_reference(self.model, self.config), PassBudget(self.config)

    def credit(self, groups: Sequence[Group]) -> list[TrainingSample]:
        """Return the sampled tokens of all graded episodes, with the advantages (A,) that the algorithm gives them.

        ``dataclasses.replace(sample, advantages=...)`` gives others; ``sample.turns`` (A,) says of which turn each token is, and
        ``sample.episode`` of which graded episode.
        """
        return credit_groups(groups, self.config, self.model.renderer, weights=self.grader.weights)

    def update(self, samples: Sequence[TrainingSample], *, lr: float | None = None) -> UpdateResult:
        """Take ``epochs`` x ``minibatches`` optimizer updates. ``lr``: the schedule's by default."""
        self.steps += 1
        lr = lr_at(self.config, self.steps, self.config.max_steps) if lr is None else lr
        options = UpdateOptions(reference=self._reference, key=(self.steps,), budget=self._budget)
        return policy_update(self.model, self.optimizer, samples, self.config, lr, options)

    def save(self, folder: str | Path) -> Path:
        """Write the model as it is, which every command takes; returns the folder."""
        save_model(Path(folder), self.model)
        return Path(folder)
