"""Runs in a process of its own: plays TextArena's games. Nothing of Gradus is imported.

``play`` is a function of game, seed and the actions so far; a game in progress is kept under ``key``, and played again from the
start if it is not there any more. Each game has its own state of the global ``random``, which the games draw from.
"""

import copy
import random
import re
import time
from collections import OrderedDict

import textarena
from textarena.envs.registration import ENV_REGISTRY

KEPT = 2048  # games in progress
TRIES = 60  # moves that are tried on a copy of the game
TRIALS = 3  # games that say whether a game can be played at all
TRIAL_MOVES = 40  # of each
TRIAL_SECONDS = 2.0  # of CPU time, after which no further move is tried: some games take a second for one
_SUFFIXES = ("-raw", "-train")
_games = OrderedDict()


class Game:
    def __init__(self, name, seed, players):
        self.env = textarena.make(name + "-raw" if name + "-raw" in ENV_REGISTRY else name)
        self.actions = []
        self.done = False
        self.own = random.Random(seed)  # the opponent's
        self.heard = {0: [], 1: []}
        random.seed(seed)
        self.env.reset(num_players=players, seed=seed)
        self.random = random.getstate()
        self.shown = self._until_ours()

    def step(self, action):
        random.setstate(self.random)
        self.actions.append(action)
        before = self._errors()
        self.done = bool(self.env.step(_bracketed(action))[0])
        valid = self._errors() <= before and not self._lost_by_error(0)
        self.shown = self._until_ours()
        self.random = random.getstate()
        return valid

    def _until_ours(self):
        """Let the opponent move until it is our turn; what we are told on the way."""
        while not self.done:
            player, messages = self.env.get_observation()
            self.heard[player] = (self.heard[player] + [text for _, text, _ in messages])[-20:]
            if player == 0:
                return "\n".join(text.strip() for sender, text, _ in messages if sender != 0 and text.strip())
            self.done = bool(self.env.step(self._opponent())[0])
        left = self.env.state.observations.get(0, [])
        return "\n".join(text.strip() for sender, text, _ in left if sender != 0 and text.strip())

    def _opponent(self):
        """A random move that the game takes. Without one the game fails: an illegal move would win it for us."""
        moves = _moves(self.heard[1], self.own)
        move = self._first_legal(moves, 1, random.getstate())
        if move is None:
            raise RuntimeError(
                f"the opponent found no legal move: it tried {len(moves)} of what the rules show in brackets, small numbers and pairs"
            )
        return move

    def legal(self, rng):
        """A random move of ours that the game takes; the last one tried if it takes none."""
        moves = _moves(self.heard[0], rng)
        return self._first_legal(moves, 0, self.random) or moves[-1]

    def _first_legal(self, moves, player, state):
        """The first of the moves that a copy of the game takes. ``state``: the game's of the global ``random``."""
        kept = random.getstate()
        try:
            for move in moves:
                random.setstate(state)
                trial = copy.deepcopy(self.env)
                trial.step(move)
                if not _made_error(trial.state) and not trial.state.game_info[player].get("invalid_move"):
                    return move
            return None
        finally:
            random.setstate(kept)

    def _errors(self):
        return getattr(self.env.state, "error_count", 0)

    def _lost_by_error(self, player):
        return bool(self.env.state.game_info[player].get("invalid_move"))


def _made_error(state):
    return getattr(state, "error_count", 0) > 0


def _bracketed(action):
    return action if "[" in action or "]" in action else "[" + action.strip() + "]"


def _moves(heard, rng):
    """Candidates: what stands in brackets in the texts, and small numbers, shuffled, at most ``TRIES``."""
    named = re.findall(r"\[[^\[\]\n]{1,30}\]", "\n".join(heard))
    pairs = [f"[{a} {b}]" for a in range(5) for b in range(5)]
    moves = list(dict.fromkeys([*named, *(f"[{n}]" for n in range(21)), *pairs]))
    rng.shuffle(moves)
    return moves[:TRIES]


def _players(name):
    """1 or 2: what the game takes; 0 if it takes neither."""
    for players in (1, 2):
        state = random.getstate()
        try:
            env = textarena.make(name + "-raw" if name + "-raw" in ENV_REGISTRY else name)
            env.reset(num_players=players, seed=0)
            return players
        except (AssertionError, ValueError) as error:  # that is how games refuse a number of players
            if isinstance(error, ValueError) and "player" not in str(error).lower():
                raise
        finally:
            random.setstate(state)
    return 0


def names():
    return {name: "" for name in sorted(ENV_REGISTRY) if not name.endswith(_SUFFIXES)}


def _game(name, seed, players, actions, key):
    game = _games.pop(key, None)
    if game is None or game.actions != actions[: len(game.actions)] or len(game.actions) < len(actions) - 1:
        game = Game(name, seed, players)
        for action in actions[:-1]:
            game.step(action)
    valid = True
    if len(game.actions) < len(actions):
        valid = game.step(actions[-1])
    _games[key] = game
    while len(_games) > KEPT:
        _games.popitem(last=False)
    return game, valid


def play(name, seed, players, actions, key):
    """The state after ``actions``: what is shown, whether the last action was valid, whether it is over, and the reward."""
    game, valid = _game(name, seed, players, actions, key)
    reward, reason = None, ""
    if game.done:
        rewards, info = game.env.close()
        reward, reason = float((rewards or {}).get(0, 0.0)), str(info[0].get("reason") or "")
        _games.pop(key, None)
    return {"shown": game.shown, "valid": valid, "done": game.done, "reward": reward, "reason": reason}


def legal(name, seed, players, actions, key, draw):
    """A random move that the game takes."""
    game, _ = _game(name, seed, players, actions, key)
    return game.legal(random.Random(draw))


def trial(name):
    """Returns how many players the game has (0 for more than two), and whether a random move of ours was legal in a few games.

    Raises what a game raises, also if the opponent finds no move.
    """
    players, legal, begun = _players(name), False, time.process_time()
    for seed in range(TRIALS if players else 0):
        game, rng = Game(name, seed, players), random.Random(seed)
        while not game.done and len(game.actions) < TRIAL_MOVES and time.process_time() - begun < TRIAL_SECONDS:
            legal = game.step(game.legal(rng)) or legal
    return {"players": players, "legal": legal}


HANDLERS = {"names": names, "trial": trial, "play": play, "legal": legal}
