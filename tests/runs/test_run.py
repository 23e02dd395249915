"""`gradus run`, whole, at the smallest size that still goes through every stage."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import gradus
from gradus.core import ConfigError
from gradus.core.files import write_json
from gradus.runs.job import resolve
from gradus.runs.recipe.load import load_recipe
from gradus.runs.stages.context import RunContext
from gradus.runs.stages.runner import do_stages, run_stages

SMALL = [
    "audit.enabled=false",
    "teach.episodes=24",
    "sft.threads=1",  # beside another test two threads wait for each other
    "grpo.threads=1",
    "sft.max_steps=6",
    "sft.batch_size=4",
    "sft.validation_every=6",
    "grpo.max_steps=2",
    "grpo.groups=2",
    "grpo.group_size=3",
    "grpo.validation_every=2",
    "grpo.validation_tasks=2",
    "eval.episodes=3",
    'eval.policies=["heuristic", "sft", "grpo", "grpo-greedy"]',
    'eval.pairs=["grpo-sft", "grpo-heuristic"]',
    'eval.conditions=["in-distribution"]',
    'eval.graders=["v3", "v2"]',
]


def recipe(*more):
    return load_recipe("rhythm", quick=True, changes=[*SMALL, *more])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_stages(resolve(recipe()), tmp_path_factory.mktemp("runs") / "rhythm")


def test_every_stage_leaves_what_it_promises(run):
    for name in (
        "model/config.json",
        "teach/episodes.jsonl.gz",
        "eval/episodes.jsonl.gz",
        "sft/metrics.jsonl",
        "sft/best/config.json",
        "grpo/metrics.jsonl",
        "grpo/best/config.json",
        "doctor.json",
        "results.json",
        "costs.json",
        "report.html",
        "recipe.toml",
    ):
        assert (run / name).is_file(), name


def test_a_finished_run_holds_one_weights_file_per_evaluated_checkpoint(run):
    """Two checkpoints with their optimizers lay beside best and final: 8 GB of a model of 0.54."""
    files = {
        file.stat().st_ino: file.stat().st_size for file in run.rglob("*") if file.suffix in (".safetensors", ".pt")
    }
    evaluated = [run / name / "model.safetensors" for name in ("model", "sft/best", "grpo/best")]
    assert set(files) == {file.stat().st_ino for file in evaluated}
    assert sum(files.values()) <= 1.1 * sum(file.stat().st_size for file in evaluated)


def test_results_have_the_schema_that_machines_read(run):
    results = json.loads((run / "results.json").read_text())
    assert results["schema"] == 2
    assert results["grader"] == "v3"
    condition = results["conditions"]["in-distribution"]
    assert set(condition["policies"]) == {"base", "heuristic", "sft", "grpo", "grpo-greedy"}
    assert set(condition["pairs"]) == {"grpo - sft", "grpo - heuristic"}
    for policy in condition["policies"].values():
        assert {"mean", "low", "high"} <= set(policy["reward"])
        assert {"mean", "low", "high"} <= set(policy["true_reward"])
    assert "v2" in results["graders"]
    assert {"text", "value", "met"} <= set(results["promises"][0])
    assert results["quick"] is True


def test_the_recipe_that_was_stored_makes_the_same_run(run):
    again = load_recipe(None, path=run / "recipe.toml")
    assert again.model_dump() == recipe().model_dump()


def test_a_second_call_does_nothing_again(run):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*.safetensors")}
    run_stages(resolve(recipe()), run)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*.safetensors")} == before


def test_metrics_are_one_record_a_step_unless_others_are_asked_for(run):
    result = gradus.load_run(run)
    assert [record["step"] for record in result.metrics()] == [1, 2]
    assert {record["kind"] for record in result.metrics()} == {"step"}
    assert {record["kind"] for record in result.metrics("validation")} == {"validation"}
    assert {"sft", "step", "validation"} <= {record["kind"] for record in result.metrics(None)}


def test_a_changed_setting_is_refused_by_name_and_redo_does_only_what_builds_on_it(run):
    other = recipe("grpo.max_steps=3")
    with pytest.raises(
        ConfigError,
        match=r"grpo\.max_steps was 2, is now 3.*--out \(with --model .* from these weights, with a new optimizer\)",
    ):
        run_stages(resolve(other), run)
    sft = (run / "sft/best/model.safetensors").stat().st_mtime_ns
    run_stages(resolve(other), run, redo=True)
    assert (run / "sft/best/model.safetensors").stat().st_mtime_ns == sft
    steps = [json.loads(line) for line in (run / "grpo/metrics.jsonl").read_text().splitlines()]
    assert max(record["step"] for record in steps) == 3


def test_nothing_is_left_of_stages_that_a_run_does_no_more(tmp_path):
    """A run without a teacher kept the costs and the curves of the SFT before."""

    def done(stages, redo):
        def do(name):
            return lambda run, cost: write_json(run.folder / name / "metrics.jsonl", {})

        context = RunContext(resolve(recipe()), tmp_path / "run", redo=redo, console=Console(quiet=True))
        context.manifest.leave_out(stages)
        do_stages(context, {name: (do(name), ()) for name in stages})
        return [row["stage"] for row in context.manifest.costs()]

    assert done(("model", "teach", "sft", "grpo"), redo=False) == ["model", "teach", "sft", "grpo"]
    assert done(("model", "grpo"), redo=True) == ["model", "grpo"]
    assert not (tmp_path / "run" / "sft").exists()
    assert done(("model", "teach", "sft"), redo=True) == ["model", "teach", "sft"]
    # None of these was made with other settings, and one report would show both.
    with pytest.raises(ConfigError, match=r"the stage 'teach' of another recipe.*--out.*--redo"):
        done(("model", "grpo"), redo=False)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("grpo.learning_rat=1e-3", r"grpo.learning_rat: unknown key; grpo knows .*lr"),
        ("speed=9", "speed: unknown key"),
        ("grpo.group_size=1", "group_size"),
        ("nonsense", "key=value"),
        ("seed.deep=1", "seed is a value"),
    ],
)
def test_a_recipe_that_cannot_be_used_says_why(change, says):
    with pytest.raises(ConfigError, match=says):
        load_recipe("rhythm", changes=[change])


def test_the_threads_of_one_stage_are_not_those_of_the_next(tmp_path: Path) -> None:
    """An evaluation after training had the training's threads, and in a run that was broken off between them the machine's."""
    before, seen = torch.get_num_threads(), []
    run = RunContext(
        resolve(load_recipe("arithmetic", quick=True)),
        tmp_path / "run",
        redo=False,
        console=Console(quiet=True),
        anyway=False,
    )

    def stage(context: RunContext, cost: dict[str, Any]) -> None:
        seen.append(torch.get_num_threads())
        torch.set_num_threads(before + 1)

    do_stages(run, dict.fromkeys(("sft", "eval"), (stage, ())))
    assert seen == [before, before]
    assert torch.get_num_threads() == before
