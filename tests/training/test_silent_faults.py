"""Faults that would train in silence are refused before a weight moves."""

import copy
from dataclasses import replace

import pytest
from fakes import lamps

import gradus
from gradus.core import ConfigError, Group
from gradus.training.data import credit
from gradus.training.engine import loss_step, objective
from gradus.training.engine.loss_step import TrainingError
from gradus.training.engine.optimizers import make_optimizer
from gradus.training.laws.runner import LawBroken


@pytest.fixture
def learner(lamps_model):
    config = gradus.GrpoConfig(max_steps=4, lr=1e-3, sampling={"max_new_tokens": 4, "grammar": True}, threads=1)
    return gradus.Learner(gradus.load_model(lamps_model, device="cpu"), lamps(), config)


@pytest.fixture
def groups(learner):
    return gradus.roll_out(lamps(), learner.policy, episodes=4, group_size=4, seed=3).groups


def test_a_mask_covers_what_was_sampled_and_nothing_else(learner, groups, monkeypatch):
    real = credit.episode_samples
    changes = (
        lambda one: one.only(one.offsets > 0),
        lambda one: replace(one, positions=one.positions - 1),
        lambda one: replace(one, turns=one.turns.flip(0)),
    )
    for change in changes:

        def changed(*args, change=change, **options):
            return [change(each) for each in real(*args, **options)]

        monkeypatch.setattr(credit, "episode_samples", changed)
        with pytest.raises(LawBroken, match="law broken: tokens"):
            learner.credit(groups)


def test_a_group_is_of_one_task(learner, groups):
    columns = zip(*(each.episodes for each in groups), strict=True)
    with pytest.raises(ConfigError, match="episodes of 4 tasks"):
        learner.credit([Group(task=each[0].task, episodes=each) for each in columns])


def test_an_optimizer_of_other_parameters_is_refused(learner, groups):
    learner.optimizer = make_optimizer(copy.deepcopy(learner.model.model), learner.config)
    with pytest.raises(TrainingError, match="holds other parameters"):
        learner.update(learner.credit(groups))


def test_a_share_of_the_sequences_is_not_lost(learner, groups, monkeypatch):
    monkeypatch.setattr(objective, "share", lambda count: range(count // 2))
    with pytest.raises(TrainingError, match="gradient of a process is lost"):
        learner.update(learner.credit(groups))


def test_processes_have_one_gradient(learner, groups, monkeypatch):
    monkeypatch.setattr(loss_step, "gather", lambda items: [items[0], 2 * items[0]])
    with pytest.raises(TrainingError, match="gradients of the processes differ"):
        learner.update(learner.credit(groups))
