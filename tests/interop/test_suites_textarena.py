"""``textarena:NAME`` as an environment: one player, two players, randomness kept apart."""

import pytest

pytest.importorskip("textarena", reason="needs the extra suites (pip install textarena)")

from gradus import environments
from gradus.core import ConfigError, EnvironmentSpec
from gradus.interop.suites.naming import list_suite
from gradus.rollouts import roll_out


@pytest.fixture(scope="module")
def guess() -> EnvironmentSpec:
    return environments.load("textarena:GuessTheNumber-v0")


def test_games_are_listed() -> None:
    names = list_suite("textarena")
    assert {"GuessTheNumber-v0", "TicTacToe-v0"} <= set(names)
    assert not any(name.endswith(("-raw", "-train")) for name in names)


def play(environment, seed: int, numbers: list[int]) -> list[str]:
    first = environment.reset(seed=seed).text
    return [first, *(environment.step(f"[{number}]").text for number in numbers)]


def test_interleaved_games_are_what_they_are_alone(guess: EnvironmentSpec) -> None:
    alone = [play(guess.make(), seed, [3, 17, 9]) for seed in (5, 6)]
    first, second = guess.make(), guess.make()
    texts = [[first.reset(seed=5).text], [second.reset(seed=6).text]]
    for number in (3, 17, 9):
        texts[0].append(first.step(f"[{number}]").text)
        texts[1].append(second.step(f"[{number}]").text)
    assert texts == alone
    assert len({tuple(play(guess.make(), seed, [10, 15, 5])) for seed in range(8)}) > 1


def test_a_game_ends_with_its_own_reward(guess: EnvironmentSpec) -> None:
    environment = guess.make()
    environment.reset(seed=1)
    for number in range(1, 21):
        seen = environment.step(f"[{number}]")
        if seen.terminated:
            break
    assert seen.reward == 1.0
    assert "correct" in environment.outcome()["reason"]


def test_an_invalid_move_is_counted_and_two_of_them_end_the_game(guess: EnvironmentSpec) -> None:
    environment = guess.make()
    environment.reset(seed=1)
    first = environment.step("no number")
    assert (first.action_valid, first.terminated) == (False, False)
    assert environment.step("none again").terminated


def test_a_game_for_two_has_an_opponent_that_plays_legal_moves() -> None:
    spec = environments.load("textarena:TicTacToe-v0")
    episodes = roll_out(spec, spec.policy("random"), spec.tasks("in-distribution", 30)).episodes
    again = roll_out(spec, spec.policy("random"), spec.tasks("in-distribution", 30)).episodes
    assert [each.turns for each in episodes] == [each.turns for each in again]
    rewards = [each.reward.value for each in episodes if each.reward]
    assert {-1.0, 1.0} <= set(rewards)
    reasons = {each.outcome["reason"] for each in episodes}
    assert all("won" in reason or "draw" in reason.lower() for reason in reasons)


def test_a_game_has_what_training_needs(guess: EnvironmentSpec) -> None:
    assert guess.teacher == "random"
    assert "higher" in " ".join(guess.language.vocabulary().words)
    assert guess.recipe == "game.toml"


def test_games_that_cannot_be_played_say_why() -> None:
    with pytest.raises(ConfigError, match="more than two players"):
        environments.load("textarena:ThreePlayerIPD-v0")
    with pytest.raises(ConfigError, match="no game 'Guess'"):
        environments.load("textarena:Guess")
    with pytest.raises(ConfigError, match=r"the option turns of textarena:.* is 'many'; expected a number above 0"):
        environments.load("textarena:GuessTheNumber-v0?turns=many")
