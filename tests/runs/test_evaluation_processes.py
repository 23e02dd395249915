"""Policies of an evaluation, rolled out in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path
from threading import Thread

import pytest
from rich.console import Console

from gradus.core import GradusError
from gradus.evidence.evaluation import evaluate
from gradus.runs.recipe.load import load_recipe
from gradus.runs.stages.context import RunContext, run_policies
from gradus.runs.stages.evaluation_processes import roll_out_beside, workers_worth
from gradus.runs.stages.training_stages import make_nano_model

NAMES = ["random", "base", "bayes"]


def _run(folder: Path, episodes: int) -> RunContext:
    recipe = load_recipe("rhythm", quick=True)
    recipe = recipe.model_copy(update={"eval": recipe.eval.model_copy(update={"episodes": episodes, "conditions": ()})})
    make_nano_model(recipe, folder / "model")
    return RunContext(recipe, folder, redo=False, console=Console(quiet=True))


def test_little_work_and_what_others_may_not_find_stays_here(tmp_path: Path):
    run = _run(tmp_path, 100)
    many = [*NAMES, "heuristic", "clairvoyant"]
    assert workers_worth(run, many) == min(2, len(os.sched_getaffinity(0)))
    assert workers_worth(run, NAMES[:1]) == workers_worth(run, [*many, str(tmp_path / "model")]) == 1


@pytest.mark.slow
def test_processes_roll_out_what_one_does(tmp_path: Path):
    run = _run(tmp_path, 4)
    alone = evaluate(run.spec, run_policies(run, NAMES), graders=["v3"], episodes=4, seed=run.recipe.seed, pairs=[])
    beside = roll_out_beside(run, NAMES, 2)
    assert {condition: set(policies) for condition, policies in beside.items()} == {
        condition: set(policies) for condition, policies in alone.episodes.items()
    }
    for condition, policies in alone.episodes.items():
        for name, episodes in policies.items():
            assert beside[condition][name] == episodes


@pytest.mark.slow
def test_a_process_that_dies_ends_the_evaluation_with_a_way_out(tmp_path: Path):
    def kill_one() -> None:
        while not (children := multiprocessing.active_children()):
            time.sleep(0.05)
        children[0].kill()

    run = _run(tmp_path, 4)
    Thread(target=kill_one, daemon=True).start()
    with pytest.raises(GradusError, match="workers=1"):
        roll_out_beside(run, NAMES, 2)
