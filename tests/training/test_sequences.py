"""What was sampled is what is trained: ids, log-probs, stop tokens and restarts survive the way into a batch."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradus.core import ConfigError, Episode, StopReason, Task, Turn, TurnTokens
from gradus.training.data.microbatches import microbatches
from gradus.training.data.sequences import TrainingSample, episode_samples

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
    """Random ids, canonical for no tokenizer, come out exactly as they went in: each turn behind all that its policy had read and said."""
    sequences = episode_samples(episode(played))
    trained = {
        (number, offset): (token, value)
        for one in sequences
        for token, value, number, offset in zip(
            one.ids[one.positions].tolist(),
            one.logprobs.tolist(),
            one.turns.tolist(),
            one.offsets.tolist(),
            strict=True,
        )
    }
    sampled = {
        (turn.index, offset): pair
        for turn in played
        if turn.tokens
        for offset, pair in enumerate(zip(turn.tokens.action_ids, turn.tokens.logprobs, strict=True))
    }
    assert trained == sampled
    assert sum(one.actions for one in sequences) == len(sampled), "each token is trained once"
    seen: list[int] = []
    for turn in played:
        seen = [*([] if turn.tokens.restart else seen), *turn.tokens.context_ids, *turn.tokens.action_ids]
        (home,) = (one for one in sequences if turn.index in one.turns)
        assert home.ids[: len(seen)].tolist() == seen
    assert len(sequences) <= sum(1 for turn in played if turn.tokens and turn.tokens.restart)
    assert [one.key for one in sequences] == [(3, part) for part in range(len(sequences))]


def test_calls_form_a_forest_by_token_prefix() -> None:
    """A prompt goes on with the longest sample that it begins with; a prompt that leaves one half-way is a branch of its own."""
    calls = [
        turn((1, 2), (3,), restart=True),
        turn((1, 2, 3, 4), (5,), restart=True),
        turn((9,), (8,), restart=True),
        turn((1, 2, 3, 6), (7,), restart=True),
        turn((1, 2, 3, 4, 5, 6), (1,), restart=True),
    ]
    samples = episode_samples(episode([replace(each, index=index) for index, each in enumerate(calls)]))
    assert [one.ids.tolist() for one in samples] == [[1, 2, 3, 4, 5, 6, 1], [9, 8], [1, 2, 3, 6, 7]]
    assert [one.turns.tolist() for one in samples] == [[0, 1, 4], [2], [3]]
    assert [one.positions.tolist() for one in samples] == [[2, 4, 6], [1], [4]]


def test_a_turn_without_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match="carries no tokens"):
        episode_samples(episode([Turn(index=0, observation="", action="yes")]))


def test_a_lost_logprob_is_refused() -> None:
    tokens = TurnTokens(context_ids=(1,), action_ids=(2, 3), logprobs=(-1.0,), restart=True)
    with pytest.raises(ConfigError, match="2 action tokens and 1 log-probs"):
        episode_samples(episode([Turn(index=0, observation="", action="", tokens=tokens)]))


def turn(context: tuple[int, ...], action: tuple[int, ...], *, restart: bool = False, **more: object) -> Turn:
    logprobs = tuple(-0.5 * token for token in action)
    tokens = TurnTokens(context_ids=context, action_ids=action, logprobs=logprobs, restart=restart, **more)  # type: ignore[arg-type]
    return Turn(index=0, observation="", action="", tokens=tokens)


def test_a_sample_says_where_each_token_stands_and_what_was_shown_between() -> None:
    legal = ((4, 9), (5,))
    spoken = [turn((1, 2, 3), (4, 5), restart=True, legal=legal), turn((6,), (7, 8, 9)), turn((1,), (2,), restart=True)]
    first, second = episode_samples(episode(spoken), index=8, group=5)
    assert first.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert first.positions.tolist() == [3, 4, 6, 7, 8]
    assert first.offsets.tolist() == [0, 1, 0, 1, 2]
    assert first.turns.tolist() == [0, 0, 1, 1, 1]
    assert first.read.tolist() == [5], "what stands before the first answer is no news of the environment"
    assert first.legal == (*legal, None, None, None)
    assert (first.key, second.key, second.legal, second.episode) == ((5, 0), (5, 1), None, 8)
    with pytest.raises(ConfigError, match="must read something before it acts"):
        episode_samples(episode([turn((), (4,), restart=True)]))


def sample(ids: list[int], positions: list[int], *, group: int = 0, **more: object) -> TrainingSample:
    count = len(positions)
    zeros = torch.zeros(count, dtype=torch.int64)
    return TrainingSample(
        key=(group, 0),
        episode=0,
        ids=torch.tensor(ids),
        positions=torch.tensor(positions),
        logprobs=torch.zeros(count, dtype=torch.float64),
        turns=zeros,
        offsets=zeros,
        **more,  # type: ignore[arg-type]
    )


def test_labels_are_targets_and_legal_tokens_of_each_row_and_what_was_shown_before_its_end() -> None:
    read = torch.tensor([3, 5])
    plain = sample([1, 2, 3, 4, 5, 6], [2, 4], read=read)  # 6 was shown behind the last answer
    ruled = sample([1, 2, 3, 4], [2, 3], group=1, legal=((3, 7), (4,)), targets=torch.tensor([7, 4]))
    (batch,) = microbatches([plain, ruled], budget=100, vocabulary=8)
    for row, index in enumerate(batch.sequences):
        mine = batch.labels.row == row
        assert batch.labels.target[mine].tolist() == [[3, 5], [7, 4]][index]
        allowed = [[place for place in range(8) if each[place]] for each in batch.labels.legal[mine]]
        assert allowed == [[list(range(8))] * 2, [[3, 7], [4]]][index]
    assert batch.labels.read_target.tolist() == [4]
    assert batch.input_ids[0, batch.labels.read_source].tolist() == [3]


def test_a_row_of_its_own_and_a_group_with_a_prefix_are_not_laid_out_together() -> None:
    shared = list(range(20, 32))
    rows = [list(range(1, 16)), [*shared, 40, 41, 42], [*shared, 50, 51, 52]]
    samples = [sample(ids, [13, 14], group=min(index, 1)) for index, ids in enumerate(rows)]
    batches = microbatches(samples, budget=1000)
    seen: list[int] = []
    for batch in batches:
        for row, index in enumerate(batch.sequences):
            source = batch.labels.source[batch.labels.row == row]
            assert batch.input_ids[0, source].tolist() == rows[index][12:14]
            seen.append(index)
    assert sorted(seen) == [0, 1, 2]
    # The last of a row is predicted, never read.
    assert sum(batch.tokens for batch in batches) == 14 + 12 + 2 + 2
