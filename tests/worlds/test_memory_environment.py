"""The environment end to end: graders, policies, what is hidden, what is told, and the nano model's words."""

import json
import math
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from gradus.core import EnvironmentFault, EpisodeStart, Request
from gradus.environments import load
from gradus.rollouts import roll_out
from gradus_worlds.memory.graders import balanced_accuracy, marks_of, smallness
from gradus_worlds.memory.tools.writing import NOOP, write_delete, write_insert, write_update
from gradus_worlds.memory.worlds.records import Chunk, Fact, Question, Slot, Source, World

SPEC = load("memory")


@pytest.fixture(scope="module")
def rollouts():
    tasks = SPEC.tasks("in-distribution", 40)
    return {name: roll_out(SPEC, SPEC.policy(name), tasks).episodes for name in SPEC.policies}


def mean(rollouts, name: str, grader: str) -> float:
    return fmean(reward.value for reward in SPEC.graders[grader].compute(rollouts[name]))


def test_v2_orders_the_policies_as_their_memories_deserve(rollouts) -> None:
    rewards = {name: mean(rollouts, name, "v2") for name in rollouts}
    assert rewards["noop"] < min(rewards["dump"], rewards["spam"])
    assert max(rewards["dump"], rewards["spam"], rewards["heuristic"]) < rewards["append-only"] - 0.05
    assert rewards["append-only"] < rewards["teacher"] - 0.4
    assert rewards["noop"] < 0.17
    assert rewards["teacher"] > 1.35


def test_the_published_reward_favors_dumping(rollouts) -> None:
    assert mean(rollouts, "dump", "mem-alpha") > 0.97 * mean(rollouts, "teacher", "mem-alpha")
    strict = {
        name: fmean(episode.metrics["strict_accuracy"] for episode in rollouts[name]) for name in ("dump", "teacher")
    }
    assert strict["dump"] < 0.65 * strict["teacher"]


def test_the_teacher_is_right_and_small(rollouts) -> None:
    episodes = rollouts["teacher"]
    assert fmean(episode.metrics["strict_accuracy"] for episode in episodes) > 0.98
    assert fmean(episode.metrics["memory_share"] for episode in episodes) < 0.12
    assert all(episode.metrics["failed_calls"] == 0 for episode in episodes)


@pytest.mark.parametrize("condition", ["longer-4x", "longer-16x"])
def test_the_teacher_holds_on_longer_worlds(condition: str) -> None:
    tasks = SPEC.tasks(condition, 3)
    teacher, append = (roll_out(SPEC, SPEC.policy(name), tasks).episodes for name in ("teacher", "append-only"))
    assert (
        fmean(e.metrics["strict_accuracy"] for e in teacher) > fmean(e.metrics["strict_accuracy"] for e in append) + 0.1
    )


@pytest.mark.parametrize("grader", ["v2", "mem-alpha"])
def test_terms_sum_to_the_reward_and_to_the_weighted_components(rollouts, grader: str) -> None:
    chosen = SPEC.graders[grader]
    low, high = chosen.range or (-math.inf, math.inf)
    for episodes in rollouts.values():
        for episode, reward in zip(episodes, chosen.compute(episodes), strict=True):
            assert reward.value is not None
            assert len(reward.terms) == len(episode.turns)
            assert math.fsum(reward.turn_rewards) == pytest.approx(reward.value)
            weighted = sum(chosen.weights[name] * (value or 0.0) for name, value in reward.components.items())
            assert weighted == pytest.approx(reward.value)
            assert low <= reward.value <= high


def _beginning(environment: Any) -> EpisodeStart:
    return EpisodeStart(task=SPEC.train_task(0), system_prompt="", key=(0,), group=0, member=0, environment=environment)


def answered(reward) -> list[float]:
    return [term.value for turn in reward.terms for term in turn if term.component == "answered"]


def test_v2_pays_a_chunk_what_it_added_to_the_answers() -> None:
    task = replace(SPEC.train_task(3), options={"chunks": 4, "change": 0.0, "correct": 0.0, "retract": 0.0})
    (episode,) = roll_out(SPEC, SPEC.policy("teacher"), [task]).episodes
    earned = answered(SPEC.graders["v2"].compute([episode])[0])
    assert math.fsum(earned) == pytest.approx(1.0)
    assert sum(value > 0 for value in earned) > 1
    for turn, value in zip(episode.outcome["turns"], earned, strict=True):
        assert value >= 0 if turn["facts"] else value == 0  # where nothing was to be kept, nothing was added

    environment = SPEC.make()
    environment.reset(seed=task.seed, **task.options)
    environment.step(episode.turns[0].action)
    early = environment.outcome()
    assert balanced_accuracy(marks_of(early["questions"], "strict")) == pytest.approx(earned[0])
    environment.step(episode.turns[1].action)
    assert balanced_accuracy(marks_of(environment.outcome()["questions"], "strict")) == pytest.approx(
        earned[0] + earned[1]
    )


def test_silence_earns_nothing_and_knowing_more_is_never_worse() -> None:
    silent = [(False, False)] * 6 + [(True, True)] * 4
    assert balanced_accuracy(silent) == 0.0
    assert balanced_accuracy([(False, True)] * 6 + [(True, True)] * 4) == 1.0
    assert balanced_accuracy([(True, True)]) == 0.0
    values = [balanced_accuracy([(False, i < k) for i in range(6)] + [(True, True)] * 4) for k in range(7)]
    assert values == sorted(values)


def test_small_memories_are_not_pushed_to_forget() -> None:
    assert smallness(0, 100) == smallness(10, 100) == 1.0
    assert smallness(35, 100) == pytest.approx(0.5)
    assert smallness(60, 100) == smallness(200, 100) == 0.0


SLOT = Slot(entity="Ann", cues=("city",), values=("Rome", "Oslo"))


def one_fact(*facts: Fact) -> Source:
    world = World(
        name="w",
        chunks=tuple(Chunk(text=f"chunk {i} Ann city Rome Oslo", facts=(fact,)) for i, fact in enumerate(facts)),
        questions=(Question(text="What is Ann's city?", answers=("Oslo",)),),
    )
    return Source(
        name="memory:test",
        summary="",
        world=lambda seed: world,
        train=lambda i: (i, {}),
        conditions={},
        max_chunks=len(facts),
    )


INSERT = Fact(slot=SLOT, value="Rome")
UPDATE = Fact(slot=SLOT, value="Oslo")
DELETE = Fact(slot=SLOT, value=None)
STORE = write_insert("values", "Ann city Rome")


@pytest.mark.parametrize(
    ("fact", "answer", "right"),
    [
        (UPDATE, write_update("values", "Ann city", "Ann city Oslo , formerly Rome"), 1),
        (UPDATE, write_update("values", "Ann city", "Ann city Oslo"), 1),
        (UPDATE, write_delete("values", "Ann city") + write_insert("values", "Ann city Oslo"), 1),
        (UPDATE, write_insert("values", "Ann city Oslo"), 0),
        (UPDATE, write_update("values", "Ann city", "Ann city Rome and Oslo"), 0),
        (UPDATE, write_insert("values", "Ann Oslo"), 0),
        (UPDATE, NOOP, 0),
        (DELETE, write_delete("values", "Ann city"), 1),
        (DELETE, NOOP, 0),
        (DELETE, write_update("values", "Ann city", "Ann city unknown"), 1),
    ],
)
def test_facts_rightly_kept(fact: Fact, answer: str, right: int) -> None:
    from gradus_worlds.memory import MemoryEnvironment

    environment = MemoryEnvironment(one_fact(INSERT, fact).world)
    environment.reset(seed=0)
    environment.step(STORE)
    environment.step(answer)
    assert [turn["right"] for turn in environment.outcome()["turns"]] == [1, right]


def test_refusals_are_told_with_the_next_chunk_and_every_turn_restarts() -> None:
    environment = SPEC.make()
    first = environment.reset(seed=1)
    assert first.restart
    assert "Refused" not in first.text
    told = environment.step(write_insert("dreams", "x y") + "\n" + write_insert("values", "Tavo cause rivers"))
    assert told.restart
    assert told.action_valid
    assert "Refused: unknown category dreams" in told.text
    assert [span.name for span in told.action_spans] == ["call-0", "call-1"]
    after = environment.step("nothing at all")
    assert not after.action_valid
    assert "Refused: the answer holds no call" in after.text


def test_sixty_broken_calls_do_not_fill_the_next_turn() -> None:
    """A model with fresh weights read nothing but refusals: sixty times that a string is not closed."""
    environment = SPEC.make()
    environment.reset(seed=1)
    told = environment.step('{"name":"memory_insert","arguments":{"category":"values","content":"x\n' * 60)
    assert len(told.action_data["calls"]) == 60
    assert told.text.count("Refused: ") == told.text.count("Refused: a string is not closed") == 1
    assert told.action_error == "a string is not closed"
    different = "\n".join(write_insert(f"category{number}", "x y") for number in range(30))
    told = environment.step(different)
    lines = [line for line in told.text.splitlines() if line.startswith("Refused: ")]
    assert len(lines) == 9
    assert "category0" in lines[0]
    assert lines[-1] == "Refused: 22 more"


def test_nothing_hidden_is_observable() -> None:
    for index in range(5):
        task = SPEC.train_task(index)
        environment = SPEC.make()
        observation = environment.reset(seed=task.seed, **task.options)
        while not observation.terminated:
            public = json.dumps([observation.data, observation.text])
            for hidden in SPEC.audit.hidden:
                assert f'"{hidden}"' not in public
            for asked in environment._world.questions:
                assert asked.text not in public
            observation = environment.step(NOOP)


def test_training_never_meets_a_test_seed() -> None:
    tested = {task.seed for name in SPEC.conditions for task in SPEC.tasks(name)}
    assert not tested & {SPEC.train_task(i).seed for i in range(5000)}


def test_stepping_past_the_end_is_a_fault() -> None:
    environment = SPEC.make()
    with pytest.raises(EnvironmentFault, match="call reset"):
        environment.step(NOOP)
    environment.reset(seed=0, chunks=1)
    assert environment.step(NOOP).terminated
    with pytest.raises(EnvironmentFault, match="is over"):
        environment.step(NOOP)


def test_the_view_draws_the_memory_and_the_questions(rollouts) -> None:
    for name in ("teacher", "spam", "noop"):
        episode = rollouts[name][0]
        view = SPEC.presentation.view(episode)
        final, questions = view.panels[1:]
        entries = episode.outcome["memory"]["entries"]
        assert [row[2] for row in final.rows] == [entry["content"] for entry in entries]
        assert len(questions.rows) == len(episode.outcome["questions"])
        assert all(len(row) == len(panel.columns) for panel in (final, questions) for row in panel.rows)
        assert {row[3].split(":")[0] for row in questions.rows} <= {"right", "wrong"}


def test_the_nano_tokenizer_spells_what_it_never_saw_and_keeps_calls_short() -> None:
    from gradus.policies.nano.model import build_tokenizer

    tokenizer = build_tokenizer(SPEC.language.vocabulary())
    assert len(tokenizer) < 1200
    task = SPEC.tasks("in-distribution")[0]
    environment = SPEC.make()
    observation = environment.reset(seed=task.seed, **task.options)
    teacher = SPEC.policy("teacher").start([_beginning(environment)])
    assert len(tokenizer(environment.system_prompt)["input_ids"]) < 40
    while not observation.terminated:
        text = teacher.act([Request(row=0, observation=observation)])[0].text
        for piece in (observation.text, text):
            ids = tokenizer(piece)["input_ids"]
            assert tokenizer.decode(ids) == piece
            assert len(ids) < 3 * len(piece.split()) + 10
        observation = environment.step(text)
    assert len(tokenizer(write_insert("values", "Tano cause reku"))["input_ids"]) == 7
