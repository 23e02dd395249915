"""`gradus run --seeds`: every seed a run of its own, what no seed changes once, one evaluation over all."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gradus
from gradus.core import ConfigError, StorageError
from gradus.evidence.reports import write_report
from gradus.runs.comparison import compare_runs, named_runs
from gradus.runs.job import resolve
from gradus.runs.recipe.load import load_recipe
from gradus.runs.recipe.record import Recipe
from gradus.runs.stages.doctor import diagnosis_of
from gradus.runs.stages.runner import run_stages
from gradus.runs.stages.seeds import run_seeds, seed_recipe
from gradus.sandbox.locks import FolderLock

OWN = Path(__file__).parents[2] / "examples" / "own_environment.py"
SMALL = {
    "model.nano.hidden_size": 32,
    "model.nano.intermediate_size": 64,
    "model.nano.context": 128,
    "audit.enabled": False,
    "teach.episodes": 40,
    "sft.max_steps": 8,
    "grpo.first_task": 100,
    "grpo.max_steps": 2,
    "grpo.groups": 2,
    "grpo.validation_tasks": 2,
    "grpo.sampling.max_new_tokens": 4,
    "eval.policies": ["halving", "sft", "grpo"],
    "eval.episodes": 8,
    "eval.shown": 1,
}


@pytest.fixture(autouse=True, scope="module")
def _one_after_another() -> Iterator[None]:
    """Processes take seconds to start; the slow test has them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradus.runs.stages.seeds.seeds_at_once", lambda: 1)
        yield


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return load_recipe(f"{OWN}:spec", changes=SMALL)


@pytest.fixture(scope="module")
def folder(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_seeds(resolve(recipe), tmp_path_factory.mktemp("seeds") / "run", seeds=2)


def _results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def test_each_seed_is_the_run_that_its_recipe_makes_alone(folder: Path, recipe: Recipe, tmp_path: Path) -> None:
    alone = run_stages(resolve(seed_recipe(recipe, 1)), tmp_path / "alone")
    for name in ("grpo/best/model.safetensors", "eval/episodes.jsonl.gz", "results.json"):
        assert (folder / "seed-1" / name).read_bytes() == (alone / name).read_bytes(), name


def test_results_are_over_seeds_and_say_what_each_came_to(folder: Path) -> None:
    results = _results(folder)
    assert results["seeds"] == [0, 1]
    condition = results["conditions"]["main"]
    own = [_results(folder / f"seed-{seed}")["conditions"]["main"] for seed in (0, 1)]
    grpo = condition["policies"]["grpo"]
    assert grpo["reward"]["by_seed"] == [each["policies"]["grpo"]["reward"]["mean"] for each in own]
    assert grpo["reward"]["mean"] == pytest.approx(sum(grpo["reward"]["by_seed"]) / 2, abs=2e-6)
    assert grpo["episodes"] == 16
    assert "by_seed" not in condition["policies"]["halving"]["reward"]
    assert condition["policies"]["halving"] == own[0]["policies"]["halving"]
    pair = condition["pairs"]["grpo - sft"]["reward"]
    assert pair["by_seed"] == [each["pairs"]["grpo - sft"]["reward"]["mean"] for each in own]
    assert pair["episodes"] == 8


def test_a_second_call_trains_nothing_again(folder: Path, recipe: Recipe) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    (folder / "results.json").unlink()
    run_seeds(resolve(recipe), folder, seeds=2)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")} == before
    assert _results(folder)["seeds"] == [0, 1]


def test_seeds_of_other_settings_are_refused_before_one_is_trained(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "run"))
    shutil.rmtree(copy / "seed-0")
    with pytest.raises(ConfigError, match=r"grpo\.lr was"):
        run_seeds(resolve(load_recipe(f"{OWN}:spec", changes={**SMALL, "grpo.lr": 0.5})), copy, seeds=2)
    assert not (copy / "seed-0").exists(), "it was trained before seed 1 was refused"


def test_the_report_shows_every_seed(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "Reward by training seed, main" in text
    assert "over 2 training seeds" in text
    assert '"name":"seed 1"' in text
    assert f'data-shown="{folder}/seed-0"' in text
    run = gradus.load_run(folder)
    assert run.model.is_relative_to(folder / "seed-0")


def test_the_doctor_looks_at_every_seed(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "run"))
    metrics = copy / "seed-1" / "grpo" / "metrics.jsonl"
    steps = [{"kind": "step", "step": step, "zero_variance_groups": 1.0, "reward_std": 0.0} for step in range(1, 31)]
    metrics.write_text("".join(json.dumps(step) + "\n" for step in steps))
    evidence = [each["evidence"] for each in diagnosis_of(copy)["diagnoses"] if each["rule"] == "zero-variance groups"]
    assert [each[:12] for each in evidence] == ["seed 1, step"]
    write_report(copy)
    assert "seed-1/grpo/metrics.jsonl is not what the run wrote" in (copy / "report.html").read_text(encoding="utf-8")


def test_runs_of_several_seeds_compare_over_both(folder: Path) -> None:
    pair = compare_runs(named_runs([f"a={folder}", f"b={folder}"]))["conditions"]["main"]["pairs"]["b - a"]["reward"]
    assert (pair["mean"], pair["wins"], pair["ties"], pair["p"]) == (0.0, 0, 8, 1.0)
    one = compare_runs(named_runs([f"a={folder / 'seed-0'}", f"all={folder}"]))
    assert one["conditions"]["main"]["policies"]["all"]["episodes"] == 16
    assert one["one_checkpoint"] == ["a"]


def test_what_makes_no_sense_is_refused(folder: Path, recipe: Recipe) -> None:
    with pytest.raises(ConfigError, match="at least 2"):
        run_seeds(resolve(recipe), folder, seeds=0)
    with pytest.raises(ConfigError, match="several seeds"):
        run_stages(resolve(recipe), folder)
    with pytest.raises(ConfigError, match="one seed"):
        run_seeds(resolve(recipe), folder / "seed-0", seeds=2)


@pytest.mark.slow
def test_seeds_beside_each_other_go_on_after_a_kill_and_end_as_here(
    folder: Path, recipe: Recipe, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "gradus", "run", f"{OWN}:spec", "--seeds", "2"]
    command += [word for key, value in SMALL.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    command += ["--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list((tmp_path / "run").glob("seed-*/sft/metrics.jsonl")) and process.poll() is None:
        time.sleep(0.05)
    process.kill()
    process.wait()
    while _held(tmp_path / "run"):  # the seeds' own processes end with the one that was killed
        time.sleep(0.05)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for name in ("results.json", "seed-0/grpo/best/model.safetensors", "seed-1/grpo/best/model.safetensors"):
        assert (folder / name).read_bytes() == (tmp_path / "run" / name).read_bytes(), name


def _held(folder: Path) -> bool:
    try:
        for each in folder.glob("seed-*"):
            FolderLock(each).release()
    except StorageError:
        return True
    return False


def test_with_redo_no_joint_evaluation_is_left_while_seeds_are_trained_again(
    folder: Path, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(folder, tmp_path / "run")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gradus.runs.stages.seeds.train_here", killed)
    for redo, left in ((False, True), (True, False)):
        with pytest.raises(KeyboardInterrupt):
            run_seeds(resolve(recipe), run, seeds=2, redo=redo)
        there = {name: (run / name).exists() for name in ("results.json", "report.html", "costs.json")}
        assert there == dict.fromkeys(there, left)
        assert (run / "recipe.toml").is_file()  # it was gone after --redo, and gradus compare asked for another session
    assert (run / "eval" / "shared.jsonl.gz").is_file()


def test_all_seeds_are_judged_by_the_same_draws(recipe: Recipe) -> None:
    with pytest.raises(ConfigError, match=r"grpo\.seed is no key; set seed"):
        load_recipe(f"{OWN}:spec", changes={**SMALL, "grpo.seed": 5})
    fixed = load_recipe(f"{OWN}:spec", changes={**SMALL, "seed": 2})
    assert [seed_recipe(fixed, seed).eval.seed for seed in (2, 3, 4)] == [2, 2, 2]
    judged = load_recipe(f"{OWN}:spec", changes={**SMALL, "eval.seed": 9})
    assert [seed_recipe(judged, seed).eval.seed for seed in (0, 1)] == [9, 9]
