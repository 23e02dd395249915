"""`gradus rewards` as a user types it."""

import json
from pathlib import Path

import pytest
from command_line import Ended, call

from gradus.core import Episode, GradusError, StopReason, Task, Turn, TurnTokens
from gradus.rewards import load_rewards
from gradus.rewards.grading import completion_of
from gradus.rollouts import write_episodes

RIGHT = "<reasoning> 1 + 1 </reasoning> <answer> 2 </answer>"


def run(*arguments: str, stdin: str = "") -> Ended:
    return call("rewards", *arguments, stdin=stdin)


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")


def test_typed_completions() -> None:
    result = run("try", "-c", RIGHT, "-c", "2", "--answer", "2")
    assert result.code == 0
    assert "mean of 2" in result.stdout
    assert "3.00" in result.stdout


def test_json_is_one_record_a_completion() -> None:
    text = json.dumps({"prompt": "1 + 1?", "completion": RIGHT, "answer": "2"})
    result = run("try", "-", "--json", "--reward", "correctness", stdin=text)
    assert json.loads(result.stdout) == [
        {"completion": RIGHT, "read": "2", "components": {"correct": 1.0}, "value": 1.0, "error": None}
    ]


def test_a_failing_function_is_shown_and_is_exit_code_one(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def tone(completions, **columns):\n    raise RuntimeError('no tone')\n")
    result = run("try", "-c", RIGHT, "--reward", f"{tmp_path / 'mine.py'}:tone", "--reward", "format")
    assert result.code == 1
    assert "failed: tone: RuntimeError on 1 of 1 completions" in result.stderr
    assert "no tone" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [["try"], ["try", "x.jsonl", "-c", "y"], ["try", "nowhere.jsonl"], ["try", "-c", "y", "--reward", "format=x"]],
)
def test_wrong_use_is_said(arguments: list[str]) -> None:
    with pytest.raises(GradusError):
        run(*arguments)


def test_the_list_names_every_built_in() -> None:
    result = run("list")
    for name in ("correctness", "incremental_format", "json_schema"):
        assert name in result.stdout


def test_stored_episodes_are_scored_as_in_training(tmp_path: Path) -> None:
    """Token ids and later turns were left out."""
    own = tmp_path / "mine.py"
    own.write_text(
        "def ids(completions, completion_ids, **kw): return [float(sum(each)) for each in completion_ids]\n"
        "def said(completions, **kw): return [float(len(each)) for each in completions]\n"
    )
    tokens = TurnTokens(context_ids=(1,), action_ids=(7, 8), logprobs=(0.0, 0.0))
    turns = tuple(Turn(index=n, observation="?", action="ab", tokens=tokens) for n in range(2))
    task = Task(environment="arithmetic", seed=0)
    episode = Episode(task=task, policy="p", turns=turns, stop=StopReason.TERMINATED)
    write_episodes(tmp_path / "e.jsonl.gz", [episode], environment="arithmetic")
    rewards = [f"{own}:ids", f"{own}:said"]
    trained = load_rewards(rewards)([completion_of(episode)])[0].components
    tried = run(
        "try", str(tmp_path / "e.jsonl.gz"), "--json", *(word for each in rewards for word in ("--reward", each))
    )
    assert json.loads(tried.stdout)[0]["components"] == trained == {"ids": 30.0, "said": 5.0}
