"""The worker that plays TextArena's games, on a game of our own in TextArena's place."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import gradus.interop.suites.textarena as suite

WORKER = Path(suite.__file__).parent / "workers" / "textarena_worker.py"


class Take:
    """Players say in turn one of the moves that are legal. Who says another has lost; after four moves the first one has won."""

    def __init__(self, players: int, legal: tuple[str, ...], theirs: tuple[str, ...]) -> None:
        self.count, self.legal = players, (legal, theirs)

    def reset(self, num_players: int, seed: int) -> None:
        if num_players != self.count:
            raise ValueError(f"{self.count} players, please")
        self.moves, self.player = 0, 0
        self.state = SimpleNamespace(error_count=0, game_info={0: {}, 1: {}}, observations={})

    def get_observation(self):
        return self.player, [(-1, "Say [a].", None)]

    def step(self, action: str):
        legal = action in self.legal[self.player]
        self.state.game_info[self.player]["invalid_move"] = not legal
        self.moves += 1
        self.player = (self.player + 1) % self.count
        return not legal or self.moves == 4, {}


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch):
    """The worker's handlers, on a game with these players and legal moves; ``theirs`` are the opponent's."""

    def begun(players: int, legal: tuple[str, ...], theirs: tuple[str, ...] = ()):
        registration = ModuleType("registration")
        registration.ENV_REGISTRY = {"Take-v0": None}  # type: ignore[attr-defined]
        textarena = ModuleType("textarena")
        textarena.make = lambda name: Take(players, legal, theirs)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "textarena", textarena)
        monkeypatch.setitem(sys.modules, "textarena.envs", ModuleType("envs"))
        monkeypatch.setitem(sys.modules, "textarena.envs.registration", registration)
        spec = importlib.util.spec_from_file_location("textarena_worker_under_test", WORKER)
        worker = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(worker)
        return worker.HANDLERS

    return begun


def test_an_opponent_without_a_legal_move_fails_the_game_and_does_not_lose_it(play) -> None:
    """Any legal move won three games, because the opponent then said an illegal one."""
    handlers = play(2, ("[a]",), ("[zz]",))
    handlers["begin"]("key", "Take-v0", 0, 2)
    with pytest.raises(RuntimeError, match="opponent found no legal move"):
        handlers["step"]("key", "[a]")
    handlers = play(2, ("[a]",), ("[a]",))
    handlers["begin"]("key", "Take-v0", 0, 2)
    assert not handlers["step"]("key", "[a]")["done"]


@pytest.mark.parametrize("legal", ["[a]", "[zz]"])
def test_a_trial_says_whether_random_moves_are_legal(legal: str, play) -> None:
    handlers = play(1, (legal,))
    assert handlers["trial"]("Take-v0") == {"players": 1, "legal": legal == "[a]"}


class Answering:
    """A worker whose game has no legal random move."""

    def start(self) -> None: ...

    def call(self, method: str, **params):
        return {"names": {"Take-v0": ""}, "trial": {"players": 1, "legal": False}}[method]


def test_a_game_in_which_random_moves_are_illegal_has_no_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first model was taught illegal answers, without a word."""
    monkeypatch.setattr(suite, "_worker", Answering)
    spec = suite.load("Take-v0")
    assert (spec.teacher, spec.recipe, spec.language.vocabulary) == (None, None, None)
    assert "no legal move was found" in spec.summary
