"""The commands as a new user types them."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import command_line
import pytest
from rich.console import Console

from gradus import commands, environments
from gradus.commands.app import app, main
from gradus.commands.entries import COMMANDS
from gradus.core import ConfigError, GradusError


def gradus(*words, expect=0):
    return command_line.gradus(*words, expect=expect).output


def test_teach_show_and_regrade(tmp_path):
    file = tmp_path / "t.jsonl"
    assert commands.teach("rhythm", episodes=4, out=file).rolled_out == 4
    assert commands.teach("rhythm", episodes=4, out=file).rolled_out == 0
    assert "mon morning" in gradus("show", file, "--episode", -1)
    gradus("show", file, "--grader", "v2", "--out", tmp_path / "v2.jsonl")
    regraded = json.loads(gradus("show", file, "--grader", "v2", "--json"))
    assert regraded["episodes"] == regraded["graded"] == 4
    assert regraded["reward"] != regraded["before"]
    assert set(regraded["components"]) >= {"belief_accuracy", "adaptation"}
    again = json.loads(gradus("show", tmp_path / "v2.jsonl", "--grader", "v2", "--json"))
    assert again["before"] == again["reward"] == regraded["reward"]


def test_what_ctrl_c_stopped_says_how_it_goes_on(monkeypatch, capsys, tmp_path):
    """It was the code 130 without a word."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("gradus.runs.stages.teaching.roll_out", interrupted)
    monkeypatch.setattr("sys.argv", ["gradus", "sft", "rhythm", "-o", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert "this goes on where it stopped: gradus sft rhythm -o" in capsys.readouterr().err


def test_how_much_is_told_can_be_said_anywhere_in_the_line(monkeypatch, capsys):
    """Before or behind the command; what a user's own value says stays where it stands."""
    monkeypatch.setenv("GRADUS_OUTPUT", "")
    for words in (["--quiet", "envs"], ["envs", "--quiet"]):
        monkeypatch.setattr("sys.argv", ["gradus", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        assert os.environ["GRADUS_OUTPUT"] == "quiet"
    said = capsys.readouterr()
    assert "rhythm" in said.out
    assert "next:" not in said.err


def stub(monkeypatch, name, function):
    """The command calls this function in place of its own."""
    monkeypatch.setitem(COMMANDS, name, replace(COMMANDS[name], function=function))


def ends_with(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["gradus", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_every_environment_says_what_it_is_and_what_it_needs():
    """Those that want a word after the colon showed the error of leaving it out."""
    for row in commands.envs():
        try:
            assert row["summary"] == environments.load(row["name"]).summary
        except ConfigError:
            assert f"; {row['name']}:" in row["summary"]


def test_the_same_evaluation_twice_gives_the_same_bytes(tmp_path):
    for name in ("a.json", "b.json"):
        words = ("eval", "rhythm", "-p", "random,heuristic", "-c", "all", "-n", 5, "--json", tmp_path / name)
        gradus(*words, "--power", 0.02)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_an_evaluation_can_be_kept_and_reported(tmp_path):
    saved, report = tmp_path / "e.jsonl", tmp_path / "r.html"
    gradus("eval", "rhythm", "-p", "heuristic,bayes", "-n", 3, "--out", saved, "--report", report)
    assert "<html" in report.read_text()
    assert "bayes" in gradus("show", saved, "-k", 4)


def test_envs_lists_and_describes():
    assert "rhythm" in gradus("envs")
    described = json.loads(gradus("envs", "rhythm", "--json"))
    assert described["default_grader"] == "v3"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("eval", "rhythm", "-p", "hueristic"), "unknown policy"),
        (("eval", "rhythm", "-p", "random", "-g", "v9"), "unknown grader"),
        (("show", "nothing.jsonl"), "no file"),
        (("run",), "name an environment"),
        (("export", "nowhere", "--out", "out"), "no model"),
    ],
)
def test_mistakes_get_a_sentence(words, says):
    with pytest.raises(GradusError, match=says):
        gradus(*words)


@pytest.mark.parametrize("name", ["arithmetic", "rhythm", "memory"])
def test_a_person_can_play_any_environment(name):
    """Options that tell what a task is, such as the split of a data set, are those of the first condition."""
    result = command_line.call("show", name, "--play", "--seed", 3, stdin="<answer> 5 </answer>\n" * 200)
    assert result.code == 0, result.output
    assert "what you could not see" in result.output


ROWS = [{"question": f"what is {n} + {n + 1} ?", "answer": str(2 * n + 1), "first": "t"} for n in range(120)]


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "mine.py").write_text(
        "def starts(completions, first, **columns):\n"
        "    return [float(text.startswith(name)) for text, name in zip(completions, first)]\n"
        "def needs(completions, tone):\n    return [0.0 for _ in completions]\n"
    )
    return tmp_path


def test_an_evaluation_names_itself_again_as_it_was(rows):
    words = "--policy gold --policy silence --reward mine.py:starts --condition held-out --episodes 2 --seed 3 --pairs gold-silence"
    words += " --power 0.5 --samples 2 --pass-k 1 --pass-k 2 --temperature 0.5 --max-new-tokens 9"
    said = gradus("eval", "rows.jsonl", *words.split())
    assert f"next: gradus eval rows.jsonl {words} --out" in said


def test_an_evaluation_of_a_file_says_how_to_ask_all_of_its_rows(rows):
    """A tenth of them was asked, and nobody said so."""
    words = ("--reward", "mine.py:starts", "--policy", "gold,silence")
    said = " ".join(gradus("eval", "rows.jsonl", *words).split())
    assert "'rows.jsonl?test=rows.jsonl' --condition held-out" in said
    gradus("eval", "rows.jsonl?test=rows.jsonl", "--condition", "held-out", *words, "--json", "scores.json")
    conditions = json.loads((rows / "scores.json").read_text())["conditions"]
    assert {name: condition["episodes"] for name, condition in conditions.items()} == {"held-out": len(ROWS)}
    with pytest.raises(GradusError, match="or condition held-out"):
        gradus("eval", "rows.jsonl", "--condition", "harder", "--episodes", 20, *words)


@pytest.mark.parametrize(
    ("verdict", "code", "says"),
    [
        ("pass", 0, "next: gradus run shop --reward format --grader strict"),
        (
            "fail",
            1,
            "next: gradus audit shop --reward format --grader strict --episodes 9 --seed 2 --out audit\n      (writes audit.json",
        ),
        ("unresolved", 3, "next: gradus audit shop --reward format --grader strict --seed 2 --episodes 36"),
    ],
)
def test_what_follows_an_audit_is_of_the_grader_that_was_audited(monkeypatch, verdict, code, says):
    more = SimpleNamespace(more_episodes=36, notes=[], broken=None, exploit=None)
    result = SimpleNamespace(verdict=verdict, hack=None, show=lambda: None, result=more, only_failed=False)
    stub(monkeypatch, "audit", lambda *_, **__: result)
    words = ("audit", "shop", "-g", "strict", "--reward", "format", "-n", 9, "--seed", 2)
    assert says in gradus(*words, expect=code)


def test_a_check_is_followed_by_what_was_checked(monkeypatch):
    result = SimpleNamespace(status="pass", show=lambda: None)
    stub(monkeypatch, "check", lambda *_, **__: result)
    said = gradus("check", "shop", "--seed", 4, "-o", "my run", "--quick", "-s", "grpo.groups=3")
    assert "next: gradus run shop --set grpo.groups=3 --quick --seed 4 --out 'my run'" in said
    assert "next: gradus run my.toml" in gradus("check", "my.toml")  # a recipe was left out


@pytest.mark.parametrize(("nano", "says"), [(True, "show runs/shop --last"), (False, "chat runs/shop")])
def test_a_run_of_a_nano_model_is_followed_by_its_episodes(monkeypatch, nano, says):
    """`gradus chat` was the next command, and a model of 750 words is none to chat with."""
    stub(monkeypatch, "run", lambda *_, **__: commands.Run(Path("runs/shop")))
    monkeypatch.setattr("gradus.policies.local.folders.is_nano", lambda folder: nano)
    assert f"next: gradus {says}" in gradus("run", "shop")


@pytest.mark.parametrize(("command", "columns"), [("eval", "80"), ("show", "45")])
def test_help_cuts_no_name(command, columns, monkeypatch):
    """`--max-new-toke…` stood there, beside a column of `<list[str]>`."""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(app, "console", Console())  # a process keeps the width of its first help
    said = gradus(command, "--help")
    assert "--" in said
    assert max(map(len, said.splitlines())) <= int(columns)
    assert "…" not in said


@pytest.mark.parametrize(("words", "rank"), [([], None), (["--lora"], 16), (["--lora", "4"], 4), (["--lora=4"], 4)])
def test_adapters_are_one_option_with_the_rates_that_they_learn_at(monkeypatch, words, rank):
    """They were a setting that nobody found, and left the rates of all weights."""
    recipes = []
    monkeypatch.setattr(
        "gradus.runs.stages.runner.run_stages", lambda job, folder, **_: recipes.append(job.recipe) or folder
    )
    monkeypatch.setattr("gradus.commands.training._after_run", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["gradus", "run", "arithmetic", *words, "--set", "sft.lr=0.5"])
    with pytest.raises(SystemExit):
        main()
    (recipe,) = recipes
    assert [config.lora and config.lora.rank for config in (recipe.sft, recipe.grpo)] == [rank, rank]
    assert recipe.sft.lr == 0.5  # what was typed stays
    assert (recipe.grpo.lr == 1e-5) == (rank is not None)


def test_a_rank_that_is_no_number_is_refused(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gradus", "run", "arithmetic", "--lora=high"])
    with pytest.raises(SystemExit):
        main()
    assert "expected a rank" in capsys.readouterr().err
