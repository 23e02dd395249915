"""Options that mean the same in every command, names that are checked first, and what a command ends with."""

import json
import re
from contextlib import suppress

import pytest
from command_line import call, gradus

from gradus import commands
from gradus.commands.app import main
from gradus.commands.entries import COMMANDS
from gradus.core import ConfigError, GradusError

SPEC = """
from dataclasses import replace
from gradus.environments import load

print("this code ran")
spec = replace(load("arithmetic"), name="mine:spec", recipe=None)
"""


@pytest.fixture
def four_rows(tmp_path, monkeypatch):
    """Rows and a reward that can be exploited, which are audited in two seconds."""
    rows = [{"question": f"say {word}", "answer": word} for word in ("red", "blue", "green", "black")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.py").write_text(
        "def names_it(completions, answer, **columns):\n"
        "    return [float(gold in text) for text, gold in zip(completions, answer)]\n"
    )
    monkeypatch.chdir(tmp_path)


def test_what_takes_several_values_takes_them_one_by_one():
    read = [
        json.loads(gradus("eval", "arithmetic", *words, "-n", 6, "--json").stdout)
        for words in (("-p", "gold", "-p", "random", "--pass-k", "1"), ("-p", "gold,random", "--pass-k", "1,"))
    ]
    assert read[0] == read[1]
    assert {"gold", "random"} <= set(next(iter(read[0]["conditions"].values()))["policies"])


WITH_JSON = {
    "audit": ("mine.py:names_it", "rows.jsonl"),
    "check": ("arithmetic", "--quick"),
    "envs": (),
    "envs arithmetic": (),
    "eval": ("arithmetic", "-p", "gold", "-n", "2"),
    "rewards list": (),
    "rewards try": ("-c", "x", "-a", "x"),
}


@pytest.mark.parametrize("name", WITH_JSON)
def test_json_without_a_file_prints_and_with_a_file_writes_wherever_it_stands(name, tmp_path, four_rows):
    """show took the word after --json for an argument."""
    file, words, expect = tmp_path / "out.json", WITH_JSON[name], int(name == "audit")
    printed = gradus("--json", *name.split(), *words, expect=expect).stdout
    for line in ([*name.split(), *words, "--json", file], [*name.split(), f"--json={file}", *words]):
        shown = gradus(*line, expect=expect).stdout
        texts = printed, file.read_text()
        if name == "check":  # the machine is measured anew: free memory and minutes differ
            texts = tuple(re.sub(r"[\d.]+", "0", text) for text in texts)
        assert json.loads(texts[0]) == json.loads(texts[1])
        assert shown.strip()
        assert not shown.lstrip().startswith(("{", "["))
        file.unlink()


def test_what_has_no_json_says_so():
    with pytest.raises(ConfigError, match="leave out --json"):
        call("sft", "arithmetic", "--json")


def test_rewards_are_the_grader_of_every_command(tmp_path):
    (tmp_path / "mine.py").write_text("def brief(completions, **columns):\n    return [1.0 for _ in completions]\n")
    reward = ("--reward", f"{tmp_path / 'mine.py'}:brief=0.5", "--reward", "correctness=2")
    scores = json.loads(gradus("eval", "arithmetic", "-p", "gold", "-n", 4, *reward, "--json").stdout)
    figures = next(iter(scores["conditions"].values()))["policies"]["gold"]
    assert figures["reward"]["mean"] == 2.5
    assert set(figures["components"]) == {"brief", "correct"}
    lessons = tmp_path / "t.jsonl"
    rewards = [f"{tmp_path / 'mine.py'}:brief=0.5", "correctness=2"]
    commands.teach("arithmetic", episodes=3, rewards=rewards, out=lessons)
    assert json.loads(gradus("show", lessons, "--json").stdout)["reward"]["value"] == 2.5


@pytest.mark.parametrize("words", ["eval arithmetic -p gold -n 4", "audit arithmetic -n 4 --budget 20"])
def test_a_grader_does_not_switch_off_the_rewards_in_silence(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    both = ("--reward", "correctness=2", "--grader", "format-only")
    with pytest.raises(ConfigError, match="leave out the grader or the reward functions"):
        gradus(*words.split(), *both)


def test_a_mistyped_command_gets_a_suggestion():
    assert "audit" in gradus("adit", expect=2).output


@pytest.mark.parametrize(
    "words",
    [
        ("audit",),
        ("audit", "arithmetic", "--budget", "many"),
        ("doctor", "--moon"),
        ("memory", "moon"),
        ("--moon",),
        ("run", "arithmetic", "more"),
    ],
)
def test_wrong_usage_has_not_the_code_of_a_verdict(words):
    """2 was unresolved of an audit and stop of the doctor: a script took a mistyped option for either."""
    gradus(*words, expect=2)


def test_a_run_is_refused_before_it_trains_if_it_could_not_be_finished(tmp_path):
    out = tmp_path / "run"
    for change, says in (('eval.policies=["grpo", "brillant"]', "brillant"), ('eval.conditions=["moon"]', "moon")):
        with pytest.raises(ConfigError, match=says):
            gradus("run", "arithmetic", "--quick", "--out", out, "--set", change)
        assert not out.exists()


def test_a_data_file_makes_no_code_run_unless_the_command_names_it(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(SPEC)
    monkeypatch.syspath_prepend(str(tmp_path))
    lessons = tmp_path / "t.jsonl"
    own = f"{tmp_path / 'mine.py'}:spec"
    commands.teach(own, "gold", episodes=2, out=lessons)
    assert "this code ran" not in gradus("show", lessons).stdout
    assert "question" in gradus("show", lessons, "--env", own, "--json").stdout


def test_a_command_whose_every_episode_failed_says_so_in_its_exit_code(tmp_path, monkeypatch):
    code = (
        SPEC
        + """

def broken():
    raise RuntimeError("the disk is gone")

spec = replace(spec, make=lambda: type("Broken", (), {"reset": lambda self, **o: broken(), "close": lambda self: None})())
"""
    )
    (tmp_path / "broken.py").write_text(code)
    own = f"{tmp_path / 'broken.py'}:spec"
    assert commands.teach(own, "gold", episodes=2, out=tmp_path / "t.jsonl").failed == 2
    said = gradus("eval", own, "-p", "gold", "-n", 2, expect=3)
    assert "the disk is gone" in said.stderr
    (tmp_path / "mine.py").write_text("def score(completions, **_):\n    raise RuntimeError('no judge')\n")
    said = gradus("eval", "arithmetic", "-p", "gold", "-n", 2, "--reward", f"{tmp_path / 'mine.py'}:score", expect=3)
    assert "no judge" in said.stderr


def test_commands_end_with_the_next_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a dry run writes a folder there
    lessons = tmp_path / "my lessons.jsonl"
    commands.teach("arithmetic", episodes=2, out=lessons)
    said = gradus("show", lessons).stderr
    assert said.splitlines()[-1] == f"next: gradus show '{lessons}' --episode 1"
    model = tmp_path / "my model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "qwen2"}')
    said = gradus("export", model, "--push", "me/model", "--public", "--dry-run").stderr
    assert said.splitlines()[-1] == f"next: gradus export '{model}' --push me/model --public"
    assert "next: gradus rewards try" in gradus("rewards", "list").stderr
    said = gradus("rewards", "try", "-c", "x", "-a", "x", "--reward", "format=2").stderr
    assert "next: gradus audit arithmetic --reward format=2" in said
    assert not gradus("rewards", "try", "-c", "x", "-a", "x", "--json").stderr


def test_an_escape_in_an_error_is_shown_and_not_obeyed(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text("raise ValueError('\\x1b[2J')")
    monkeypatch.setattr("sys.argv", ["gradus", "envs", f"{tmp_path}/mine.py:spec"])
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr().err
    assert "␛[2J" in said
    assert "\x1b" not in said


def test_the_help_of_a_command_fits_its_line_and_the_list_a_screen():
    lines = gradus("--help").stdout.splitlines()
    assert len(lines) <= 40
    assert all(len(line.rstrip()) < 80 for line in lines[4:-4])
    assert len(gradus().stdout.splitlines()) == 7  # six commands and where to go


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_for_users(name):
    """`Returns the best checkpoint.` is Python's, and so is an example of a call."""
    text = gradus(*name.split(), "--help").stdout
    assert ">>>" not in text
    assert "Returns" not in text
    assert "``" not in text


@pytest.mark.parametrize("name", ["mine.toml", "rows.jsonl", "mine.json"])
def test_json_does_not_write_over_what_a_person_wrote(tmp_path, name):
    """`gradus check --json mine.json` took the rows for the file to write, and they were gone."""
    path = tmp_path / name
    rows = [{"question": "1", "answer": "1"}] * 80
    texts = {".toml": 'environment = "arithmetic"\n', ".jsonl": "".join(f"{json.dumps(row)}\n" for row in rows)}
    path.write_text(text := texts.get(path.suffix, json.dumps(rows)))
    for words in (["check", "--json", path], ["check", "arithmetic", "--quick", f"--json={path}"]):
        with suppress(GradusError):
            call(*words)
        assert path.read_text() == text
