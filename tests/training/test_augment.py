"""Noise in what is read, never in what is learned."""

from dataclasses import replace

import numpy as np
import torch

from gradus.training.data.sequences import TrainingSample
from gradus.training.lessons import answer_pools, short_turns, with_history_noise


def sequence(turns=5):
    """Two context tokens, then per turn an answer of two tokens and a stop token, then one token of context."""
    ids, positions, turn_of, offsets = [90, 91], [], [], []
    for turn in range(turns):
        for offset, token in enumerate((turn % 10, 20 + turn % 3, 99)):
            positions.append(len(ids))
            turn_of.append(turn)
            offsets.append(offset)
            ids.append(token)
        ids.append(50 + turn)
    return TrainingSample(
        key=(0, 0),
        episode=0,
        ids=torch.tensor(ids),
        positions=torch.tensor(positions),
        logprobs=torch.zeros(len(positions), dtype=torch.float64),
        turns=torch.tensor(turn_of),
        offsets=torch.tensor(offsets),
    )


def test_only_answers_change_and_targets_stay():
    clean = sequence(40)
    noisy = with_history_noise(clean, 1.0, answer_pools([clean]), np.random.default_rng(0))
    read = torch.ones(len(clean), dtype=torch.bool)
    read[clean.positions] = False
    assert torch.equal(noisy.ids[read], clean.ids[read])
    assert torch.equal(noisy.targets, clean.ids[clean.positions])
    changed = noisy.ids[clean.positions] != clean.ids[clean.positions]
    assert changed[clean.offsets == 0].double().mean() > 0.7  # ten digits: nine in ten differ
    assert not changed[clean.offsets == 2].any()  # a stop token can be nothing else


def test_noise_at_a_place_is_what_was_said_at_that_place():
    pools = answer_pools([sequence(3), sequence(5)])
    assert {place: ids.tolist() for place, ids in pools.items()} == {0: [0, 1, 2, 3, 4], 1: [20, 21, 22], 2: [99]}


def test_first_turns_are_those_of_the_sequence_which_may_begin_in_the_middle_of_an_episode():
    whole = sequence(3)
    legal = tuple((token,) for token in whole.ids[whole.positions].tolist())
    later = replace(whole, turns=whole.turns + 4, legal=legal, targets=whole.ids[whole.positions] + 100)
    short = short_turns(later, 2)
    assert short.turns.tolist() == [4, 4, 4, 5, 5, 5]
    assert short.positions.tolist() == [2, 3, 4, 6, 7, 8]
    assert short.legal == legal[:6]
    assert short.targets.tolist() == [100, 120, 199, 101, 121, 199]
