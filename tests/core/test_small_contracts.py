"""The least that an environment, a grader and a policy must be."""

import sys

import pytest

from gradus.core import (
    Condition,
    ConfigError,
    EnvironmentSpec,
    Failure,
    Grader,
    GradingError,
    Observation,
    StorageError,
    Task,
)
from gradus.core.documents import TokenCosts, checked
from gradus.core.naming import import_file
from gradus.policies.scripted import FunctionPolicy
from gradus.rollouts import roll_out
from gradus.runs.stages.teaching import teach


class Twice:
    """Two turns; each answer is repeated."""

    system_prompt = "say something"

    def reset(self, *, seed=None, episode_id=None, **options):
        self.said = []
        return Observation(text="begin")

    def step(self, action):
        self.said.append(action)
        return Observation(text=action, reward=float(len(action)), terminated=len(self.said) == 2)

    @property
    def state(self):
        return {"episode_id": "", "step_count": len(self.said)}

    def outcome(self):
        return {"said": self.said}

    def close(self):
        pass


def spec_with(compute):
    return EnvironmentSpec(
        name="twice",
        summary="two answers",
        make=Twice,
        graders={"length": Grader(name="length", compute=compute)},
        conditions={"main": Condition(name="main", seeds=range(3))},
        train_task=lambda index: Task(environment="twice", seed=100 + index),
        max_turns=2,
    )


def counting(seen, script):
    script.memory["turn"] = script.memory.get("turn", 0) + 1
    return "x" * script.memory["turn"]


def played(compute):
    spec = spec_with(compute)
    return spec, roll_out(spec, FunctionPolicy("counting", counting), spec.tasks("main")).episodes


def test_a_grader_may_return_plain_numbers_which_stand_at_the_last_turn():
    _, episodes = played(lambda episodes: [0.5 * len(episode.turns) for episode in episodes])
    for episode in episodes:
        assert [turn.action for turn in episode.turns] == ["x", "xx"]
        assert episode.reward.value == 1.0
        assert episode.reward.turn_rewards == (0.0, 1.0)
        assert episode.reward.components == {"length": 1.0}
        assert episode.metrics["true_reward"] == 3.0  # the environment's own return, if nothing else is said


def test_none_from_a_grader_is_missing_and_not_zero():
    _, episodes = played(lambda episodes: [None, 1, 0])
    assert [episode.reward.value for episode in episodes] == [None, 1.0, 0.0]
    assert "None" in episodes[0].reward.error


def test_another_type_or_number_of_entries_is_refused():
    with pytest.raises(GradingError, match="returned a str"):
        played(lambda episodes: ["good"] * len(episodes))
    with pytest.raises(GradingError, match="gave 1 rewards for 3"):
        played(lambda episodes: [1.0])
    for whole in (1.0, None):
        with pytest.raises(GradingError, match="expected a list with a reward per episode"):
            played(lambda episodes, whole=whole: whole)


def test_the_first_grader_is_the_default_and_one_that_is_not_there_is_refused():
    spec = spec_with(lambda episodes: [0.0] * len(episodes))
    assert spec.default_grader == "length"
    with pytest.raises(ConfigError, match="unknown grader 'v9'"):
        EnvironmentSpec(**{**vars(spec), "default_grader": "v9"})


@pytest.mark.parametrize("error", [KeyError("no such move"), SystemExit(3)])
def test_a_scripted_policy_that_raises_fails_its_own_episode(error, tmp_path):
    """One task for which a teacher knew nothing ended the whole evaluation, or the teaching, with a traceback."""

    def answer(seen, script):
        if script.start.task.seed in (1, 101):
            raise error
        return counting(seen, script)

    spec, policy = spec_with(lambda episodes: [1.0] * len(episodes)), FunctionPolicy("stumbling", answer)
    failures = [each.failure for each in roll_out(spec, policy, spec.tasks("main")).episodes]
    told = Failure(stage="act", type=type(error).__name__, message=str(error))
    assert failures == [None, told, None]
    summary = teach(spec, policy, episodes=3, path=tmp_path / "t.jsonl", grader=spec.grader())
    assert (summary.episodes, summary.failed) == (3, 1)


def test_a_file_is_imported_once_and_again_if_it_was_mended(tmp_path):
    file = tmp_path / "mine.py"
    (tmp_path / "beside.py").write_text("number = 3\n")
    file.write_text("import beside\nitems = [beside.number]\nraise ValueError('not yet')\n")
    before = list(sys.path)
    with pytest.raises(ConfigError, match="ValueError: not yet"):
        import_file(str(file), "a test")
    file.write_text("import beside\nitems = [beside.number, 4]\n")
    module = import_file(str(file), "a test")
    assert module.items == [3, 4]
    assert import_file(str(file), "a test") is module
    assert sys.path == before
    del sys.modules["beside"]


def test_a_document_is_held_to_its_types():
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "cost": None}
    assert checked(usage, TokenCosts, "here") is usage
    for wrong in ({**usage, "prompt_tokens": "1"}, {**usage, "cost": "0.5"}):
        for partial in (False, True):
            with pytest.raises(StorageError, match="here is not what Gradus writes there: at"):
                checked(wrong, TokenCosts, "here", partial=partial)
    part = {"prompt_tokens": 1}
    assert checked(part, TokenCosts, "here", partial=True) is part
    with pytest.raises(StorageError, match="completion_tokens"):
        checked(part, TokenCosts, "here")
