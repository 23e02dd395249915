"""Results and episodes on a terminal."""

import re
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console, RenderableType

from gradus.core import Failure, Reward, StopReason
from gradus.evidence.reports import show_episode, show_results
from tests.fakes import policy_figures, results_document


def printed(shown: RenderableType, width: int = 200) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(shown)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_end_of_a_run_shows_every_grader_and_the_true_reward(played: Any) -> None:
    text = printed(show_results(played.results, every=True))
    for title in ("grader v3", "grader v2", "episode reward"):
        assert title in text


def test_the_end_of_a_command_is_a_sentence_and_one_table_on_one_screen(played: Any) -> None:
    """It was 491 lines, twelve tables, and what they prove among them."""
    for quick in (False, True):
        lines = printed(show_results({**played.results, "quick": quick}), width=80).splitlines()
        text = "\n".join(lines)
        assert len(lines) <= 18  # promises, costs, the report and the next command follow
        assert text.count("grader v") == 1
        assert "held-out, 8 episodes, grader v3" in text
        assert ("toy size" in text) == quick


def test_a_table_of_many_policies_keeps_the_students_and_the_best() -> None:
    results = results_document("rhythm")
    rewards = {"sft": 0.1, "grpo": 0.2, **{f"other{place}": place for place in range(12)}}
    results["conditions"]["main"]["policies"] = {name: policy_figures(reward=mean) for name, mean in rewards.items()}
    text = printed(show_results(results), width=80)
    assert len(text.splitlines()) <= 18
    assert " grpo " in text
    assert " sft " in text
    assert " other11 " in text
    assert " other0 " not in text


@pytest.mark.parametrize("width", [80, 60])
def test_nothing_is_cut_on_a_narrow_terminal(played: Any, width: int) -> None:
    text = printed(show_results(played.results), width=width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for name in played.results["conditions"]["held-out"]["policies"]:
        assert name in text


def test_the_wide_tables_show_every_figure_at_80_columns(played: Any) -> None:
    """All columns stood side by side, as 0.… beside 0.…"""
    texts = [" ".join(printed(show_results(played.results, every=True), width=width).split()) for width in (80, 400)]
    assert "…" not in texts[0]
    figures = [set(re.findall(r"[+−]?\d+\.\d+ \[.*?\]", text)) for text in texts]
    assert figures[0] == figures[1] != set()


def test_an_episode_shows_all_it_read_answered_and_was_rewarded(played: Any) -> None:
    episode = played.groups[-1].episodes[0]
    text = printed(show_episode(episode, played.spec.presentation.view(episode)), width=1000)
    for turn in episode.turns:
        assert turn.observation in text
        assert turn.action in text
    assert f"reward v3 {episode.reward.value:.3f}".replace("-", "\N{MINUS SIGN}") in text
    assert "belief skill (social)" in text
    assert "Stated belief and truth" in text


def test_what_went_wrong_is_not_hidden(played: Any) -> None:
    episode = played.groups[0].episodes[0]
    bad = replace(episode.turns[0], valid=False, error="no action named", cut=True)
    failure = Failure(stage="act", type="TimeoutError", message="no answer within 5 s")
    reward = Reward(grader="v3", value=None, error="too short")
    broken = replace(episode, turns=(bad,), stop=StopReason.FAILED, failure=failure, reward=reward)
    text = printed(show_episode(broken))
    for words in (
        "not understood: no action named",
        "cut by the token budget",
        "TimeoutError: no answer within 5 s",
        "too short",
    ):
        assert words in text
