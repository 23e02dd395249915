"""Recipes fit data of few rows."""

import json

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


@pytest.mark.parametrize("form", ["file", "rows", "rewards"])
def test_a_nano_model_has_room_for_the_longest_rows(form, tmp_path):
    """Answers of a sentence were cut at 32 tokens, so no reward could be earned; prompts of 500 words ended in an error of SFT."""
    said = "There are {} apples in all, after the friend from the next street gave some more to the family behind the garden."
    rows = [{"question": f"{'Ann counts. ' * (n * 8)} {n} + 1?", "answer": said.format(n + 1)} for n in range(60)]
    data = rows
    if form == "file":
        data = tmp_path / "rows.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    rewards = [lambda prompts, completions, **_: [1.0] * len(completions)] if form == "rewards" else []
    found = [each for each in gradus.check(data, rewards=rewards).findings if each.check == "context"]
    assert [each.status for each in found] == ["pass"], found
    assert make_recipe(data, rewards=rewards).model.nano.context > 512
