"""Recipes fit data of few rows."""

import pytest

import gradus
from gradus.commands.training import make_job
from gradus.core import GradusError
from gradus.rollouts import read_episodes


def right(completions, answer, **columns):
    return [float(text.strip() == gold) for text, gold in zip(completions, answer, strict=True)]


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("model", [None, "owner/name"])
def test_the_evaluation_takes_no_more_episodes_than_rows_are_held_out(quick, model):
    rows = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(10) for b in range(6)]
    job = make_job(rows, rewards=[right], model=model, quick=quick, online=False)
    recipe, most = job.recipe, max(len(condition.seeds) for condition in job.environment.conditions.values())
    assert 1 <= (recipe.eval.episodes or most) <= most < 20
    if model is None:
        assert gradus.check(rows, rewards=[right], quick=quick).status != "fail"
    said = gradus.check(rows, rewards=[right], model=model, settings={"eval.episodes": 300}, quick=quick)
    assert any(f"has {most} seeds, got episodes = 300" in each.evidence for each in said.findings)


@pytest.mark.parametrize("form", ["rows", "rewards"])
def test_a_nano_model_has_room_for_the_longest_rows(form):
    """Answers of a sentence were cut at 32 tokens, so no reward could be earned; prompts of 500 words ended in an error of SFT."""
    said = "There are {} apples in all, after the friend from the next street gave some more to the family behind the garden."
    rows = [{"question": f"{'Ann counts. ' * (n * 8)} {n} + 1?", "answer": said.format(n + 1)} for n in range(60)]
    rewards = [lambda prompts, completions, **_: [1.0] * len(completions)] if form == "rewards" else []
    found = [each for each in gradus.check(rows, rewards=rewards).findings if each.subject == "context"]
    assert [each.status for each in found] == ["pass"], found
    assert make_job(rows, rewards=rewards).recipe.model.nano.context > 512


def test_rewards_that_read_the_step_are_told_it_in_validation_and_evaluation(tmp_path):
    """Validation was told one step too few, and the evaluation what the process happened to hold: 0 after a kill."""
    rows = [{"question": f"Say {n}", "answer": str(n)} for n in range(40)]

    def steps(completions, trainer_state, **columns):
        return [trainer_state.global_step / trainer_state.max_steps] * len(completions)

    changes = {
        "audit.enabled": False,
        "grpo.max_steps": 2,
        "grpo.validation_every": 1,
        "eval.policies": ["grpo"],
        "eval.pairs": [],
    }
    run = gradus.run(rows, rewards=[steps], quick=True, out=tmp_path / "run", settings=changes)
    validated = [each["reward_mean"] for each in run.metrics("validation")]
    assert validated == [each for each in (0.0, 0.5, 1.0) for _ in range(len(validated) // 3)]
    evaluated = read_episodes(run.folder / "eval" / "episodes.jsonl.gz").episodes
    assert {each.reward.value for each in evaluated if each.policy == "grpo"} == {1.0}


def test_rewards_that_are_missing_are_counted_and_named(tmp_path):
    """Half of the rows raised: failed_episodes said 0, and the doctor asked for larger groups."""
    rows = [{"question": f"Say {n}", "answer": str(n), "id": n} for n in range(40)]

    def flaky(completions, id, **columns):
        if any(each % 2 for each in id):
            raise KeyError("bad row")
        return [float(len(text)) for text in completions]

    run = gradus.run(
        rows,
        rewards=[flaky],
        quick=True,
        out=tmp_path / "run",
        settings={"audit.enabled": False, "grpo.groups": 16, "grpo.group_size": 2},
    )
    step = run.metrics()[0]
    assert 0.2 < step["ungraded_episodes"] < 0.8
    assert "bad row" in step["reward_error"]
    assert "missing rewards" in (run.folder / "doctor.json").read_text()


def test_a_reward_that_wants_another_column_ends_the_run_at_its_audit(tmp_path):
    """GRPO's first step said so, behind SFT."""

    def hard(completions, difficulty, **columns):
        return [1.0] * len(completions)

    rows = [{"question": f"{n} + 1", "answer": str(n + 1)} for n in range(80)]
    with pytest.raises(
        GradusError, match=r"takes difficulty, which the data do not have; the columns are: answer, question"
    ):
        gradus.train(None, rows, rewards=[hard], quick=True, out=tmp_path / "run")
    assert not (tmp_path / "run" / "teach").exists()
    with pytest.raises(GradusError, match=r"none of the 64 episodes of .* could be graded: .* difficulty, which"):
        gradus.train(None, rows, rewards=[hard], quick=True, out=tmp_path / "anyway", anyway=True)
    assert not (tmp_path / "anyway" / "sft").exists()
