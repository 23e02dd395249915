"""The arithmetic recipes keep their promises: from mostly wrong sums to more than 90 % right."""

import json
from pathlib import Path

import pytest

from gradus.runs.job import resolve
from gradus.runs.recipe.load import load_recipe
from gradus.runs.stages.runner import run_stages


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "seed"), [("arithmetic", 0), ("arithmetic", 1), ("arithmetic-adaptive", 0)])
def test_the_recipe_keeps_its_promises(name: str, seed: int, tmp_path: Path) -> None:
    run = run_stages(resolve(load_recipe(None, path=Path(name), changes={"seed": seed})), tmp_path / name)
    results = json.loads((run / "results.json").read_text())
    kept = {promise["text"]: (promise["met"], promise["value"]) for promise in results["promises"]}
    assert all(met for met, _ in kept.values()), kept
    page = (run / "report.html").read_text()
    assert "Weights of the components" in page
