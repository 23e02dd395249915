"""A loop of one's own gives what the library's loop gives, and the page about it runs as it is written."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fakes import echo, lamps

import gradus
from gradus.core import ConfigError
from gradus.policies.nano.model import make_nano
from gradus.training.engine.optimizers import make_optimizer
from gradus.training.engine.update import UpdateOptions, policy_update

PAGE = Path(__file__).parents[2] / "docs" / "extend.md"


def config(**changes):
    return gradus.GrpoConfig(**{"max_steps": 4, "lr": 1e-3, "sampling": {"max_new_tokens": 4}, "threads": 1, **changes})


def test_the_page_runs_as_it_is_written(tmp_path, monkeypatch, capsys):
    spec = gradus.load_environment("arithmetic")
    model = make_nano(tmp_path / "model", spec.language.vocabulary(), seed=1)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(code.splitlines()) <= 25
    code = code.replace("Qwen/Qwen2.5-0.5B-Instruct", str(model))
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "own_loop.py", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert gradus.roll_out(spec, tmp_path / "runs" / "own", episodes=1).episodes[0].failure is None


def test_a_step_of_ones_own_loop_is_a_step_of_the_library(echo_model):
    length = gradus.Grader(name="length", compute=lambda episodes: [float(len(e.turns[0].action)) for e in episodes])
    spec, weights = replace(echo(), graders={"length": length}, default_grader="length"), []
    for own in (True, False):
        learner = gradus.Learner(gradus.load_model(echo_model, device="cpu"), spec, config())
        groups = gradus.roll_out(spec, learner.policy, episodes=4, group_size=4, seed=3).groups
        samples = learner.credit(groups)
        assert any(sample.live for sample in samples)
        if own:
            assert learner.update(samples).grad_norm > 0
        else:
            optimizer = make_optimizer(learner.model.model, learner.config)
            policy_update(learner.model, optimizer, samples, learner.config, 1e-3, UpdateOptions(key=(1,)))
        weights.append([each.detach().clone() for each in learner.model.model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))


ALGORITHMS = """
from dataclasses import replace
import torch
from gradus.algorithms import find_algorithm

def last_turn_alone(rewards, lengths, groups, *, scale, discount):
    shaped = torch.zeros_like(rewards)
    shaped[torch.arange(len(lengths)), lengths - 1, 0] = 1.0
    return shaped

last_turn = replace(find_algorithm("gradus"), turn_advantage=last_turn_alone, credit="turn")
wrong_shape = replace(last_turn, turn_advantage=lambda rewards, *_, **__: rewards[0])
number = 3
"""


def test_an_algorithm_of_a_file_may_bring_advantages_by_turn(lamps_model, tmp_path):
    """It was given one number an episode, whatever the credit."""
    file = tmp_path / "mine.py"
    file.write_text(ALGORITHMS)
    spec = lamps()
    learner = gradus.Learner(gradus.load_model(lamps_model, device="cpu"), spec, config(algorithm=f"{file}:last_turn"))
    groups = gradus.roll_out(spec, learner.policy, episodes=2, group_size=2).groups
    samples = learner.credit(groups)
    for sample in samples:
        assert torch.equal(sample.advantages != 0, sample.turns == sample.turns.max())
    other = config(algorithm=f"{file}:wrong_shape")
    learner = gradus.Learner(gradus.load_model(lamps_model, device="cpu"), spec, other)
    with pytest.raises(ConfigError, match=r"one advantage for each turn: .* in the shape \(4, "):
        learner.credit(groups)
    with pytest.raises(ValueError, match=r"is a int; expected a gradus\.algorithms\.Algorithm"):
        config(algorithm=f"{file}:number")
