"""Rewards of one's own are the truth: no prompt asks for tags that they do not read, and no other figure stands beside them."""

import json
import sys
from pathlib import Path

import pytest

import gradus
from gradus.commands.environments import load_environment
from gradus.core import AuditFailed
from gradus.environments.verifiable.items import SYSTEM_PROMPT
from gradus.rewards import choose_rewards, find_reward, reads_tags
from gradus.rewards.functions import final_answer
from gradus.rollouts import roll_out
from gradus.runs.job import resolve
from gradus.runs.recipe.load import load_recipe

ROWS = [{"question": f"What is {n} + 4?", "answer": str(n + 4)} for n in range(60)]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "plain_reward.py").write_text(
        "import re\n\ndef last(completions, answer, **columns):\n"
        "    return [float((re.findall(r'\\d+', text) or [''])[-1] == gold) for text, gold in zip(completions, answer)]\n"
    )
    (tmp_path / "tagged_reward.py").write_text(
        "import re\nTAG = re.compile(r'<answer>(.*?)</answer>')\n\ndef tagged(completions, answer, **columns):\n"
        "    return [float((TAG.findall(text) or [''])[-1].strip() == gold) for text, gold in zip(completions, answer)]\n"
    )
    yield tmp_path
    for name in ("plain_reward", "tagged_reward"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("from_python", [False, True])
def test_a_reward_that_reads_no_tags_adds_no_prompt_and_is_the_true_reward(files: Path, from_python: bool) -> None:
    reward = f"{files}/plain_reward.py:last"
    spec = load_environment(ROWS if from_python else files / "rows.jsonl", rewards=[reward])
    result = roll_out(spec, spec.policy("gold"), [spec.train_task(0)], grader=spec.grader())
    episode = result.episodes[0]
    assert episode.system_prompt == ""
    assert episode.turns[0].action == episode.outcome["answer"]
    assert episode.reward is not None
    assert episode.metrics == {"true_reward": 1.0}
    said = gradus.FunctionPolicy("model", lambda seen, script: f"{seen.text} It is 12345")
    wrong = roll_out(spec, said, [spec.train_task(0)], grader=spec.grader()).episodes[0]
    assert wrong.turns[0].valid  # nothing was asked for that it ignored
    assert wrong.metrics == {"true_reward": 0.0}


def test_a_reward_that_reads_tags_keeps_the_prompt(files: Path) -> None:
    recipe = load_recipe(f"jsonl:{files}/rows.jsonl", rewards=choose_rewards([f"{files}/tagged_reward.py:tagged"]))
    spec = resolve(recipe).environment
    assert spec.data_set.system_prompt == SYSTEM_PROMPT
    assert spec.true_reward_name == "correct"
    assert reads_tags(find_reward("correctness"))
    assert not reads_tags(final_answer)


def test_the_final_answer_is_read_without_tags_and_a_denied_one_is_not() -> None:
    right = [
        "42",
        "The answer is 42.",
        "6 * 7 = 42",
        "So **42**.",
        "First 6.\nThen 7.\nThe result: 42",
        "<answer>42</answer>",
    ]
    wrong = ["The answer is 14, not 42.", "not 42", "-42", "41 or 42", "It is 42. No, it is 43.", "", "I know it"]
    assert final_answer([""] * len(right), right, ["42"] * len(right)) == [1.0] * len(right)
    assert final_answer([""] * len(wrong), wrong, ["42"] * len(wrong)) == [0.0] * len(wrong)


def test_the_final_answer_passes_its_own_audit(files: Path) -> None:
    result = gradus.audit(files / "rows.jsonl", rewards=["final_answer"])
    assert result.verdict == "pass", result.summary


def test_an_audit_that_fails_stops_a_run_and_names_the_way_on(files: Path) -> None:
    always = lambda completions, **_: [1.0] * len(completions)  # noqa: E731
    with pytest.raises(AuditFailed, match="anyway=True") as refused:
        gradus.run(ROWS, rewards=[always], out=files / "run", settings={"audit.episodes": 8, "audit.budget": 50})
    assert Path(refused.value.page).is_file()
    assert next(iter(refused.value.evidence.values())) in str(refused.value)
