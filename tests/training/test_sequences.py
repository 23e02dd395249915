"""What was sampled is what is trained: ids, log-probs, stop tokens and restarts survive the way into a batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.core import ConfigError, Episode, StopReason, Task, Turn, TurnTokens
from gradus.training.data.sequences import episode_samples

IDS = st.integers(0, 5000)


@st.composite
def turns(draw: st.DrawFn) -> list[Turn]:
    turns: list[Turn] = []
    for index in range(draw(st.integers(1, 6))):
        action = draw(st.lists(IDS, min_size=1, max_size=5))
        logprobs = draw(st.lists(st.floats(-20, 0), min_size=len(action), max_size=len(action)))
        tokens = TurnTokens(
            context_ids=tuple(draw(st.lists(IDS, min_size=1, max_size=6))),
            action_ids=tuple(action),
            logprobs=tuple(logprobs),
            restart=index == 0 or draw(st.booleans()),
        )
        turns.append(Turn(index=index, observation="", action="", tokens=tokens))
    return turns


def episode(played: list[Turn]) -> Episode:
    task = Task(environment="none", seed=0)
    return Episode(task=task, policy="test", turns=tuple(played), stop=StopReason.TERMINATED, group=3)


@given(turns())
def test_nothing_is_tokenized_again(played: list[Turn]) -> None:
    """Random ids, canonical for no tokenizer, come out exactly as they went in, in order, each with its log-prob and turn."""
    sequences = episode_samples(episode(played))
    everything = [i for turn in played if turn.tokens for i in (*turn.tokens.context_ids, *turn.tokens.action_ids)]
    assert [i for sequence in sequences for i in sequence.ids.tolist()] == everything
    sampled = [i for turn in played if turn.tokens for i in turn.tokens.action_ids]
    assert [i for one in sequences for i in one.ids[one.positions].tolist()] == sampled
    logprobs = [value for turn in played if turn.tokens for value in turn.tokens.logprobs]
    assert [value for one in sequences for value in one.logprobs.tolist()] == logprobs
    numbers = [turn.index for turn in played if turn.tokens for _ in turn.tokens.action_ids]
    assert [number for one in sequences for number in one.turns.tolist()] == numbers
    assert len(sequences) == sum(1 for turn in played if turn.tokens and turn.tokens.restart)
    assert [one.key for one in sequences] == [(3, part) for part in range(len(sequences))]


def test_a_turn_without_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match="carries no tokens"):
        episode_samples(episode([Turn(index=0, observation="", action="yes")]))


def test_a_lost_logprob_is_refused() -> None:
    tokens = TurnTokens(context_ids=(1,), action_ids=(2, 3), logprobs=(-1.0,), restart=True)
    with pytest.raises(ConfigError, match="2 action tokens and 1 log-probs"):
        episode_samples(episode([Turn(index=0, observation="", action="", tokens=tokens)]))
