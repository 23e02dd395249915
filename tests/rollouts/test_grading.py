"""Figures of one's own that raise cost a figure and no run."""

from dataclasses import replace

import pytest

from gradus.core import GradingError, Task
from gradus.rollouts import roll_out

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
    assert "true_reward of 'guess' raised KeyError: 'answer' in an episode, where it is missing" in said
    assert any(text.startswith(f"metrics of 'guess' raised {error.__name__}") for text in said)


def test_a_figure_that_raises_for_all_is_an_error_that_names_it(spec):
    own = replace(spec, true_reward=lambda episode: episode.outcome["nothing"])
    with pytest.raises(GradingError, match=r"true_reward of 'guess' raised KeyError: 'nothing' in all of 4 episodes"):
        roll_out(own, own.policy("random"), TASKS)
