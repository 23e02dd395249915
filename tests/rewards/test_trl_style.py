"""Ten reward functions in the style of TRL's documentation run unchanged, on strings and on chat messages."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gradus
from gradus.core import Episode, StopReason, Task, Turn
from gradus.rewards import Completion, Rewards, completion_text, grader_of, reweigh

GOOD = "<think>2 and 2</think><answer>4</answer>"
ROWS = [
    Completion(prompt="2 + 2?", completion=GOOD, columns={"answer": "4", "ground_truth": "4", "task": "math"}),
    Completion(
        prompt="A capital?",
        completion=r"Paris \boxed{5} Paris",
        columns={"answer": "Paris", "ground_truth": "5", "task": "coding"},
        completion_ids=(5, 6, 7),
    ),
]


def text_of(completion: Any) -> str:
    return completion if isinstance(completion, str) else completion[0]["content"]


def reward_len(completions, **kwargs):
    return [float(len(text_of(completion))) for completion in completions]


def reward_tokens(completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]


def format_reward(completions, **kwargs):
    pattern = r"^<think>.*?</think><answer>.*?</answer>$"
    return [1.0 if re.match(pattern, text_of(content)) else 0.0 for content in completions]


def boxed_reward(completions, ground_truth, **kwargs):
    matches = [re.search(r"\\boxed\{(.*?)\}", text_of(completion)) for completion in completions]
    contents = [match.group(1) if match else "" for match in matches]
    return [1.0 if content == truth else 0.0 for content, truth in zip(contents, ground_truth)]  # noqa: B905


def math_only(prompts, completions, task, **kwargs):
    return [0.5 if kind == "math" else None for kind in task]


def unique_words(prompts, completions):
    return [len(set(text_of(text).split())) / max(len(text_of(text).split()), 1) for text in completions]


def exact(prompts, completions, answer, **kwargs):
    return [2.0 if text_of(text) == gold else 0.0 for text, gold in zip(completions, answer, strict=True)]


def late_bonus(completions, trainer_state, **kwargs):
    return [1.0 if trainer_state.global_step > 5 else 0.0 for _ in completions]


def logged(completions, log_extra=None, log_metric=None, **kwargs):
    log_extra("size", [len(text_of(text)) for text in completions])
    log_metric("longest", max(len(text_of(text)) for text in completions))
    return [0.0] * len(completions)


async def judged(prompts, completions, **kwargs):
    async def one(text: str) -> float:
        await asyncio.sleep(0.001)
        return float("Paris" in text)

    return await asyncio.gather(*(one(text_of(text)) for text in completions))


EXPECTED: list[tuple[Callable[..., Any], list[float | None]]] = [
    (reward_len, [float(len(GOOD)), 21.0]),
    (reward_tokens, [0.0, 3.0]),
    (format_reward, [1.0, 0.0]),
    (boxed_reward, [0.0, 1.0]),
    (math_only, [0.5, None]),
    (unique_words, [1.0, 2 / 3]),
    (exact, [0.0, 0.0]),
    (late_bonus, [0.0, 0.0]),
    (logged, [0.0, 0.0]),
    (judged, [0.0, 1.0]),
]


@pytest.mark.parametrize("messages", [False, True], ids=["strings", "messages"])
@pytest.mark.parametrize(("function", "values"), EXPECTED, ids=[function.__name__ for function, _ in EXPECTED])
def test_runs_unchanged(function: Callable[..., Any], values: list[float | None], messages: bool) -> None:
    scored = Rewards([(function, 2.0)], messages=messages)(ROWS)
    assert [each.components[function.__name__] for each in scored] == values
    assert [each.value for each in scored] == [None if value is None else 2.0 * value for value in values]


def test_prompts_come_as_the_format_says() -> None:
    seen: list[Any] = []

    def spy(prompts, completions, **kwargs):
        seen.extend(prompts)
        return [0.0] * len(prompts)

    row = Completion(prompt="2 + 2?", completion="4", system_prompt="Be brief.")
    Rewards([spy])([row])
    Rewards([spy], messages=True)([row])
    assert seen == ["2 + 2?", [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]]


def test_episodes_of_several_turns_are_scored_whole_and_rewarded_at_the_last_turn() -> None:

    seen: list = []

    def words(prompts, completions, **columns):
        seen.append((prompts, completions))
        return [float(len(completion_text(text).split())) for text in completions]

    def off(completions, **columns):
        return [1.0] * len(completions)

    turns = [Turn(index=0, observation="begin", action="a b"), Turn(index=1, observation="more", action="c")]
    episode = Episode(task=Task(environment="e", seed=0), policy="p", turns=tuple(turns), stop=StopReason.TERMINATED)
    grader = grader_of(Rewards([words, (off, 0.0)]), name="own", per_turn=False)
    (whole,) = grader.rewards([episode])
    assert seen[0] == (["begin"], ["a b\nc"])
    assert (whole.value, [len(terms) for terms in whole.terms]) == (3.0, [0, 2])
    switched = reweigh(grader, {"words": 2.0, "off": 5.0}).rewards([episode])[0]
    assert switched.value == 11.0

    grader_of(Rewards([words], messages=True), name="own", per_turn=False).rewards([episode])
    roles = [message["role"] for message in seen[-1][1][0]]
    assert roles == ["assistant", "user", "assistant"]


@pytest.mark.parametrize("form", ["messages", "text"])
def test_functions_get_what_the_rows_are(form: str, tmp_path: Path) -> None:
    """A function that TRL calls with messages, because the rows are chats, got strings; no command but run could change that."""
    rows: list[dict[str, object]] = [{"prompt": f"Say {n}.", "answer": str(n)} for n in range(40)]
    if form == "messages":
        rows = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows]

    def said(prompts: list, completions: list, **columns: object) -> list[float]:
        texts = [each[0]["content"] if form == "messages" else each for each in completions]
        assert [type(each) for each in prompts] == [list if form == "messages" else str] * len(texts)
        return [float(len(text)) for text in texts]

    for data in (rows, tmp_path / "rows.jsonl"):
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        result = gradus.roll_out(gradus.load_environment(data, rewards=[said]), "constant:abc", episodes=2)
        assert [each.reward.value for each in result.episodes if each.reward] == [
            float(len(each.turns[0].action)) for each in result.episodes
        ]
    reward = gradus.roll_out(gradus.one_turn(rows, rewards=[said]), "constant:abc", episodes=1).episodes[0].reward
    assert reward.value == 3.0
