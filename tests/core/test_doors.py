"""What comes in from outside is refused in a sentence, at the place where it comes in."""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import gradus
from gradus.commands.app import main
from gradus.core import ConfigError, EnvironmentFault, Observation
from gradus.core.foreign import within
from gradus.rollouts.under_way import received
from tests.advisories import verdict

ROWS = [{"question": f"{a} + 1", "answer": str(a + 1)} for a in range(4)]


def graded(reward: Any) -> Any:
    """The reward of one right answer by a function."""
    spec = gradus.one_turn(ROWS, rewards=[reward])
    policy = gradus.FunctionPolicy("right", lambda observation, _: str(int(observation.text.split()[0]) + 1))
    (episode,) = gradus.roll_out(spec, policy, tasks=[spec.train_task(0)]).episodes
    return episode.reward


def test_a_reward_that_is_text_is_refused() -> None:
    reward = graded(lambda completions, **_: ["1.0" for _ in completions])
    assert reward.value is None
    assert "expected a number, got the text '1.0'" in reward.error
    assert graded(lambda completions, **_: [1.0 for _ in completions]).value == 1.0


def test_a_reward_that_is_text_is_refused_of_environments_too() -> None:
    with pytest.raises(EnvironmentFault, match=r"the reward '1\.0'"):
        received(Observation(text="x", reward="1.0"), "step")  # type: ignore[arg-type]


def test_a_grader_that_ends_the_process_is_an_error() -> None:
    reward = graded(lambda completions, **_: os._exit(0))
    assert reward.value is None
    assert "may not end the process" in reward.error


def test_a_file_that_ends_the_process_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text("import os\nos._exit(0)\n")
    with pytest.raises(ConfigError, match="may not end the process"):
        gradus.audit(f"{tmp_path / 'ends.py'}:f", ROWS)


def test_it_may_not_in_a_thread_either_but_a_forked_process_may() -> None:
    errors: list[BaseException] = []

    def call() -> None:
        try:
            within(5, "it", lambda: os._exit(3))
        except SystemExit as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert len(errors) == 1

    def child() -> int:
        number = os.fork()
        if number == 0:
            os._exit(7)
        return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])

    assert within(5, "it", child) == 7


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize(
    ("cell", "words"),
    [("a \ud800 b", "half of a character, U\\+D800"), ("a" * (2**20 + 1), "expected at most 1048576")],
)
def test_a_cell_that_cannot_be_stored_or_read_is_refused_with_its_row(cell: str, words: str) -> None:
    for column in ("question", "answer", "other"):
        with pytest.raises(ConfigError, match=f"row 5: {column}.*{words}"):
            gradus.one_turn([*ROWS, {**ROWS[0], column: cell}], rewards=[lambda completions, **_: [0.0]])


def test_half_of_a_character_of_an_environment_is_a_fault_of_its_episode() -> None:
    with pytest.raises(EnvironmentFault, match="half of a character"):
        received(Observation(text="\udc00"), "reset")


def test_an_error_does_not_repeat_all_that_was_typed(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["gradus", "audit", "x" * 100_000])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (2, 3)
    assert 1000 < len(capsys.readouterr().err) < 5000


def test_other_machines_need_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="clients need a key"):
        gradus.commands.serve("a-model-that-is-not-loaded", host="0.0.0.0", port=0)


def test_vulnerable_packages_fail_the_check_and_what_was_not_looked_up_is_said() -> None:
    sound = {"name": "a", "version": "1", "vulns": []}
    bad = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1"}]}
    skipped = {"name": "c", "skip_reason": "not found"}
    assert verdict(json.dumps({"dependencies": [sound, bad]}), "") == (1, "1 vulnerable packages: b 2: PYSEC-1")
    assert "NOT CHECKED" in verdict(json.dumps({"dependencies": [skipped]}), "")[1]
    assert "in 1 of 2 packages" in verdict(json.dumps({"dependencies": [sound, skipped]}), "")[1]
    assert "no network" in verdict("", "no network")[1]
