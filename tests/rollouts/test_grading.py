"""Figures of one's own that raise cost a figure and no run."""

from dataclasses import replace

import numpy as np
import pytest

from gradus.core import Grader, GradingError, Reward, RewardTerm, Task
from gradus.rollouts import read_episodes, roll_out, write_episodes

TASKS = [Task(environment="guess", seed=seed) for seed in range(4)]


def _only_for_seed_two(episode):
    if episode.task.seed == 2:
        raise KeyError("answer")
    return 1.0


@pytest.mark.parametrize("error", [KeyError, SystemExit])
def test_a_figure_that_raises_for_one_episode_is_missing_there(spec, error):
    def raising(episode):
        if episode.task.seed == 2:
            raise error("answer")
        return {"share": 0.5}

    own = replace(spec, true_reward=_only_for_seed_two, metrics=raising)
    with pytest.warns(UserWarning, match="raised") as told:
        episodes = roll_out(own, own.policy("random"), TASKS).episodes
    assert [each.metrics["true_reward"] for each in episodes] == [1.0, 1.0, None, 1.0]
    assert [each.metrics.get("share") for each in episodes] == [0.5, 0.5, None, 0.5]
    assert all(each.reward is not None and each.reward.value is not None for each in episodes)
    said = {str(each.message) for each in told}
    assert any(text.startswith("true_reward of 'guess' raised KeyError: 'answer' (test_grading.py:") for text in said)
    assert any(text.startswith(f"metrics of 'guess' raised {error.__name__}") for text in said)


def test_a_figure_that_raises_for_all_is_an_error_that_names_it(spec):
    own = replace(spec, true_reward=lambda episode: episode.outcome["nothing"])
    with pytest.raises(
        GradingError, match=r"true_reward of 'guess' raised KeyError: 'nothing' .* in all of 4 episodes"
    ):
        roll_out(own, own.policy("random"), TASKS)


def _rewarding(value):
    """A grader that gives rewards of its own with this number."""
    term = RewardTerm(component="own", value=value)
    return Grader(
        name="own",
        compute=lambda episodes: [Reward(grader="own", value=value, terms=_at_end(each, term)) for each in episodes],
    )


def _at_end(episode, term):
    return (*(() for _ in episode.turns[1:]), (term,))


@pytest.mark.parametrize("value", [np.float32(0.5), np.array(0.5), 0.5])
def test_rewards_of_numpy_are_stored_as_the_numbers_that_they_are(spec, tmp_path, value):
    episodes = roll_out(spec, spec.policy("random"), TASKS[:2], grader=_rewarding(value)).episodes
    write_episodes(tmp_path / "e.jsonl", episodes, environment="guess")
    assert [each.reward.turn_rewards[-1] for each in read_episodes(tmp_path / "e.jsonl").episodes] == [0.5, 0.5]


def test_a_reward_that_is_no_number_is_an_error_that_says_so(spec):
    with pytest.raises(GradingError, match="grader 'own' gave a reward, or a term of one, that is not a number"):
        roll_out(spec, spec.policy("random"), TASKS[:2], grader=_rewarding("much"))
