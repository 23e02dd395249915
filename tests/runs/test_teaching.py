"""A teacher's episodes: stored as they come, finished later, counted with what they cost."""

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from gradus.core import Action, ConfigError, EpisodeStart, Failure, Request, Reward, Turn, Usage
from gradus.environments import load
from gradus.rollouts import read_episodes, roll_out
from gradus.runs.policies import make_policy
from gradus.runs.stages.teaching import TeachSummary, teach


def test_a_file_that_is_finished_later_is_the_same(tmp_path: Path):
    spec = load("arithmetic")
    for name, counts in (("at once", (150,)), ("twice", (70, 150))):
        for count in counts:
            summary = teach(
                spec,
                make_policy(spec, "gold"),
                episodes=count,
                path=tmp_path / name,
                grader=spec.grader(),
            )
        assert summary.failed == 0
    assert (tmp_path / "at once").read_bytes() == (tmp_path / "twice").read_bytes()


class Moody:
    """A teacher from outside: answers, and fails or says what no file takes where it is told to."""

    name = "moody"
    concurrency = 4

    def __init__(self, fails: Collection[int] = (), stop_at: int | None = None) -> None:
        self.fails, self.stop_at = fails, stop_at
        self.asked: list[int] = []

    def start(self, episodes: Sequence[EpisodeStart]) -> Self:
        self.rows = [episode.group for episode in episodes]
        return self

    def act(self, requests: Sequence[Request]) -> list[Action]:
        return [self.answer(self.rows[request.row]) for request in requests]

    def answer(self, task: int) -> Action:
        if task == self.stop_at:
            raise KeyboardInterrupt
        self.asked.append(task)
        if task in self.fails:
            return Action(failure=Failure(stage="act", type="CallError", message="the server was busy"))
        return Action(text="5")

    def close(self) -> None:
        """Nothing is held."""


def taught(path: Path, policy: Moody, episodes: int = 10, **options: Any) -> TeachSummary:
    spec = load("arithmetic")
    return teach(spec, policy, episodes=episodes, path=path, grader=options.pop("grader", spec.grader()), **options)


def numbers(path: Path) -> list[int]:
    return sorted(episode.group for episode in read_episodes(path).episodes if episode.failure is None)


def test_ctrl_c_loses_no_answer_that_came(tmp_path: Path):
    path = tmp_path / "t.jsonl"
    with pytest.raises(KeyboardInterrupt):
        taught(path, Moody(stop_at=8))
    assert numbers(path) == list(range(8))
    again = Moody()
    taught(path, again)
    assert again.asked == [8, 9]


def test_failed_episodes_are_rolled_out_again_and_nothing_else_is(tmp_path: Path):
    path = tmp_path / "t.jsonl"
    first = taught(path, Moody(fails={2, 7}))
    assert (first.failed, first.reason) == (2, "the server was busy")
    again = Moody()
    second = taught(path, again)
    assert again.asked == [2, 7]
    assert (second.failed, second.episodes, second.rolled_out) == (0, 10, 2)
    assert numbers(path) == list(range(10))


def test_a_damaged_line_is_one_task_to_do_again(tmp_path: Path):
    path = tmp_path / "t.jsonl"
    taught(path, Moody())
    lines = path.read_text().split("\n")
    lines[4] = lines[4][:40]
    path.write_text("\n".join(lines))
    again = Moody()
    taught(path, again)
    assert again.asked == [3]
    assert numbers(path) == list(range(10))
    assert not read_episodes(path).problems


def test_a_composition_of_the_same_name_grades_again(tmp_path: Path):
    path = tmp_path / "t.jsonl"
    one, five = (
        replace(load("arithmetic").grader(), name="rewards", compute=lambda e, v=v: [v] * len(e)) for v in (1, 5)
    )
    assert [taught(path, Moody(), grader=each).reward_mean for each in (one, five, one)] == [1.0, 5.0, 1.0]


def test_a_summary_averages_what_is_graded_and_knows_a_cost_only_if_all_are_known():
    spec = load("arithmetic")
    policy = spec.policy("gold")
    (episode,) = roll_out(spec, policy, [spec.train_task(0)]).episodes

    def told(value: float | None, *costs: float | None):
        usages = [Usage(prompt_tokens=10, completion_tokens=3, cost=cost) for cost in costs]
        turns = tuple(Turn(index=index, observation="", action="", usage=usage) for index, usage in enumerate(usages))
        return replace(episode, reward=Reward(grader="g", value=value), turns=turns)

    for costs, cost in (((0.25, 0.5), 0.75), ((0.25, None), None), ((), None)):
        summary = TeachSummary(policy="gold", grader="g")
        summary.count([told(1.0, *costs), told(None), told(0.0)])
        assert (summary.cost, summary.reward_mean, summary.episodes) == (cost, 0.5, 3)
        assert (summary.prompt_tokens, summary.completion_tokens) == (10 * len(costs), 3 * len(costs))


def test_another_seed_is_refused_and_another_grader_grades_what_is_there(tmp_path: Path):
    path = tmp_path / "t.jsonl"
    taught(path, Moody())
    with pytest.raises(ConfigError, match=r"teacher moody, seed 0, asked for is teacher moody, seed 1"):
        taught(path, Moody(), seed=1)
    grader = replace(load("arithmetic").grader(), name="other", compute=lambda episodes: [-3.0] * len(episodes))
    again = Moody()
    summary = taught(path, again, grader=grader)
    assert (again.asked, summary.grader, summary.reward_mean) == ([], "other", -3.0)
    assert {episode.reward.grader for episode in read_episodes(path).episodes if episode.reward} == {"other"}


ROWS = [
    {"question": f"{n} + 1", "answer": str(n + 1), "unit": ["m", n], "worked": f"count on from {n}"} for n in range(90)
]


def taught_rows(path: Path, rows: list[dict[str, Any]], options: str = "", **given: Any) -> TeachSummary:
    data = path.with_name("rows.jsonl")
    data.write_text("\n".join(map(json.dumps, rows)))
    spec = load(f"jsonl:{data}?worked=worked{options}")
    policy = spec.policy("teacher")
    return teach(spec, policy, path=path, grader=spec.grader(), **{"episodes": 150, **given})


@pytest.mark.parametrize("change", [{"answer": "7 m"}, {"unit": ["m", -1]}, {"question": "3 + 1?"}, {"more": None}])
def test_episodes_of_rows_that_have_changed_are_refused(change: dict[str, Any], tmp_path: Path):
    """A second call kept the answers to a question whose gold answer had been mended, and SFT learned them."""
    path = tmp_path / "t.jsonl"
    taught_rows(path, ROWS)
    assert taught_rows(path, ROWS).rolled_out == 0
    with pytest.raises(ConfigError, match=r"rows .* choose another --out"):
        taught_rows(path, [{**row, **change} if row["question"] == "3 + 1" else row for row in ROWS])


def test_episodes_of_other_rows_held_out_are_refused(tmp_path: Path):
    path = tmp_path / "t.jsonl"
    taught_rows(path, ROWS)
    spec = load(f"jsonl:{tmp_path / 'rows.jsonl'}?worked=worked")
    held = frozenset({spec.identify(spec.train_task(120)).id})
    with pytest.raises(ConfigError, match=r"held out .* choose another --out"):
        taught_rows(path, ROWS, episodes=20, reserved=held)
