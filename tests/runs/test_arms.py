"""Ways to train side by side: the same held-out tasks, one table, one decision."""

import json
from pathlib import Path
from typing import Any

import pytest

import gradus
from gradus.core import ConfigError
from gradus.runs.job import Job
from gradus.runs.stages import arms as stage
from tests.fakes import results_document

SMALL = [
    "audit.enabled=false", "teach.episodes=12", "sft.max_steps=2", "sft.batch_size=4", "grpo.max_steps=1", "grpo.groups=2",
    "grpo.group_size=2", "grpo.validation_every=0", "eval.episodes=3", "sft.threads=1", "grpo.threads=1", "eval.graders=[]",
    'eval.conditions=["in-distribution"]',
]  # fmt: skip
ARMS = ["sft", "sft+grpo"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("arms") / "arms"
    gradus.run("rhythm", quick=True, arms=ARMS, settings=SMALL, out=place)
    return place


def test_each_arm_trains_its_own_way_and_all_stand_in_one_table(folder: Path) -> None:
    trained = {
        place.name: {stage for stage in ("sft", "grpo") if (place / stage / "best").is_dir()}
        for place in folder.glob("arm-*")
    }
    assert trained == {"arm-sft": {"sft"}, "arm-sft+grpo": {"sft", "grpo"}}
    results = json.loads((folder / "results.json").read_text())
    (condition,) = results["conditions"].values()
    assert set(condition["policies"]) == {"base", "sft", "sft+grpo"}
    assert condition["episodes"] == 3
    assert "sft+grpo - sft" in condition["pairs"]


def test_the_same_command_again_trains_nothing(folder: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*.safetensors")}
    results = (folder / "results.json").read_bytes()
    gradus.run("rhythm", quick=True, arms=ARMS, settings=SMALL, out=folder)
    assert before == {file: file.stat().st_mtime_ns for file in folder.rglob("*.safetensors")}
    assert (folder / "results.json").read_bytes() == results


def test_all_arms_are_evaluated_on_the_tasks_that_the_first_one_has_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 22 minutes there was no table: one arm had time for 40 held-out tasks, and the others for 30."""
    times = iter([3, 2])

    def fitted(job: Job, folder: Path, **options: Any) -> Job:
        episodes = next(times)
        if job.recipe.eval.episodes == 3:
            return job
        return job.with_settings({"eval.episodes": episodes})

    monkeypatch.setattr(stage, "fitted_job", fitted)
    settings = [setting for setting in SMALL if not setting.startswith("eval.episodes")]
    gradus.run("rhythm", quick=True, arms=ARMS, settings=settings, out=tmp_path / "arms")
    (condition,) = json.loads((tmp_path / "arms/results.json").read_text())["conditions"].values()
    assert condition["episodes"] == 3


@pytest.mark.parametrize(
    ("arms", "says"),
    [
        (["sft"], "two or more"),
        (["sft", "ppo"], "an arm is sft, grpo, sft\\+grpo, distill, got 'ppo'"),
        (["sft", "distill"], "distill needs a teacher"),
    ],
)
def test_arms_that_cannot_be_trained_are_refused_before_anything_is_done(
    tmp_path: Path, arms: list[str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        gradus.run("arithmetic", quick=True, arms=arms, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_table_of_several_runs_makes_no_run_the_start_of_another() -> None:
    """A run that was called grpo was said to have begun with the one that was called sft."""
    document = results_document("adder", {"grpo - sft": {}}, grader="sum")
    document["one_checkpoint"] = ["sft", "grpo"]
    from gradus.evidence.reports.verdict import verdict_on

    assert not verdict_on(document).headline.startswith("GRPO")
