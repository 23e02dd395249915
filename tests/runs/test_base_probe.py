"""A published model is asked before anything is spent; what has nothing to learn from is refused; a time fits the settings."""

import functools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_qwen2 import make_tiny_qwen2

from gradus.core import ConfigError
from gradus.core.documents import MANIFEST
from gradus.policies.local.sampling import SamplingConfig
from gradus.rewards import choose_rewards
from gradus.runs.forecast.base_probe import BaseProbe, load_base, way_out
from gradus.runs.forecast.checks import check_job
from gradus.runs.forecast.look import fitted_job, is_probed, look_at_base, needs_warm_start, warm_start_settings
from gradus.runs.forecast.prompts import prompts_of, try_prompts
from gradus.runs.forecast.subject import Circumstances
from gradus.runs.forecast.time import TimePlan, plan_time, seconds_of
from gradus.runs.job import Job, resolve
from gradus.runs.manifest import Manifest
from gradus.runs.recipe.load import load_recipe
from gradus.runs.recipe.record import Recipe
from gradus.stats import mean_interval

REWARDS = """def nothing(completions, **columns):
    return [0.0 for _ in completions]


def letters(completions, **columns):
    return [sum(letter in "aeiou" for letter in text) / max(1, len(text)) for text in completions]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    make_tiny_qwen2(folder / "model", context=2048)
    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(80)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "base_rewards.py").write_text(REWARDS)
    return folder


def job_with(folder: Path, reward: str) -> Job:
    recipe = load_recipe(
        f"jsonl:{folder / 'rows.jsonl'}",
        rewards=choose_rewards([f"{folder / 'base_rewards.py'}:{reward}"]),
        changes=[
            f"model.path={folder / 'model'}",
            "grpo.sampling.max_new_tokens=24",
            "grpo.groups=4",
            "grpo.group_size=4",
        ],
    )
    return resolve(recipe)


def short_job(folder: Path) -> Job:
    """Rows with short answers under the default reward."""
    return resolve(load_recipe(f"jsonl:{folder / 'rows.jsonl'}", changes={"model.path": str(folder / "model")}))


@functools.cache
def probed(folder: Path, reward: str | None) -> BaseProbe:
    """What is seen of the base under a reward, or of short answers; looked at once for all tests."""
    job = short_job(folder) if reward is None else job_with(folder, reward)
    return look_at_base(job, time=None, fixed=()).probe


def test_a_base_without_any_variance_is_refused_with_a_way_out(folder: Path, tmp_path: Path) -> None:
    """Nothing said that the reward was 0 in 19 of 20 settings; the forecast was 93 hours, and the doctor found nothing unusual."""
    job = job_with(folder, "nothing")
    assert is_probed(job)
    lines: list[str] = []
    with pytest.raises(ConfigError, match="learn from here: its answers to 24 of 24 questions earn the same"):
        fitted_job(job, tmp_path, time=None, fixed=(), anyway=False, tell=lines.append)
    assert "the base earns 0" in lines[0]
    assert not (tmp_path / MANIFEST).exists()
    fitted_job(job, tmp_path, time="10m", fixed=(), anyway=True, tell=lines.append)
    assert (tmp_path / MANIFEST).is_file()


def test_a_resumed_run_keeps_the_settings_that_were_fitted(folder: Path, tmp_path: Path) -> None:
    job = job_with(folder, "letters")
    lines: list[str] = []
    first = fitted_job(job, tmp_path, time="5m", fixed=("grpo.groups",), anyway=False, tell=lines.append)
    assert first.recipe.grpo.groups == 4
    assert "for 5 min (--time changes it)" in lines[-1]
    count = len(lines)
    again = fitted_job(job, tmp_path, time="5m", fixed=("grpo.groups",), anyway=False, tell=lines.append)
    assert again.recipe == first.recipe
    assert len(lines) == count  # the second time nothing was asked


def test_a_steps_cost_is_that_of_its_parts_on_one_clock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One first update was timed with two clocks, so that training took 0.0 s and an update 8.5 s."""
    costs = iter([{"train": 9.0, "update": 8.0}, {"train": 3.2, "update": 0.5}])
    steps: list[float] = []

    def update(*arguments: Any) -> Any:
        steps.append(1.0)
        return SimpleNamespace(seconds=next(costs))

    monkeypatch.setattr("gradus.runs.forecast.base_probe.policy_update", update)
    job = job_with(folder, "letters")
    probe = look_at_base(job, time=None, fixed=()).probe
    assert len(steps) == 2
    config = job.recipe.grpo
    trained = 6 * 4  # a quarter of the questions, four answers each
    assert probe.train == pytest.approx(3.2 / config.epochs / trained)
    assert probe.update == pytest.approx(0.5 / (config.epochs * config.minibatches))
    assert probe.rollout > 0


def test_shorter_answers_save_their_own_tokens_and_not_the_prompts(folder: Path) -> None:
    """An evaluation after SFT was planned as if the trained model rambled like the base: 130 s for 79."""
    job = job_with(folder, "letters")
    costs = {"rollout": 1.0, "prompt_seconds": 0.4, "train": 1.0, "update": 0.0, "prompt_tokens": 32.0}
    probe = replace(probed(folder, "letters"), lengths=[[16]] * 4, **costs)
    config = job.recipe.grpo.model_copy(update={"sampling": SamplingConfig(max_new_tokens=16), "group_size": 8})
    half = config.model_copy(update={"sampling": SamplingConfig(max_new_tokens=8)})
    assert probe.episode_seconds(config) == 1.0
    assert probe.episode_seconds(half) == pytest.approx(0.4 + 0.6 / 2)
    after_sft = replace(probe, taught=4.0)
    assert after_sft.episode_seconds(config, trained=False) == 1.0
    assert after_sft.episode_seconds(config) == pytest.approx(0.4 + 0.6 / 4)
    episode = 0.4 + 0.6 / 4 + config.epochs * (32 / 8 + 4) / (32 / 8 + 16)
    assert after_sft.step_seconds(config) == pytest.approx(config.groups * 8 * episode)
    several_turns = replace(probe, lengths=[[10, 10, 10]], prompt_seconds=0.0, prompt_tokens=0.0)
    assert several_turns.episode_seconds(config) == 1.0  # the limit is one of each answer


def test_less_time_makes_a_shorter_run_and_what_a_person_set_stays(folder: Path) -> None:
    job = job_with(folder, "letters")
    probe = replace(probed(folder, "letters"), rollout=0.5, train=0.5, update=0.5, load=0.5, paid=None)

    def plan(seconds: float, *fixed: str) -> TimePlan:
        return plan_time(job, probe, probe_seconds=5.0, limit=seconds, fixed=fixed)

    short, long = plan(600.0), plan(7200.0)
    assert short.steps < long.steps
    assert short.recipe.grpo.max_steps == long.recipe.grpo.max_steps >= long.steps  # the run finds out how many fit
    several = plan_time(job, probe, probe_seconds=5.0, limit=600.0, fixed=(), timed=False)
    assert several.recipe.grpo.max_steps == several.steps == short.steps
    assert short.total < 1.1 * 600.0
    assert long.total < 1.1 * 7200.0
    assert short.problem is None
    typed = plan(600.0, "grpo.max_steps", "eval.episodes")
    assert typed.recipe.grpo.max_steps == job.recipe.grpo.max_steps
    assert not {"grpo.max_steps", "eval.episodes"} & typed.changes.keys()


def test_a_plan_beyond_the_time_is_a_failure_with_a_way_out(folder: Path) -> None:
    """Ten steps that take 1.1 hours were a pass for eight minutes."""
    job = job_with(folder, "letters")
    probe = replace(probed(folder, "letters"), rollout=5.0, train=5.0, update=5.0, paid=None)
    plan = plan_time(job, probe, probe_seconds=5.0, limit=480.0, fixed=())
    evidence, remedy = plan.problem
    assert "and the time is 8 min" in evidence
    assert f"--time {-(-plan.total // 60):.0f}m" in remedy


def test_the_way_out_follows_from_what_the_answers_show(folder: Path) -> None:
    job = job_with(folder, "nothing")
    probe, spec = probed(folder, "nothing"), job.environment
    for seen, way in (
        ({"stated": 0.5, "asks_for_tags": True}, "--reward final_answer"),
        ({"stated": 0.0, "cut": replace(probe.cut, mean=0.9)}, "Reply with the answer and nothing else"),
        ({"stated": 0.0, "longest_gold": 90, "cut": replace(probe.cut, mean=0.9)}, "max_new_tokens=91"),
        ({"stated": 0.5, "asks_for_tags": False, "cut": replace(probe.cut, mean=0.0)}, "say in the question how to"),
    ):
        assert way in way_out(replace(probe, **seen), spec, job.recipe.grpo)[1]


def test_a_base_without_a_signal_is_one_row_with_one_remedy(folder: Path) -> None:
    """Six rows that passed stood before the one that failed."""
    findings = check_job(job_with(folder, "nothing"), Circumstances())
    rows = [(finding.status, finding.remedy) for finding in findings if finding.subject == "base"]
    assert len(rows) == 1
    assert rows[0][0] == "fail"
    assert rows[0][1].count("--set") <= 1


def test_examples_of_a_prompt_are_not_trained_on(folder: Path) -> None:
    job = short_job(folder)
    texts = prompts_of(job)
    assert list(texts) == ["none", "instruction", "2 examples", "4 examples"]
    for count, name in ((2, "2 examples"), (4, "4 examples")):
        prompt = texts[name]
        prompted = job.with_settings({"model.system_prompt": prompt}).environment
        before, after = (spec.data_set.splits["train"] for spec in (job.environment, prompted))
        examples = [item for item in before if item not in after]
        assert len(examples) == count
        assert all(item.question in prompt for item in examples)
        assert not any(f"Question: {item.question}\n" in prompt for item in after)
        assert prompted.data_set.system_prompt == prompt
        assert prompted.data_set.splits["held-out"] == job.environment.data_set.splits["held-out"]


def test_of_prompts_that_earn_the_same_the_simplest_is_used(folder: Path) -> None:
    job = short_job(folder)
    trial = try_prompts(job, load_base(job)[0], ())
    rewards = [prompt.reward.mean for prompt in trial.prompts]
    assert trial.best.reward.mean == max(rewards)
    assert trial.best is trial.prompts[rewards.index(max(rewards))]
    assert trial.changes() == {"model.system_prompt": trial.best.text}
    assert not replace(trial, fixed=True).changes()


def test_a_base_without_a_signal_learns_reference_answers_first(folder: Path, tmp_path: Path) -> None:
    """A set on which the base earned 0 of 64 ended the run."""
    job = short_job(folder)
    lines: list[str] = []
    fitted = fitted_job(job, tmp_path, time="30m", fixed=(), anyway=False, tell=lines.append)
    assert fitted.recipe.teach.enabled
    assert fitted.recipe.teach.episodes <= fitted.environment.data_set.size("train")
    assert "sft" in fitted.policies()
    assert any("the reference answers, so SFT on" in line for line in lines)
    assert fitted_job(job, tmp_path, time="30m", fixed=(), anyway=False, tell=lines.append).recipe == fitted.recipe
    with pytest.raises(ConfigError, match="nothing to learn from here"):
        fitted_job(job, tmp_path / "b", time="30m", fixed=("teach.enabled",), anyway=False, tell=lines.append)


def test_a_warm_start_keeps_what_a_person_set(folder: Path, tmp_path: Path) -> None:
    """`--set sft.epochs=2` was answered with 20."""
    typed = {"sft.epochs": 2, "teach.episodes": 16}
    job = short_job(folder).with_settings(typed)
    fitted = fitted_job(job, tmp_path, time="30m", fixed=tuple(typed), anyway=False, tell=lambda line: None)
    assert fitted.recipe.teach.enabled
    assert (fitted.recipe.sft.epochs, fitted.recipe.teach.episodes) == (2, 16)


def test_a_warm_start_takes_more_rows_before_it_repeats_them(folder: Path, tmp_path: Path) -> None:
    """Seventeen passes over 512 of 1,600 rows learned these by heart, and nothing of the others."""
    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(2500)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    recipe = load_recipe(f"jsonl:{tmp_path / 'rows.jsonl'}", changes={"model.path": str(folder / "model")})
    job = resolve(recipe)
    job = job.with_settings(warm_start_settings(job))
    probe = replace(probed(folder, None), sft_step=4.0)

    def plan(seconds: float, *fixed: str) -> Recipe:
        return plan_time(job, probe, probe_seconds=5.0, limit=seconds, fixed=fixed).recipe

    short, long, typed = plan(900.0), plan(7200.0), plan(7200.0, "teach.episodes")
    assert (short.teach.episodes, typed.teach.episodes) == (512, 512)
    assert 512 < long.teach.episodes == long.grpo.first_task < job.environment.data_set.size("train") - 200
    assert 4 <= long.sft.epochs < typed.sft.epochs


@pytest.mark.parametrize(
    ("reward", "short", "fixed", "needs"),
    [(0.1, True, (), True), (0.6, True, (), False), (0.1, False, (), False), (0.1, True, ("teach.enabled",), False)],
)
def test_a_base_with_a_signal_learns_short_reference_answers_first_if_they_earn_far_more(
    reward: float, short: bool, fixed: tuple[str, ...], needs: bool, folder: Path
) -> None:
    """A base that counted vowels right in 10 of 100 answers had ten minutes of GRPO alone."""
    job = short_job(folder)
    rewards, varied = mean_interval([reward] * 8), mean_interval([0.0, 1.0])
    probe = replace(probed(folder, None), reward=rewards, varied=varied)
    assert needs_warm_start(job, probe, fixed, short=short) is needs


def test_a_warm_start_may_take_a_share_of_the_time_and_ends_by_its_held_out_loss(folder: Path, tmp_path: Path) -> None:
    """Thirty steps were planned whatever the time; after them counting words had just begun to be learned."""
    passes: list[int] = []
    for minutes in (2, 30):
        place = tmp_path / str(minutes)
        fitted = fitted_job(short_job(folder), place, time=f"{minutes}m", fixed=(), anyway=True, tell=lambda line: None)
        plan = Manifest(place).planned_seconds
        sft = fitted.recipe.sft
        assert plan["sft"] <= 0.6 * 60 * minutes or sft.epochs == 1
        assert sft.patience is not None
        passes.append(sft.epochs)
    assert passes[0] <= passes[1]


def test_steps_that_a_person_typed_are_all_done(folder: Path, tmp_path: Path) -> None:
    for name, fixed, limit in (("typed", ("grpo.max_steps",), None), ("open", (), 1800.0)):
        fitted_job(short_job(folder), tmp_path / name, time="30m", fixed=fixed, anyway=True, tell=lambda line: None)
        left = Manifest(tmp_path / name).seconds_for("grpo")
        assert (left is None) == (limit is None)
        assert left is None or 0 < left < limit


@pytest.mark.parametrize("wrong", ["20", "m", "0m", "20 days"])
def test_a_time_is_a_number_and_a_unit(wrong: str) -> None:
    with pytest.raises(ConfigError, match="as in --time 20m"):
        seconds_of(wrong)
