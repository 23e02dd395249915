"""What the pipeline hands to a report: nothing lost, nothing invented."""

import json
from dataclasses import replace
from typing import Any

import pytest

from gradus.core import Group, TurnTokens
from gradus.evidence.reports import shown_episodes


def test_it_is_json_and_holds_every_member_and_turn(played: Any) -> None:
    json.loads(json.dumps(played.episodes, allow_nan=False))
    for entry, group in zip(played.episodes["entries"], played.groups, strict=True):
        assert entry["policy"] == group.episodes[0].policy
        assert [len(member["turns"]) for member in entry["members"]] == [len(each.turns) for each in group.episodes]


def test_the_turns_payments_sum_to_the_grade(played: Any) -> None:
    for entry in played.episodes["entries"]:
        for member in entry["members"]:
            paid = sum(value for turn in member["turns"] for _, value, _ in turn["terms"])
            assert paid == pytest.approx(member["reward"]["value"], abs=1e-3)


def test_advantages_are_given_to_groups_and_only_to_them(played: Any) -> None:
    for entry in played.episodes["entries"]:
        several = len(entry["members"]) > 1
        for member in entry["members"]:
            assert (member["advantages"] is not None) == several
        if several:
            first_turn = [member["advantages"][0] for member in entry["members"]]
            assert sum(first_turn) == pytest.approx(0.0, abs=1e-4)


def test_tokens_keep_their_order_texts_and_log_probs(played: Any) -> None:
    episode = played.groups[0].episodes[0]
    tokens = TurnTokens(context_ids=(1, 2), action_ids=(7, 8), logprobs=(-0.5, -1.5), restart=True)
    marked = replace(episode, turns=(replace(episode.turns[0], tokens=tokens), *episode.turns[1:]))
    group = [Group(task=episode.task, episodes=(marked,))]
    named = shown_episodes(played.spec, group, pieces={episode.policy: lambda ids: [f"<{each}>" for each in ids]})
    assert named["entries"][0]["members"][0]["turns"][0]["tokens"] == [["<7>", -0.5], ["<8>", -1.5]]
    unnamed = shown_episodes(played.spec, group)
    assert unnamed["entries"][0]["members"][0]["turns"][0]["tokens"] == [["#7", -0.5], ["#8", -1.5]]
