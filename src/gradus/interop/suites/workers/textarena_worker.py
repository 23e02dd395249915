"""Runs in a process of its own: plays TextArena's games. Nothing of Gradus is imported.

A game in progress is kept under its key. Each game has its own state of the global ``random``, which the games draw from.
"""

import copy
import random
import re
from collections import OrderedDict

import textarena
from textarena.envs.registration import ENV_REGISTRY

KEPT = 2048  # games in progress
TRIES = 60  # moves that are tried on a copy of the game
TRIAL_MOVES = 20  # of a game that says whether random moves are legal
_SUFFIXES = ("-raw", "-train")
_games = OrderedDict()


class Game:
    def __init__(self, name, seed, players):
        self.env = _made(name)
        self.done = False
        self.own = random.Random(seed)  # the opponent's
        self.heard = {0: [], 1: []}
        random.seed(seed)
        self.env.reset(num_players=players, seed=seed)
        self.shown = self._until_ours()
        self.random = random.getstate()

    def step(self, action):
        """Make a move; true if the game took it."""
        random.setstate(self.random)
        before = self._errors()
        self.done = bool(self.env.step(action if "[" in action or "]" in action else f"[{action.strip()}]")[0])
        valid = self._errors() <= before and not self.env.state.game_info[0].get("invalid_move")
        self.shown = self._until_ours()
        self.random = random.getstate()
        return valid

    def _until_ours(self):
        """Let the opponent move until it is our turn; what we are told on the way."""
        while not self.done:
            player, messages = self.env.get_observation()
            self.heard[player] = (self.heard[player] + [text for _, text, _ in messages])[-20:]
            if player == 0:
                return _told(messages)
            move = self._first_legal(_moves(self.heard[1], self.own), 1, random.getstate())
            if move is None:  # an illegal move would win the game for us
                raise RuntimeError("the opponent found no legal move among those of the rules and small numbers")
            self.done = bool(self.env.step(move)[0])
        return _told(self.env.state.observations.get(0, []))

    def legal(self, rng):
        """A random move of ours that the game takes; the last one tried if it takes none."""
        moves = _moves(self.heard[0], rng)
        return self._first_legal(moves, 0, self.random) or moves[-1]

    def _first_legal(self, moves, player, state):
        """The first of the moves that a copy of the game takes. ``state``: the game's of the global ``random``."""
        before = random.getstate()
        try:
            for move in moves:
                random.setstate(state)
                trial = copy.deepcopy(self.env)
                trial.step(move)
                made_error = getattr(trial.state, "error_count", 0) > 0
                if not made_error and not trial.state.game_info[player].get("invalid_move"):
                    return move
            return None
        finally:
            random.setstate(before)

    def _errors(self):
        return getattr(self.env.state, "error_count", 0)


def _made(name):
    return textarena.make(name + "-raw" if name + "-raw" in ENV_REGISTRY else name)


def _told(messages):
    return "\n".join(text.strip() for sender, text, _ in messages if sender != 0 and text.strip())


def _moves(heard, rng):
    """Candidates: what stands in brackets in the texts, and small numbers, shuffled, at most ``TRIES``."""
    named = re.findall(r"\[[^\[\]\n]{1,30}\]", "\n".join(heard))
    pairs = [f"[{a} {b}]" for a in range(5) for b in range(5)]
    moves = list(dict.fromkeys([*named, *(f"[{n}]" for n in range(21)), *pairs]))
    rng.shuffle(moves)
    return moves[:TRIES]


def names():
    return {name: "" for name in sorted(ENV_REGISTRY) if not name.endswith(_SUFFIXES)}


def begin(key, name, seed, players):
    """Returns what a new game shows."""
    _games[key] = game = Game(name, seed, players)
    while len(_games) > KEPT:
        _games.popitem(last=False)
    return game.shown


def step(key, action):
    """The state after a move: what is shown, whether the move was valid, whether the game is over, and the reward."""
    game = _games[key]
    valid = game.step(action)
    reward, reason = None, ""
    if game.done:
        rewards, info = game.env.close()
        reward, reason = float((rewards or {}).get(0, 0.0)), str(info[0].get("reason") or "")
        del _games[key]
    return {"shown": game.shown, "valid": valid, "done": game.done, "reward": reward, "reason": reason}


def legal(key, draw):
    """A random move that the game takes."""
    return _games[key].legal(random.Random(draw))


def trial(name):
    """Returns how many players the game has (0 for more than two), and whether a random move of ours was legal.

    Raises what a game raises, also if the opponent finds no move.
    """
    players, legal = _players(name), False
    if players:
        game, rng = Game(name, 0, players), random.Random(0)
        for _ in range(TRIAL_MOVES):
            legal = legal or (not game.done and game.step(game.legal(rng)))
    return {"players": players, "legal": legal}


def _players(name):
    """1 or 2: what the game takes; 0 if it takes neither."""
    for players in (1, 2):
        try:
            _made(name).reset(num_players=players, seed=0)
            return players
        except (AssertionError, ValueError) as error:  # that is how games refuse a number of players
            if isinstance(error, ValueError) and "player" not in str(error).lower():
                raise
    return 0


HANDLERS = {"names": names, "trial": trial, "begin": begin, "step": step, "legal": legal}
