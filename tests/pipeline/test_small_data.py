"""Recipes fit data of few rows."""

import pytest

import gradus
from gradus.api.training import make_recipe


def right(completions, answer, **columns):
    return [float(text.strip() == gold) for text, gold in zip(completions, answer, strict=True)]


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("model", [None, "owner/name"])
def test_the_evaluation_takes_no_more_episodes_than_rows_are_held_out(quick, model):
    rows = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(10) for b in range(6)]
    recipe = make_recipe(rows, rewards=[right], model=model, quick=quick, online=False)
    most = max(len(each.seeds) for each in recipe.spec().conditions.values())
    assert 1 <= (recipe.eval.episodes or most) <= most < 8
    if model is None:
        assert gradus.check(rows, rewards=[right], quick=quick).status != "fail"
    said = gradus.check(rows, rewards=[right], model=model, settings={"eval.episodes": 300}, quick=quick)
    assert any(
        "eval.episodes = 300, and " in each.message and f"has {most} seeds" in each.message for each in said.findings
    )
