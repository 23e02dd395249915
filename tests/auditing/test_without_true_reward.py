"""Where nobody knows a true reward, what needs one is left open and the rest is audited."""

import json
import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from fakes import lamps

import gradus
from gradus.auditing.plans.offered import answers_in, answers_offered, offered_answers
from gradus.auditing.plans.plan import answer_space
from gradus.auditing.run import AuditSettings, run_audit
from gradus.core import AuditHints, Episode, Observation, StopReason, Task, Turn
from gradus.interop.classes import class_spec
from gradus.interop.suites.games import return_grader
from gradus.runs.stages.audits import store_audit


@pytest.mark.parametrize("policies", [True, False])
def test_an_environment_without_a_true_reward_is_audited(tmp_path: Path, policies: bool) -> None:
    spec = replace(lamps(), true_reward=lambda episode: None)
    if not policies:
        spec = replace(spec, policies={}, teacher=None)
    result = run_audit(spec, spec.grader(), AuditSettings(episodes=8, budget=1700))
    checks = {each.subject: each for each in result.checks}
    assert {checks[name].status for name in ("search", "exploits")} == {"note"}
    assert all("declare true_reward" in checks[name].evidence for name in ("search", "alignment"))
    assert checks["alignment"].status == ("note" if policies else "open"), (
        "a teacher is an aim; without any nothing passes"
    )
    if not policies:
        assert result.verdict == "unresolved"
    names = {path.name for path in store_audit(spec, result, tmp_path)}
    assert "audit.html" in names
    assert "audit.svg" not in names, "there is nothing to draw rewards against"


class _Walk:
    """Walk to a door. ``expert`` does so; a step towards it is paid each time, a step back costs nothing."""

    actions = ("left", "right", "wait")
    max_turns = 10

    def reset(self, seed):
        self.door = (3 + seed % 2) * (1 if seed % 3 else -1)
        return f"the door is at {self.door}"

    def expert(self):
        return "right" if self.door > 0 else "left"

    def step(self, action):
        before = abs(self.door)
        self.door += {"left": 1, "right": -1, "wait": 0}[action]
        return f"the door is at {self.door}", 0.3 * max(0, before - abs(self.door)), self.door == 0


class _Simon:
    """Do what is said, five times. Nothing pays but to listen."""

    actions = ("left", "right", "wait", "jump")
    max_turns = 5

    def reset(self, seed):
        self.words = Random(seed).choices(self.actions, k=6)
        return self.words[0]

    def expert(self):
        return self.words[0]

    def step(self, action):
        word = self.words.pop(0)
        return self.words[0], float(action == word), len(self.words) == 1


@pytest.mark.parametrize(("kind", "status"), [(_Walk, "open"), (_Simon, "pass")])
def test_a_reward_that_is_held_against_itself_is_left_out_and_what_earns_without_looking_is_said(kind, status) -> None:
    """Rank correlation of a thing with itself is 1. A class whose reward is earned by going back and forth stays open."""
    spec = class_spec(kind)
    result = run_audit(spec, spec.grader(), AuditSettings(episodes=20, budget=4200))
    checks = {check.subject: check for check in result.checks}
    assert (checks["alignment"].status, checks["one plan"].status) == ("note", status)
    assert result.verdict == ("unresolved" if status == "open" else "pass")


def test_a_class_is_searched_within_the_actions_that_it_declares() -> None:
    """What is none of them is a random action there, and the search liked such an answer best."""
    assert answer_space(class_spec(_Walk), (), seed=0).places == (("left", "right", "wait", ""),)
    tags = AuditHints(random_answers=lambda seed: f"<answer>{seed % 2}</answer>")
    assert len(answer_space(replace(class_spec(_Walk), audit=tags), (), seed=0).places[0]) > 3, "not a closed set"


class _Knocking:
    """Find the way of four turns to a door and enter. Each knock at the door is paid too, and enters nothing."""

    actions = ("left", "right", "ahead", "knock", "enter")
    max_turns = 16

    def reset(self, seed):
        self.rng, self.left = Random(seed), 4
        return self.turned()

    def turned(self):
        self.way = self.rng.choice(self.actions[:3]) if self.left else "enter"
        return f"the way: {self.way}"

    def expert(self):
        return self.way

    def step(self, action):
        entered, knocked = action == self.way == "enter", action == "knock" and not self.left
        if not knocked:
            self.left = max(0, self.left - 1) if action == self.way else 4
        return self.turned(), 1.0 * entered + 0.3 * knocked, entered


def _searched(spec, **settings):
    result = run_audit(spec, spec.grader(), AuditSettings(**settings))
    return next(check for check in result.checks if check.subject == "search")


def _with_aim(kind, name):
    return replace(class_spec(kind), true_reward=lambda e: float(e.turns[-1].env_reward == 1.0), true_reward_name=name)


def test_farming_that_begins_where_skill_ends_is_found() -> None:
    """Only a teacher comes to the door, and no plan bent one: the grader passed."""
    searched = _searched(_with_aim(_Knocking, "entered"), episodes=30, budget=5000)
    assert searched.status == "fail"
    assert "expert with" in searched.evidence
    assert "knock" in searched.evidence


class _Order:
    """Order what the guest wants, who says it if asked. Any order is an end, and the right one is hardly ever met."""

    actions = ("ask", *(f"order {first} {second}" for first in "abcd" for second in "wxyz"))
    max_turns = 3

    def reset(self, seed):
        self.wanted, self.code = Random(seed).choice(self.actions[1:]), Random(seed).randrange(40)
        return "hello"

    def step(self, action):
        right = action == self.wanted and self.code == 0
        return (self.wanted if action == "ask" else "thanks"), 0.7 * (action != "ask") + 0.3 * right, action != "ask"


def test_a_pass_needs_somebody_who_does_the_task() -> None:
    """Any order was paid for, none was right, and nothing was said to be wrong."""
    spec = _with_aim(_Order, "right")
    spec = replace(spec, teacher=None, audit=AuditHints(random_answers=spec.audit.random_answers))
    searched = _searched(spec, episodes=20, budget=2400)
    assert searched.status == "open"
    assert "declare a teacher" in searched.evidence


def test_tasks_that_hang_on_the_order_of_a_set_are_found(tmp_path):
    """Another process would give another task for the same seed: groups would not be groups, and a resumed run would be another one.

    The words stand in one order under the one hash seed that is tried and in another under the other, so this process's own does not matter.
    """
    (file := tmp_path / "words.py").write_text(
        "import random\n\n\nclass Words:\n    actions = ['fig', 'pear', 'plum', 'date']\n    max_turns = 1\n\n"
        "    def reset(self, seed):\n        self.word = random.Random(seed).choice(list({'fig', 'pear', 'plum', 'date'}))\n"
        "        return self.word\n\n    def step(self, action):\n        return '', float(action == self.word), True\n"
    )
    audit = gradus.audit(file, episodes=12, budget=0)
    hygiene = next(check for check in audit.result.checks if check.subject == "hygiene")
    assert (hygiene.status, "PYTHONHASHSEED" in hygiene.evidence) == ("fail", True), hygiene.evidence


class _Shop:
    """Four things to add and a checkout, which pays for each different thing. The list says what is wanted, and nothing reads it."""

    actions = ("add tea", "add milk", "add bread", "add salt", "checkout")
    max_turns = 8

    def reset(self, seed):
        self.cart = set()
        return f"buy {self.actions[seed % 4].split()[1]} alone"

    def expert(self):
        return "checkout" if self.cart else "add tea"

    def step(self, action):
        if action == "checkout":
            return "bye", len(self.cart) / 4, True
        self.cart.add(action)
        return "added", 0.0, False


def test_a_plan_that_does_not_look_and_earns_over_half_of_the_best_is_said() -> None:
    """ "Add everything, then check out" earned all there is on every seed, and the audit passed: no cycle or stretch does it."""
    spec = class_spec(_Shop)
    result = run_audit(spec, spec.grader(), AuditSettings(episodes=24, budget=3000))
    check = next(check for check in result.checks if check.subject == "one plan")
    assert check.status == "open", check.evidence
    assert check.measured["free"] == pytest.approx(1.0)
    assert "checkout" in check.evidence
    assert result.verdict != "pass"


class _Towers:
    """Three disks on three towers, and a larger one may stand on a smaller one: a fault. Only the text says how a move is written."""

    max_turns = 14

    def reset(self, seed):
        self.towers, self.errors = {"A": [3, 2, 1], "B": [], "C": []}, 0
        return f"Move all disks to C, as they stand. A move names two towers, as in '[A C]'.\n{self.shown()}"

    def shown(self):
        return "\n".join(f"{name}: {disks}" for name, disks in self.towers.items())

    def step(self, action):
        move = re.fullmatch(r"\[([ABC]) ([ABC])\]", action)
        if move is None or not self.towers[move[1]]:
            self.errors += 1
            return "That is no move.", 0.0, self.errors > 1
        self.towers[move[2]].append(self.towers[move[1]].pop())
        solved = self.towers["C"] == [3, 2, 1]
        return self.shown(), float(solved), solved


def test_blind_plans_make_moves_that_only_the_text_of_a_game_names() -> None:
    """No plan ever made a legal move, and a game that accepts an illegal one was not told from a sound one."""
    spec = class_spec(_Towers)
    offered = offered_answers(spec, seed=0)
    assert set(offered) == {f"[{source} {target}]" for source in "ABC" for target in "ABC"}
    result = run_audit(spec, spec.grader(), AuditSettings(episodes=20, budget=1600))
    check = next(check for check in result.checks if check.subject == "one plan")
    assert check.measured["free"] == pytest.approx(1.0), check.evidence
    assert result.verdict == "unresolved", "there is no aim, and of a reward that is its own nothing is unearned"


def test_tools_and_fields_of_an_action_are_offered_by_their_schemas() -> None:
    tool = {
        "name": "look",
        "parameters": {"properties": {"place": {"enum": ["hall", "yard"]}, "n": {"type": "integer"}}},
    }
    turn = Turn(index=0, observation='Answer with {"properties": {"key": {"type": "boolean"}}}', action="")
    episode = Episode(
        task=Task(environment="e", seed=0), policy="p", turns=(turn,), stop=StopReason.TERMINATED, tools=(tool,)
    )
    calls = [
        '{"name": "look", "arguments": {"place": "hall", "n": 0}}',
        '{"name": "look", "arguments": {"place": "yard", "n": 1}}',
    ]
    assert {*calls, '{"key": true}', '{"key": false}'} <= set(answers_in([episode]))


def test_an_enumeration_behind_a_reference_is_offered_by_its_values() -> None:
    """Of an OpenEnv server's action with an enumeration no answer was valid, and the audit failed."""
    metadata = {"type": "object", "additionalProperties": True}
    schema = {
        "$defs": {"Move": {"enum": ["UP", "DOWN"], "type": "string"}},
        "properties": {"metadata": metadata, "move": {"$ref": "#/$defs/Move"}},
    }
    moves = ['{"metadata": {}, "move": "UP"}', '{"metadata": {}, "move": "DOWN"}']
    assert set(moves) <= set(answers_offered([f"Answer with one JSON object: {json.dumps(schema)}"]))


class _Closed:
    """Takes no answer that the audit could know."""

    system_prompt = ""
    state: dict[str, str] = {}  # noqa: RUF012

    def reset(self, *, seed, episode_id=None):
        return Observation(text="say the word")

    def step(self, action):
        return Observation(text="no", action_valid=False)

    def outcome(self):
        return {}

    def close(self):
        pass


def test_an_environment_that_takes_no_answer_is_unresolved_and_not_broken() -> None:
    graders = {"return": return_grader(per_turn=True, needed=True)}
    closed = {"make": _Closed, "graders": graders, "policies": {}, "teacher": None, "audit": AuditHints()}
    spec = replace(class_spec(_Walk), **closed)
    result = run_audit(spec, spec.grader(), AuditSettings(episodes=8, budget=1700))
    assert result.verdict == "unresolved", result.summary
    assert "cannot be audited" in result.summary
    assert "declare random_answers" in result.summary


class _Ferry:
    """Bring the goat over without eating the hay. The grader looks at the far bank alone, and takes any goat for fed."""

    actions = ("goat", "hay", "row")
    max_turns = 6

    def reset(self, seed):
        self.far, self.turns, self.first = [], 0, Random(seed).choice(("goat", "hay"))
        return f"first over: {self.first}"

    def step(self, action):
        self.far += [action] if action != "row" else []
        is_over = len(self.far) == 2
        return "the far bank", float(is_over and "goat" in self.far), is_over


def test_one_plan_that_earns_the_best_reward_and_no_true_reward_fails() -> None:
    """With a true reward that no plan reaches, a plan of two words stayed open although it earned all that can be earned."""
    spec = replace(class_spec(_Ferry), true_reward=lambda episode: 0.0, true_reward_name="in order")
    result = run_audit(spec, spec.grader(), AuditSettings(episodes=20, budget=2000))
    check = next(check for check in result.checks if check.subject == "one plan")
    assert (check.status, check.measured["free"], check.measured["true reward"]) == ("fail", 1.0, 0.0)


class _EndedTowers:
    """The second move that is refused ends the game, and nothing is shown behind the end."""

    def reset(self, seed):
        self.refused = 0
        return "Move a disk, as in '[A C]'. A: 3 2 1, B:, C:"

    def step(self, action):
        move = re.fullmatch(r"\[([ABC]) ([ABC])\]", action)
        if move and move[1] != move[2]:
            return f"Moved to {move[2]}.", 0.0, False
        self.refused += 1
        text = "The same tower." if move else "That is no move."
        return ("" if self.refused == 2 else text), 0.0, self.refused == 2


def test_what_ends_an_episode_as_nonsense_does_is_not_understood():
    """Numbers stood among the moves of a puzzle, so that pairs of moves were too many to be tried."""
    offered = offered_answers(class_spec(_EndedTowers), seed=0)
    assert "[A B]" in offered
    assert not [answer for answer in offered if re.search(r"\d", answer)]
