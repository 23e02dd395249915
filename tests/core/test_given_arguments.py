"""Wrong arguments of the API are ConfigErrors that name them; what can be meant is taken."""

from pathlib import Path

import pytest

import gradus
from gradus import commands
from gradus.commands.training import make_job
from gradus.core import ConfigError
from gradus.runs.recipe.tables import parse_changes

ROWS = [{"question": f"What is {n}?", "answer": str(n)} for n in range(80)]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: gradus.run(ROWS, stepz=3), "no argument 'stepz'"),
        (lambda: gradus.train(None, ROWS, settings=["grpo.max_step=1"]), "did you mean max_steps"),
        (lambda: commands.grpo(ROWS, model="owner/name", out="x", seeds=2), "no argument 'seeds'"),
        (
            lambda: gradus.load_environment("rows.arrow"),
            r"read from \.jsonl, \.json, \.csv and \.parquet files; convert it",
        ),
    ],
)
def test_what_cannot_be_meant_is_said(call, said):
    with pytest.raises(ConfigError, match=said):
        call()


def test_check_takes_what_a_run_takes():
    whole = {"seeds": 2, "redo": True, "anyway": True}
    assert gradus.check("arithmetic", quick=True, **whole).status != "fail"
    assert "no argument 'stepz'" in gradus.check("arithmetic", stepz=3).findings[0].evidence


def test_a_text_is_a_list_of_one():
    spec = gradus.load_environment("arithmetic", rewards="correctness=2")
    assert spec.grader().weights == {"correct": 2.0}
    scores = gradus.evaluate(
        "gold",
        "random",
        env="arithmetic",
        conditions="held-out",
        graders="correctness",
        pairs="gold-random",
        episodes=3,
    )
    record = scores.to_json()["conditions"]["held-out"]
    assert (list(record["policies"]), list(record["pairs"])) == (["gold", "random"], ["gold - random"])
    assert parse_changes("grpo.max_steps=3") == {"grpo.max_steps": 3}
    assert make_job("arithmetic", trackers="tensorboard").recipe.trackers == ("tensorboard",)


def test_all_means_all_wherever_names_stand():
    every = gradus.evaluate(["all"], env="arithmetic", conditions=["all"], episodes=2).to_json()
    added = gradus.evaluate("gold", "all", env="arithmetic", episodes=2).to_json()
    spec = gradus.load_environment("arithmetic")
    assert list(every["conditions"]) == list(spec.conditions)
    names = {frozenset(each["policies"]) for each in [*every["conditions"].values(), *added["conditions"].values()]}
    assert len(names) == 1
    assert len(names.pop()) > 3


def test_a_run_is_a_path(tmp_path):
    run = gradus.Run(str(tmp_path))
    assert (run.folder, Path(run)) == (tmp_path, tmp_path)
    for call in (lambda: commands.export(run, out=tmp_path / "out"), lambda: gradus.roll_out("arithmetic", run)):
        with pytest.raises(ConfigError, match=str(tmp_path)):
            call()
