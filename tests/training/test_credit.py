"""Which token gets which advantage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fakes import NUMBERS, WORDS, lamps

from gradus.core import Episode, Group, Reward, RewardTerm
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig
from gradus.rollouts import roll_out
from gradus.training.config import GrpoConfig
from gradus.training.data.credit import credit_groups, token_ends

SPEC = lamps()


def config(credit: str, **settings) -> GrpoConfig:
    settings.setdefault("scale", "none")
    return GrpoConfig(credit=credit, groups=2, group_size=3, max_turns=3, **settings)


def groups(loaded: LoadedModel, *, size: int = 3) -> list[Group]:
    sampling = SamplingConfig(max_new_tokens=4, grammar=True)
    policy = LocalPolicy(loaded, sampling, grammar=(NUMBERS, WORDS))  # without "off": every episode has its three turns
    tasks = [SPEC.train_task(index) for index in range(2)]
    return list(roll_out(SPEC, policy, tasks, group_size=size, seed=3).groups)


def with_rewards(group: Group, terms: list[list[list[tuple[str | None, float]]]]) -> Group:
    """The group with other rewards: member, turn, (span, value)."""
    episodes: list[Episode] = []
    for episode, turns in zip(group.episodes, terms, strict=True):
        rows = tuple(tuple(RewardTerm(component="c", value=v, span=s) for s, v in turn) for turn in turns)
        value = sum(term.value for row in rows for term in row)
        episodes.append(
            replace(episode, turns=episode.turns[: len(rows)], reward=Reward(grader="g", value=value, terms=rows))
        )
    return replace(group, episodes=tuple(episodes))


def test_episode_credit_is_one_number_an_episode(loaded: LoadedModel) -> None:
    group = with_rewards(groups(loaded)[0], [[[(None, 1.0)]], [[(None, 4.0)]], [[(None, 1.0)]]])
    samples = credit_groups([group], config("episode"), loaded.renderer)
    assert [sorted(set(one.advantages.tolist())) for one in samples] == [[-1.0], [2.0], [-1.0]]


def test_turn_credit_is_reward_to_go_against_the_others(loaded: LoadedModel) -> None:
    terms = [
        [[(None, 1.0)], [(None, 2.0)]],
        [[(None, 0.0)], [(None, 0.0)]],
        [[(None, 6.0)]],  # stopped after one turn: counts 0 in the baseline of the second
    ]
    samples = credit_groups([with_rewards(groups(loaded)[0], terms)], config("turn"), loaded.renderer)
    by_turn = [{int(t): float(a) for t, a in zip(one.sequence.turns, one.advantages, strict=True)} for one in samples]
    assert by_turn[0] == pytest.approx({0: 3.0 - 3.0, 1: 2.0 - 0.0})
    assert by_turn[1] == pytest.approx({0: 0.0 - 4.5, 1: 0.0 - 1.0})
    assert by_turn[2] == pytest.approx({0: 6.0 - 1.5})


def test_span_credit_stays_in_its_span(loaded: LoadedModel) -> None:
    """The number's token alone gets the number's advantage, the color's token the color's, the stop token what belongs to no span."""
    quiet = [[("number", 0.0), ("color", 0.0)]]
    terms = [[[("number", 3.0), ("color", 0.0)]], quiet, quiet]
    samples = credit_groups([with_rewards(groups(loaded)[0], terms)], config("span"), loaded.renderer)
    assert samples[0].advantages.tolist() == pytest.approx([3.0, 0.0, 0.0])
    assert samples[1].advantages.tolist() == pytest.approx([-1.5, 0.0, 0.0])
    both = [[[("number", 3.0), (None, 2.0)]], [[(None, 0.0)]], [[(None, 0.0)]]]
    samples = credit_groups([with_rewards(groups(loaded)[0], both)], config("span"), loaded.renderer)
    assert samples[0].advantages.tolist() == pytest.approx([5.0, 2.0, 2.0])


def test_credit_without_spans_equals_turn_credit(loaded: LoadedModel) -> None:
    terms = [[[(None, 1.0)], [(None, 2.0)]], [[(None, -1.0)], [(None, 5.0)]], [[(None, 0.5)], [(None, 0.0)]]]
    group = with_rewards(groups(loaded)[0], terms)
    turn = credit_groups([group], config("turn", scale="batch"), loaded.renderer)
    span = credit_groups([group], config("span", scale="batch"), loaded.renderer)
    for one, other in zip(turn, span, strict=True):
        np.testing.assert_allclose(one.advantages, other.advantages)


def test_permuting_groups_permutes_advantages(loaded: LoadedModel) -> None:
    first, second = groups(loaded)
    settings = config("turn", scale="batch")
    there = credit_groups([first, second], settings, loaded.renderer)
    back = credit_groups([second, first], settings, loaded.renderer)
    for one, other in zip([*there[3:], *there[:3]], back, strict=True):
        np.testing.assert_allclose(one.advantages, other.advantages)
        assert one.sequence.ids.tolist() == other.sequence.ids.tolist()


def test_an_ungraded_episode_is_left_out_and_an_equal_group_is_silent(loaded: LoadedModel) -> None:
    group = with_rewards(groups(loaded)[0], [[[(None, 0.3)]]] * 3)
    samples = credit_groups([group], config("turn"), loaded.renderer)
    assert [one.live for one in samples] == [False] * 3
    missing = replace(group.episodes[0], reward=Reward(grader="g", value=None, error="broken"))
    samples = credit_groups([replace(group, episodes=(missing, *group.episodes[1:]))], config("turn"), loaded.renderer)
    assert len(samples) == 2


def test_token_ends_cover_the_answer(loaded: LoadedModel) -> None:
    for group in groups(loaded):
        for turn in group.episodes[0].turns:
            assert turn.tokens is not None
            ends = token_ends(loaded.renderer, turn.tokens.action_ids)
            assert ends[-1] == len(turn.action)
            assert list(ends) == sorted(ends)
