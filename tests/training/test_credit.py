"""Which token gets which advantage."""

from dataclasses import replace
from typing import Any

import pytest
from fakes import NUMBERS, WORDS, lamps

from gradus.algorithms import Credit, Scale, find_algorithm, registry
from gradus.core import ConfigError, Episode, Group, Reward, RewardTerm
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig
from gradus.rollouts import roll_out
from gradus.training.config import GrpoConfig
from gradus.training.data.credit import credit_groups, token_ends
from gradus.training.data.sequences import TrainingSample

SPEC = lamps()


def rule(credit: Credit, scale: Scale | None = "none", algorithm: str = "gradus") -> GrpoConfig:
    return GrpoConfig(algorithm=algorithm, credit=credit, scale=scale)


def credited(groups: list[Group], rule: GrpoConfig, loaded: LoadedModel, **weights: float) -> list[TrainingSample]:
    return credit_groups(groups, rule, loaded.renderer, weights=weights or {"c": 1.0})


def values(sample: TrainingSample) -> list[float]:
    return sample.advantages.tolist()


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
    samples = credited([group], rule("episode"), loaded)
    assert [sorted(set(values(one))) for one in samples] == [[-1.0], [2.0], [-1.0]]


def test_rewards_that_an_algorithm_cannot_take_are_an_error_of_the_run(loaded: LoadedModel) -> None:
    group = with_rewards(groups(loaded)[0], [[[(None, -1.0)]], [[(None, 1.0)]], [[(None, 0.0)]]])
    with pytest.raises(ConfigError, match="must not be negative"):
        credited([group], rule("episode", None, "maxrl"), loaded)


def test_turn_credit_is_reward_to_go_against_the_others(loaded: LoadedModel) -> None:
    terms = [
        [[(None, 1.0)], [(None, 2.0)]],
        [[(None, 0.0)], [(None, 0.0)]],
        [[(None, 6.0)]],  # stopped after one turn: counts 0 in the baseline of the second
    ]
    samples = credited([with_rewards(groups(loaded)[0], terms)], rule("turn"), loaded)
    by_turn = [{int(t): float(a) for t, a in zip(one.turns, values(one), strict=True)} for one in samples]
    assert by_turn[0] == pytest.approx({0: 3.0 - 3.0, 1: 2.0 - 0.0})
    assert by_turn[1] == pytest.approx({0: 0.0 - 4.5, 1: 0.0 - 1.0})
    assert by_turn[2] == pytest.approx({0: 6.0 - 1.5})


def test_span_credit_stays_in_its_span(loaded: LoadedModel) -> None:
    """The number's token alone gets the number's advantage, the color's token the color's, the stop token what belongs to no span."""
    quiet = [[("number", 0.0), ("color", 0.0)]]
    terms = [[[("number", 3.0), ("color", 0.0)]], quiet, quiet]
    samples = credited([with_rewards(groups(loaded)[0], terms)], rule("span"), loaded)
    assert values(samples[0]) == pytest.approx([3.0, 0.0, 0.0])
    assert values(samples[1]) == pytest.approx([-1.5, 0.0, 0.0])
    both = [[[("number", 3.0), (None, 2.0)]], [[(None, 0.0)]], [[(None, 0.0)]]]
    samples = credited([with_rewards(groups(loaded)[0], both)], rule("span"), loaded)
    assert values(samples[0]) == pytest.approx([5.0, 2.0, 2.0])
    absent = [[[("tempo", 3.0)]], [[(None, 0.0)]], [[(None, 0.0)]]]  # a span that the turn does not have
    samples = credited([with_rewards(groups(loaded)[0], absent)], rule("span"), loaded)
    assert values(samples[0]) == pytest.approx([3.0, 3.0, 3.0])


def test_an_immediate_term_is_for_its_span_and_what_was_done_for_the_rest(loaded: LoadedModel) -> None:
    group = with_rewards(
        groups(loaded)[0], [[[("color", 2.0)], [("number", 4.0)]], *[[[(None, 0.0)], [(None, 0.0)]]] * 2]
    )
    said = RewardTerm(component="c", value=3.0, span="number", immediate=True)
    first, *others = group.episodes
    terms = tuple((*turn, said) for turn in first.reward.terms)
    group = replace(group, episodes=(replace(first, reward=replace(first.reward, terms=terms)), *others))
    half = rule("span").model_copy(update={"discount": 0.5})
    one, *_ = credited([group], half, loaded)
    # What is said in the second turn (3) counts for what was done in the first one: 2 + (4 + 3) / 2.
    assert values(one) == pytest.approx([3.0, 5.5, 5.5, 3.0, 4.0, 4.0])
    one, *_ = credited([group], half.model_copy(update={"informing": False}), loaded)
    assert values(one) == pytest.approx([3.0, 4.0, 4.0, 3.0, 4.0, 4.0])


def test_a_component_that_is_undefined_counts_for_what_it_added(loaded: LoadedModel) -> None:
    group = with_rewards(groups(loaded)[0], [[[(None, 1.0)]], [[(None, 4.0)]], [[(None, 1.0)]]])
    samples = credited([group], rule("episode", algorithm="gdpo"), loaded, c=2.0)
    assert [values(one)[0] for one in samples] == [-1.0, 2.0, -1.0]


def test_the_entropy_bonus_is_for_the_spans_that_are_named(loaded: LoadedModel) -> None:
    one, *_ = credited(groups(loaded), rule("span").model_copy(update={"entropy_spans": {"number": 0.5}}), loaded)
    assert one.entropy.tolist() == [0.5, 0.0, 0.0] * 3
    assert all(each.entropy is None for each in credited(groups(loaded), rule("span"), loaded))


def test_an_ungraded_episode_is_left_out_and_an_equal_group_is_silent(loaded: LoadedModel) -> None:
    group = with_rewards(groups(loaded)[0], [[[(None, 0.3)]]] * 3)
    samples = credited([group], rule("turn"), loaded)
    assert [one.live for one in samples] == [False] * 3
    missing = replace(group.episodes[0], reward=Reward(grader="g", value=None, error="broken"))
    samples = credited([replace(group, episodes=(missing, *group.episodes[1:]))], rule("turn"), loaded)
    assert len(samples) == 2


def test_token_ends_cover_the_answer(loaded: LoadedModel) -> None:
    for group in groups(loaded):
        for turn in group.episodes[0].turns:
            ends = token_ends(loaded.renderer, turn.tokens.action_ids)
            assert ends[-1] == len(turn.action)
            assert list(ends) == sorted(ends)


@pytest.mark.parametrize(
    "given",
    [
        lambda rewards: rewards.values.repeat(2),
        lambda rewards: rewards.values.tolist(),
        lambda rewards: rewards.values * float("nan"),
    ],
)
def test_an_algorithm_of_ones_own_is_held_to_its_word(
    loaded: LoadedModel, given: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = replace(find_algorithm("gradus"), advantage=lambda rewards, **_: given(rewards))
    monkeypatch.setattr(registry, "_ALGORITHMS", {**registry._ALGORITHMS, "mine": own})
    with pytest.raises(ConfigError, match=r"finite numbers in the shape \(6,\)"):
        credited(groups(loaded), rule("episode", algorithm="mine"), loaded)
