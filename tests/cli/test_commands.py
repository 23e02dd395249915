"""The commands as a new user types them."""

import json
import os
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from gradus import environments
from gradus.cli.app import app, main
from gradus.cli.commands import attach
from gradus.core import Failure, GradusError, StopReason
from gradus.rollouts import roll_out, write_episodes

attach(app)
runner = CliRunner()


def gradus(*words, expect=0):
    result = runner.invoke(app, [str(word) for word in words])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert expect is None or result.exit_code == expect, result.output
    return result.output


def test_teach_show_and_regrade(tmp_path):
    file = tmp_path / "t.jsonl"
    assert "4 episodes" in gradus("teach", "rhythm", "-n", 4, "-o", file)
    assert "0 rolled out now" in gradus("teach", "rhythm", "-n", 4, "-o", file)
    assert "mon morning" in gradus("show", file, "--episode", -1)
    regraded = json.loads(gradus("regrade", file, "--grader", "v2", "--json"))
    assert regraded["episodes"] == 4
    assert set(regraded["components"]) >= {"belief_accuracy", "adaptation"}
    words = ("regrade", file, "--grader", "v3", "--against", "heuristic")
    compared = json.loads(gradus(*words, "--json"))["compared"]["conditions"]["train"]
    (pair,) = compared["pairs"].values()
    assert pair["reward"]["episodes"] == 4
    assert pair["reward"]["wins"] + pair["reward"]["ties"] <= 4
    assert compared["policies"]["bayes"]["belief_mae"]["mean"] > 0  # the heuristic states no belief
    assert "bayes - heuristic" in (said := gradus(*words))
    assert " of 4" in said  # wins


def test_a_failed_episode_is_shown_with_its_reason(tmp_path):
    """The environment's pictures need a turn, and their error was all that was shown."""
    spec = environments.load("rhythm")
    failure = Failure(stage="act", type="ServerError", message="content policy")
    (whole,) = roll_out(spec, spec.policy("heuristic"), spec.tasks("held-out", 1)).episodes
    failed = replace(whole, turns=(), reward=None, stop=StopReason.FAILED, failure=failure)
    write_episodes(tmp_path / "t.jsonl", [failed], environment="rhythm", note="")
    assert "content policy" in gradus("show", tmp_path / "t.jsonl")


def test_what_ctrl_c_stopped_says_how_it_goes_on(monkeypatch, capsys, tmp_path):
    """typer turned it into the code 130 without a word."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("gradus.pipeline.teaching.roll_out", interrupted)
    monkeypatch.setattr("sys.argv", ["gradus", "teach", "rhythm", "-o", str(tmp_path / "t.jsonl")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert "this goes on where it stopped: gradus teach rhythm -o" in capsys.readouterr().err


def test_how_much_is_told_can_be_said_anywhere_in_the_line(monkeypatch, capsys):
    """Before or behind the command; what a user's own value says stays where it stands."""
    monkeypatch.setenv("GRADUS_OUTPUT", "")
    for words in (["--quiet", "envs"], ["envs", "--quiet"]):
        monkeypatch.setattr("sys.argv", ["gradus", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        assert os.environ["GRADUS_OUTPUT"] == "quiet"
    assert "rhythm" in capsys.readouterr().out


def test_the_same_evaluation_twice_gives_the_same_bytes(tmp_path):
    for name in ("a.json", "b.json"):
        words = ("eval", "rhythm", "-p", "random,heuristic", "-c", "all", "-n", 5, "--json", tmp_path / name)
        gradus(*words, "--power", 0.02)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_an_evaluation_can_be_kept_and_reported(tmp_path):
    saved, report = tmp_path / "e.jsonl", tmp_path / "r.html"
    gradus("eval", "rhythm", "-p", "heuristic,bayes", "-n", 3, "--save", saved, "--report", report)
    assert "<html" in report.read_text()
    assert "bayes" in gradus("show", saved, "-k", 4)


def test_envs_lists_and_describes():
    assert "rhythm" in gradus("envs")
    described = json.loads(gradus("envs", "rhythm", "--json"))
    assert described["default_grader"] == "v3"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("eval", "rythm", "-p", "random"), "unknown environment"),
        (("eval", "rhythm", "-p", "hueristic"), "unknown policy"),
        (("eval", "rhythm", "-p", "random", "-c", "moon"), "unknown condition"),
        (("eval", "rhythm", "-p", "random", "-g", "v9"), "unknown grader"),
        (("eval", "rhythm", "-p", "random", "-n", "9999"), "seeds"),
        (("show", "nothing.jsonl"), "no file"),
        (("doctor", "nowhere"), "no metrics"),
        (("regrade", "nothing.jsonl", "--grader", "v2"), "no file"),
        (("run",), "name an environment"),
        (("export", "nowhere", "out"), "no model"),
    ],
)
def test_mistakes_get_a_sentence(words, says):
    with pytest.raises(GradusError, match=says):
        gradus(*words)


def test_a_person_can_play_a_week():
    result = runner.invoke(app, ["play", "rhythm", "--seed", "3"], input="5 5 5 sleep\n" * 28)
    assert result.exit_code == 0, result.output
    assert "what you could not see" in result.output
    assert "reward (v3)" in result.output


@pytest.mark.parametrize("name", ["arithmetic", "shop", "memory"])
def test_a_person_can_play_any_environment(name):
    """Options that tell what a task is, such as the split of a data set, are those of the first condition."""
    result = runner.invoke(app, ["play", name, "--seed", "3"], input="<answer> 5 </answer>\n" * 200)
    assert result.exit_code == 0, result.output
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


def test_rows_are_audited_by_the_name_of_their_file(rows):
    """Another process was asked for an environment called rows.jsonl, and the answer was a traceback's end."""
    assert "jsonl:rows.jsonl" in gradus("audit", "rows.jsonl", "-n", 4, "--budget", 20, "--seconds", 1, expect=None)


def test_an_evaluation_names_itself_again_as_it_was(rows):
    words = ("eval", "rows.jsonl", "--reward", "mine.py:starts", "-p", "gold,silence", "-n", 2, "-c", "held-out")
    said = gradus(*words)
    assert "eval rows.jsonl --policy gold,silence --reward mine.py:starts --condition held-out --save" in said


def test_what_is_known_at_the_end_is_shown_without_what_is_missing(rows):
    gradus("teach", "rows.jsonl", "-n", 2, "-o", "t.jsonl")
    said = gradus("show", "t.jsonl", "-k", 1)
    assert "correct 1.000" in said
    assert "None" not in said


def test_a_regraded_file_tells_the_stored_grader_from_the_new_one(rows):
    gradus("teach", "rows.jsonl", "-n", 2, "--reward", "correctness", "-o", "t.jsonl")
    assert "rewards (as stored)" in gradus("regrade", "t.jsonl", "--reward", "format", "--env", "rows.jsonl")


def test_a_reward_function_that_wants_a_column_says_which_there_are(rows):
    said = gradus("rewards", "try", "-c", "x", "--answer", "y", "--reward", "mine.py:needs", expect=1)
    assert "it takes tone, which is no column of the data; the columns are: answer" in said
