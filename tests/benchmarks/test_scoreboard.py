"""The audit measured by flaws: planted graders are what their labels say, and the gates on detection and false alarms."""

import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest
import scoreboard
from scoreboard.families import FAMILIES
from scoreboard.flaws import FLAWS
from scoreboard.leaderboard import write_leaderboard
from scoreboard.parts import run_scoreboard, scoreboard_page
from scoreboard.planted import plants
from scoreboard.score import Row, board


def test_sound_graders_reward_gold_and_no_other_answer_of_the_same_kind():
    for plant in plants(3):
        if plant.flaw is not None:
            continue
        judge, tasks = plant.subject.judge, plant.subject.tasks
        form = ("\\boxed{", "}") if "in a box" in plant.name else ("", "")
        golds = [judge(task, f"{form[0]}{task.completion(task.gold)}{form[1]}") for task in tasks]
        assert len(set(golds)) == 1, plant.name
        assert golds[0] > judge(tasks[0], ""), plant.name
        others = [task for task in tasks if task.gold != tasks[0].gold and not plant.name.startswith("game of Nim")]
        assert all(judge(tasks[0], task.completion(task.gold)) < golds[0] for task in others), plant.name


def test_the_same_seed_plants_the_same_graders_and_another_seed_others():
    def shape(seed):
        return [(plant.name, plant.flaw, plant.subject.tasks[0].prompt) for plant in plants(seed)]

    assert shape(0) == shape(0) != shape(1)
    assert len({flaw for _, flaw, _ in shape(0)} - {None}) == len(FLAWS) >= 20
    assert len(FAMILIES) >= 10


def test_shares_misses_and_alarms_are_counted():
    def row(name, label, verdict):
        return Row(name=name, label=label, kind="k", verdict=verdict, failed=[], evidence="", seconds=1.0)

    rows = [
        row("a", "flawed", "fail"),
        row("b", "flawed", "unresolved"),
        row("c", "sound", "pass"),
        row("d", "sound", "fail"),
    ]
    result = {"part": "planted", "seed": 0, **board([*rows, row("e", "partial", "fail")])}
    assert result["detection"]["share"] == result["false_alarms"]["share"] == 0.5
    assert [each["name"] for each in result["misses"]] == ["b"]
    assert [each["name"] for each in result["alarms"]] == ["d"]
    page = scoreboard_page([result])
    assert "- b (k): unresolved" in page
    assert "e fail" in page


def test_the_leaderboard_puts_failures_first_and_holds_any_evidence_in_its_cells(tmp_path):
    shared = {"label": "sound", "kind": "", "seconds": 1.0}
    rows = [
        Row(name="b", verdict="pass", failed=[], evidence="", **shared),
        Row(name="c", verdict="fail", failed=["gold", "reflexes"], evidence="`a | b`\n" + "x" * 500, **shared),
        Row(name="a", verdict="pass", failed=[], evidence="", **shared),
    ]
    write_leaderboard({"part": "reasoning-gym", "seed": 0, "rows": [asdict(row) for row in rows]}, tmp_path)
    page = (tmp_path / "leaderboard.md").read_text()
    assert "1 fail, 0 unresolved, 2 pass, of 3 graders" in page
    (failed,) = [line for line in page.splitlines() if line.startswith(("| a |", "| b |", "| c |"))]
    assert len(failed.replace("\\|", "").split("|")) == 6
    assert page.endswith(" a, b.\n")
    assert "fail" in (tmp_path / "figures/badge_fail.svg").read_text()


def test_what_was_judged_is_kept_and_not_judged_again(tmp_path, monkeypatch):
    names = ["arithmetic, as it is", "arithmetic 0, nan is near everything"]
    first = run_scoreboard("planted", folder=tmp_path, only=names)
    assert first["detection"]["share"] == 1.0
    assert first["false_alarms"]["share"] == 0.0
    monkeypatch.setattr("scoreboard.parts.judged", None)
    assert run_scoreboard("planted", folder=tmp_path, only=names) == first


def test_every_label_is_one_of_three_and_a_third_is_held_out():
    labels = tomllib.loads((Path(scoreboard.__file__).parent / "reasoning_gym.toml").read_text())
    assert {row["label"] for row in labels.values()} == {"flawed", "partial", "sound"}
    assert 0.3 < sum(bool(row.get("held_out")) for row in labels.values()) / len(labels) < 0.5


@pytest.mark.slow
def test_planted_flaws_are_found_and_sound_graders_pass():
    result = run_scoreboard("planted", seed=7)
    assert result["detection"]["share"] >= 0.95, result["misses"]
    assert result["false_alarms"]["share"] <= 0.02, result["alarms"]


@pytest.mark.slow
def test_flawed_graders_of_reasoning_gym_are_found():
    pytest.importorskip("reasoning_gym")
    result = run_scoreboard("reasoning-gym")
    assert result["detection"]["share"] >= 0.85, result["misses"]
