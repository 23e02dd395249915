"""The arithmetic recipes keep their promises: from mostly wrong sums to more than 90 % right, within six minutes on two cores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradus.pipeline.recipe_files import load_recipe
from gradus.pipeline.run import run_recipe

SIX_MINUTES = 360.0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "seed"), [("arithmetic", 0), ("arithmetic", 1), ("arithmetic-adaptive", 0)])
def test_the_recipe_keeps_its_promises(name: str, seed: int, tmp_path: Path) -> None:
    run = run_recipe(load_recipe(None, path=Path(name), seed=seed), out=tmp_path / name)
    results = json.loads((run / "results.json").read_text())
    kept = {promise["text"]: (promise["met"], promise["value"]) for promise in results["promises"]}
    assert all(met for met, _ in kept.values()), kept
    seconds = sum(stage["seconds"] for stage in json.loads((run / "costs.json").read_text())["stages"])
    assert seconds <= SIX_MINUTES
    page = (run / "report.html").read_text()
    assert "Weights of the components" in page
