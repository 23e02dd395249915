"""Defaults follow from the data: the prompt asks for what the reward reads, and the limit is that of the reference answers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tiny_qwen2 import make_tiny_qwen2

import gradus
from gradus.commands.training import make_job
from gradus.core import ConfigError
from gradus.policies.scripted import FunctionPolicy, policy_factory
from gradus.runs.forecast.checks import require_names
from gradus.runs.forecast.look import warm_start_settings
from gradus.runs.forecast.prompts import PromptTrial, TriedPrompt
from gradus.runs.stages.context import RunContext, run_policies
from gradus.stats import mean_interval

Rows = list[dict[str, str]]
LABELS = [{"text": f"message {n}", "label": ("light_on", "light_off", "lock_the_door")[n % 3]} for n in range(80)]
SUMS = [{"question": f"What is {n} + {n + 1}?", "answer": str(2 * n + 1)} for n in range(80)]
WORKED = [{**row, "worked": "I count on from the first number."} for row in SUMS]
LONG = [
    {"question": f"Why {n}?", "answer": f"{n} is a number that somebody wrote down before the others came"}
    for n in range(80)
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen2(tmp_path_factory.mktemp("model") / "model", context=2048)


def exact(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    return [float(text.strip() == gold) for text, gold in zip(completions, answer, strict=True)]


def brief(completions: list[str], **_: Any) -> list[float]:
    return [1.0 / (1 + len(text)) for text in completions]


TAGS = "<" + "answer>"  # a module that names the tag is taken for one whose rewards read it


@pytest.mark.parametrize(
    ("rows", "rewards", "asked", "limit"),
    [
        (SUMS, [], "Reply with the answer and nothing else.", 16),
        (SUMS, [exact], "Reply with the answer and nothing else.", 16),
        (LABELS, [], "Reply with one of these labels and nothing else: light_off, light_on, lock_the_door.", 16),
        (SUMS, [brief], "", 256),
        (LONG, [exact], "", 256),
    ],
)
def test_prompt_and_length_follow_from_rows_and_reward(
    rows: Rows, rewards: list[Any], asked: str, limit: int, model: Path
) -> None:
    """A base got 256 tokens for a word, and was asked for tags that the reward did not read."""
    job = make_job(rows, rewards=rewards, model=model)
    assert job.environment.data_set.system_prompt == asked
    assert job.recipe.grpo.sampling.max_new_tokens == limit
    require_names(job)


@pytest.mark.parametrize(("rows", "rewards"), [(WORKED, []), (SUMS, ["format", "correctness"])])
def test_reasoning_keeps_its_room(rows: Rows, rewards: list[Any], model: Path) -> None:
    job = make_job(rows, rewards=rewards, model=model)
    assert TAGS in job.environment.data_set.system_prompt
    assert job.recipe.grpo.sampling.max_new_tokens == 256


def test_grpo_begins_with_rows_that_sft_has_not_seen(model: Path) -> None:
    """GRPO began with the rows that SFT had just learned, whose answers earn all the same."""
    many = [{"question": f"What is {n} + {n + 1}?", "answer": str(2 * n + 1)} for n in range(1200)]
    settings = warm_start_settings(make_job(many, model=model))
    assert settings["grpo.first_task"] == settings["teach.episodes"] == 512
    labels = [{"text": f"message {n}", "label": LABELS[n % 3]["label"]} for n in range(1200)]
    recipe = make_job(labels, model=model).recipe
    assert recipe.grpo.first_task == recipe.teach.episodes == 512
    assert warm_start_settings(make_job(SUMS, model=model))["grpo.first_task"] == 0  # all rows are taught


def test_what_a_person_sets_stays(model: Path) -> None:
    settings = {"model.system_prompt": "Think.", "grpo.sampling.max_new_tokens": 99}
    job = make_job(SUMS, model=model, settings=settings)
    assert (job.environment.data_set.system_prompt, job.recipe.grpo.sampling.max_new_tokens) == ("Think.", 99)
    assert make_job(SUMS, model=model, grader="composed").recipe.rewards == ()


def test_a_reference_answer_that_does_not_fit_or_does_not_earn_the_most_is_refused_before_anything_is_spent(
    model: Path,
) -> None:
    """SFT learned answers in tags that eight tokens could not hold, and GRPO had no variance in thirty steps."""
    short = {"grpo.sampling.max_new_tokens": 1}
    with pytest.raises(ConfigError, match=r"a right answer has \d+ tokens, 1 may be sampled"):
        require_names(make_job(SUMS, model=model, settings=short))
    odd = [{**row, "answer": f"</{TAGS[1:]} {row['answer']}"} for row in SUMS]
    with pytest.raises(ConfigError, match="of 64 reference answers earn less than 1, the most that there is"):
        require_names(make_job(odd, model=model, rewards=["correctness"]))
    findings = {finding.subject: finding for finding in gradus.check(SUMS, model=model, quick=True).findings}
    assert findings["reference"].evidence == "the reference answers earn 1, the most that there is"


def test_a_better_prompt_than_a_persons_is_asked_of_the_base_beside_it(model: Path, tmp_path: Path) -> None:
    """A person's prompt stays; whether training is worth more than a prompt then stood in no table."""
    prompts = [
        TriedPrompt(name=name, text=text, reward=mean_interval([reward, reward]))
        for name, text, reward in (("none", None, 0.1), ("instruction", "Mine.", 0.2), ("2 examples", "Q A", 0.3))
    ]
    assert PromptTrial(prompts=prompts, fixed=False).changes() == {"model.system_prompt": "Q A"}
    assert PromptTrial(prompts=prompts[:2], fixed=True).changes() == {}
    better = PromptTrial(prompts=prompts, fixed=True).changes()
    assert better == {"eval.prompted": "Q A"}
    job = make_job(SUMS, model=model, quick=True, settings={"model.system_prompt": "Mine.", **better})
    assert job.policies()[:2] == ("base", "prompted")
    asked: list[str] = []
    policies = run_policies(RunContext(job, tmp_path, redo=False, console=Console(quiet=True)), ["base", "prompted"])
    for policy in policies.values():
        rolled = gradus.roll_out(job.environment, policy, tasks=[job.environment.train_task(0)])
        tokens = rolled.episodes[0].turns[0].tokens
        asked.append(policy.tokenizer.decode(tokens.context_ids))
    assert "Mine." in asked[0]
    assert "Q A" in asked[1]
    assert "Mine." not in asked[1]


def test_a_policy_of_the_environment_comes_before_a_checkpoint_of_its_name(model: Path, tmp_path: Path) -> None:
    """An environment's own best prompt was evaluated as the bare base, so a gain of 0.28 was printed as 0.64."""
    spec = gradus.one_turn(SUMS, [exact], name="sums")
    own = replace(spec, policies={**spec.policies, "prompted": policy_factory("mine", lambda seen, script: "12")})
    context = RunContext(make_job(own, model=model), tmp_path, redo=False, console=Console(quiet=True))
    assert isinstance(run_policies(context, ["prompted"])["prompted"], FunctionPolicy)
