"""Reward functions as guides for TRL print them, which read ``completion[0]["content"]``, on rows that ask in plain text."""

import json
import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from short_runs import lines

import gradus
from gradus.rewards import Completion, Rewards

ROWS = [{"question": f"{a} + {b} =", "answer": str(a + b)} for a in range(2, 7) for b in range(1, 9)]
GOOD = "<think>2 and 2</think>\n<reasoning>\n2 and 2\n</reasoning>\n<answer>\n4\n</answer>\n"


def extracted(text: str) -> str:
    return text.split("<answer>")[-1].split("</answer>")[0].strip()


def correctness_reward_func(prompts, completions, answer, **kwargs) -> list[float]:
    responses = [completion[0]["content"] for completion in completions]
    assert prompts[0][-1]["content"].startswith(("2", "3", "4", "5", "6"))
    return [2.0 if extracted(response) == gold else 0.0 for response, gold in zip(responses, answer, strict=True)]


def int_reward_func(completions, **kwargs) -> list[float]:
    return [0.5 if extracted(completion[0]["content"]).isdigit() else 0.0 for completion in completions]


def soft_format_reward_func(completions, **kwargs) -> list[float]:
    pattern = r"<reasoning>.*?</reasoning>\s*<answer>.*?</answer>"
    responses = [completion[0]["content"] for completion in completions]
    return [0.5 if re.search(pattern, response, re.DOTALL) else 0.0 for response in responses]


def xmlcount_reward_func(completions, **kwargs) -> list[float]:
    contents = [completion[-1].get("content") for completion in completions]
    return [sum(0.125 for tag in ("<reasoning>", "</answer>") if content.count(tag) == 1) for content in contents]


def every_message(completions, **kwargs) -> list[float]:
    return [float(sum(len(message["content"]) for message in completion) > 10) for completion in completions]


class Overlong:
    """A function with settings, as TRL's factories return."""

    __name__ = "overlong"

    def __call__(self, completion_ids: list[list[int]], **kwargs) -> list[float]:
        return [-1.0 if len(ids) > 10_000 else 0.0 for ids in completion_ids]


def solved(completions, solution, log_extra: Callable[..., None] | None = None, **kwargs) -> list[float | None]:
    contents = [completion[0]["content"] for completion in completions]
    if log_extra:
        log_extra("solution", list(solution))
    return [float(extracted(content) == gold) for content, gold in zip(contents, solution, strict=True)]


overlong = Overlong()
TABLE: list[tuple[Callable[..., Any], float]] = [
    (correctness_reward_func, 2.0),
    (int_reward_func, 0.5),
    (soft_format_reward_func, 0.5),
    (xmlcount_reward_func, 0.25),
    (every_message, 1.0),
    (overlong, 0.0),
    (solved, 1.0),
]
NAMES = [getattr(function, "__name__", "") for function, _ in TABLE]
pytestmark = pytest.mark.filterwarnings("ignore:reward .* reads chat messages")


@pytest.mark.parametrize(("name", "value"), [*zip(NAMES, [value for _, value in TABLE], strict=True)], ids=NAMES)
def test_a_guides_function_scores_typed_and_stored_completions(name: str, value: float, tmp_path: Path) -> None:
    reward = f"{__file__}:{name}"
    file = tmp_path / "completions.jsonl"
    file.write_text(json.dumps({"prompt": "2 + 2 =", "completion": GOOD, "answer": "4"}) + "\n")
    for words in (["-"], [str(file)]):
        result = call("rewards", "try", *words, "--reward", reward, "--json", stdin=file.read_text())
        assert (result.code, json.loads(result.stdout)[0]["value"]) == (0, value)


def test_guides_functions_are_audited_on_rows_of_text() -> None:
    audit = gradus.audit([function for function, _ in TABLE], ROWS, episodes=8, budget=60)
    (grading,) = [check for check in audit.to_json()["checks"] if check["name"] == "grading"]
    assert grading["status"] == "pass", grading["evidence"]


def test_guides_functions_train_from_python_and_from_a_recipe(tmp_path: Path) -> None:
    settings = {"grpo.max_steps": 1, "teach.enabled": False, "audit.enabled": False, "eval.episodes": 2}
    functions = [function for function, _ in TABLE]
    gradus.train(None, ROWS, rewards=functions, quick=True, settings=settings, out=tmp_path / "python")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    listed = json.dumps([f"{__file__}:{name}" for name in NAMES])
    tables = "[teach]\nenabled = false\n[audit]\nenabled = false\n[grpo]\nmax_steps = 1\n[eval]\nepisodes = 2\n"
    (tmp_path / "guide.toml").write_text(f"environment = 'rows.jsonl'\nrewards = {listed}\n{tables}[model.nano]\n")
    assert call("run", tmp_path / "guide.toml", "--quick", "--out", tmp_path / "recipe").code == 0
    for run in ("python", "recipe"):
        (step,) = lines(tmp_path / run / "grpo")
        assert {name: value for name, value in step.items() if "error" in name} == {}


def test_it_is_said_once_and_asked_no_more() -> None:
    row = Completion(prompt="2 + 2 =", completion=GOOD, columns={"answer": "4"})
    rewards = Rewards([correctness_reward_func, solved])
    with pytest.warns(UserWarning, match="reads chat messages") as said:
        assert rewards([row])[0].value == 3.0
    assert len(said) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rewards([row])[0].value == 3.0
    assert not rewards.errors


def test_a_function_of_text_that_gets_messages_is_asked_with_text() -> None:
    def length(completions, **kwargs):
        return [float(len(completion.strip())) for completion in completions]

    with pytest.warns(UserWarning, match="reads plain text"):
        (scored,) = Rewards([length], messages=True)([Completion(prompt="p", completion=" abc ")])
    assert scored.value == 3.0


def test_an_error_of_another_kind_changes_nothing() -> None:
    def first_letter(completions, **kwargs):
        return [1.0 if completion[0] == "A" else 0.0 for completion in completions]

    def number(completions, **kwargs):
        found = [re.search(r"\d", completion) for completion in completions]
        return [float(match.group()) for match in found]

    rewards = Rewards([(first_letter, 1.0), (number, 1.0)])
    for text, values in (("", (None, None)), ("A2", (1.0, 2.0)), ("none", (0.0, None))):
        (scored,) = rewards([Completion(prompt="p", completion=text)])
        assert tuple(scored.components.values()) == values
    assert not math.isnan(rewards.errors.total())


TRL = ["accuracy_reward", "reasoning_accuracy_reward", "think_format_reward"]


@pytest.mark.parametrize("name", TRL)
def test_trls_own_functions(name: str) -> None:
    pytest.importorskip("trl")
    text = "<think>\n2 and 2\n</think>\n$\\boxed{4}$"
    result = call("rewards", "try", "-c", text, "--answer", "4", "--reward", f"trl.rewards:{name}", "--json")
    assert (result.code, json.loads(result.stdout)[0]["value"]) == (0, 1.0)


@pytest.mark.parametrize(
    ("maker", "settings", "value"),
    [
        ("get_soft_overlong_punishment", (4, 2), -1.0),
        ("get_repetition_penalty_reward", (2, -1.0), -0.6),
        ("get_cosine_scaled_reward", (100, -1.0, -0.5, 0.5, 1.0), 1.0),
    ],
)
def test_trls_functions_with_settings(maker: str, settings: tuple[Any, ...], value: float) -> None:
    made = getattr(pytest.importorskip("trl.rewards"), maker)(*settings)
    row = Completion(prompt="p", completion=r"\boxed{4}", columns={"answer": "4"}, completion_ids=(1, 2, 1, 2, 1, 2))
    (scored,) = Rewards([made])([row])
    assert scored.value == pytest.approx(value, abs=0.01)
