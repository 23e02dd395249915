"""The worlds: synthetic truth, and real files with all their irregularities."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import gradus
from gradus.core import ConfigError
from gradus.environments import load
from gradus.rollouts import roll_out
from gradus.training.data.tasks import HeldOut, reserved_ids, taught_indices, validation_tasks
from gradus_worlds.memory.worlds.jsonl import jsonl_source, locomo_source
from gradus_worlds.memory.worlds.phrases import ATTRIBUTES, CHAT, WRAPPERS, read_line
from gradus_worlds.memory.worlds.questions import KINDS
from gradus_worlds.memory.worlds.synthetic import EVENTS, reserved_words, synthetic_world, words_of


def test_the_same_seed_is_the_same_world() -> None:
    assert synthetic_world(3) == synthetic_world(3)
    assert synthetic_world(3) != synthetic_world(4)
    assert synthetic_world(3, split="test") != synthetic_world(3)


def test_train_and_test_share_no_invented_word() -> None:
    reserved = reserved_words()
    train, test = set(words_of("train", reserved)), set(words_of("test", reserved))
    assert not train & test
    assert not (train | test) & reserved
    assert len(train) > 1500
    assert len(test) > 400
    for seed in range(20):
        spoken = {
            word.strip(".,:?'").removesuffix("'s").lower()
            for chunk in synthetic_world(seed, split="test").chunks
            for word in chunk.text.split()
        }
        assert not spoken & train


@pytest.mark.parametrize("knob", ["change", "correct", "retract", "repeat"])
def test_what_needs_a_fact_comes_after_one(knob: str) -> None:
    off = dict.fromkeys(EVENTS, 0.0)
    kinds = [
        said.kind
        for seed in range(8)
        for chunk in synthetic_world(seed, **{**off, "tell": 1.0, knob: 2.0}, chat=0).chunks
        for line in chunk.text.splitlines()
        if (said := read_line(line))
    ]
    assert kinds.count(knob) > 5
    assert set(kinds) == {"tell", knob}


def test_every_template_is_read_back_as_what_it_is() -> None:
    for attribute in ATTRIBUTES.values():
        sayings = [("tell", text) for text in (*attribute.mine, *attribute.theirs)]
        sayings += [
            (kind, text.replace("{a}", attribute.noun))
            for kind, voices in WRAPPERS.items()
            for texts in voices.values()
            for text in texts
        ]
        for kind, text in sayings:
            said = read_line("Tavo: " + text.format(n="Mila", v="Reku"))
            assert said is not None, text
            assert (said.kind, said.attribute.noun) == (kind, attribute.noun), text
            assert said.entity == ("Mila" if "{n}" in text else "Tavo")
            assert said.value == ("Reku" if "{v}" in text else None)
    for text in CHAT:
        assert read_line("Tavo: " + text.format(n="Mila", w="reku")) is None


def test_all_kinds_of_questions_are_asked_and_answers_were_said() -> None:
    kinds = set()
    for seed in range(40):
        world = synthetic_world(seed)
        told = "\n".join(f"{chunk.timestamp}\n{chunk.text}" for chunk in world.chunks)
        for question in world.questions:
            kinds.add(question.kind)
            assert all(answer in told for answer in question.answers)
            assert question.unknown == (question.kind in ("never-said", "retracted"))
            assert all(item.text in world.chunks[item.chunk].text for item in question.evidence)
    assert kinds == KINDS.keys()


def test_an_unknown_knob_is_refused() -> None:
    with pytest.raises(ConfigError, match="chunkz"):
        load("memory:synthetic:chunkz=3")
    with pytest.raises(ConfigError, match="key=value"):
        load("memory:synthetic:chunks")
    with pytest.raises(ConfigError, match="unknown memory world 'films'"):
        load("memory:films")
    spec = load("memory:synthetic:chunks=3,people=3")
    assert {len(spec.make().reset(seed=1, **spec.train_task(1).options).data["banks"])} == {9}
    environment = spec.make()
    environment.reset(seed=1)  # a reset that names no knob keeps them
    assert [environment.step("").terminated for _ in range(3)] == [False, False, True]
    assert spec.max_turns == 48


def turn(number: int, speaker: str, text: str, **more: object) -> dict[str, object]:
    return {"speaker": speaker, "dia_id": f"D1:{number}", "text": text, **more}


IRREGULAR = {
    "sample_id": "odd",
    "conversation": {
        "speaker_a": "Ann",
        "session_2_date_time": "1:00 pm on 2 May, 2023",
        "session_2": [{"speaker": "Bob", "text": "No id here, Ann."}],
        "session_10": [turn(1, "Ann", "The tenth session has no date.") | {"dia_id": "D10:1"}],
        "session_1_date_time": "1:00 pm on 1 May, 2023",
        "session_1": [
            turn(1, "Ann", "I bought 3 dogs.", blip_caption="a photo of 3 dogs", **{"re-download": True}),
            turn(2, "Bob", "word " * 300),
        ],
    },
    "qa": [
        {"question": "How many dogs did Ann buy?", "answer": 3, "evidence": ["D1:1"], "category": 4},
        {"question": "What did Bob say?", "answer": "word", "evidence": ["D1:2; D2:1", "D:9:9"], "category": 1},
        {"question": "What did Ann sell?", "adversarial_answer": "a dog", "evidence": None, "category": 5},
    ],
}


def test_irregular_conversations_are_read(tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_text(json.dumps([IRREGULAR]))
    source = locomo_source(str(path))
    world = source.world(next(iter(source.conditions["test"].seeds)))
    assert [chunk.timestamp for chunk in world.chunks] == ["1:00 pm on 1 May, 2023"] * 2 + [
        "1:00 pm on 2 May, 2023",
        None,
    ]
    assert "(shares a photo of 3 dogs)" in world.chunks[0].text
    assert [question.answers for question in world.questions] == [("3",), ("word",), ()]
    assert [[item.chunk for item in question.evidence] for question in world.questions] == [[0], [1, 2], []]
    spec = load(f"memory:locomo:{path}")
    for name in spec.policies:
        (episode,) = roll_out(spec, spec.policy(name), spec.tasks("test", 1)).episodes
        assert episode.failure is None, name
        assert episode.reward.value is not None, episode.reward.error
    path.write_text("[{}]")
    with pytest.raises(ConfigError, match="has no 'conversation'"):
        locomo_source(str(path))


OWN = {
    "chunks": [{"text": "Ann: I live in Rome.", "timestamp": "1 May"}, {"text": "Ann: I moved to Oslo."}],
    "questions": [
        {"question": "Where does Ann live?", "answers": "Oslo", "evidence": [1]},
        {"question": "Where did Ann live first?", "answers": ["Rome", "Roma"], "evidence": ["I live in Rome"]},
        {"question": "Where does Bob live?", "answers": []},
    ],
}


def test_own_worlds(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(json.dumps(OWN).replace("Ann: I live", f"Day {n}. Ann: I live") for n in range(5)))
    spec = load(f"memory:jsonl:{path}")
    assert len(spec.tasks("test")) == 1
    trained = {spec.train_task(i).seed for i in range(50)}
    assert len(trained) == 4
    assert not trained & {task.seed for task in spec.tasks("test")}
    (episode,) = roll_out(spec, spec.policy("dump"), spec.tasks("test")).episodes
    assert episode.metrics["generous_accuracy"] == 1.0
    assert [turn["facts"] for turn in episode.outcome["turns"]] == [1, 1]


def own_world(number: int) -> dict[str, Any]:
    said, asked = f"Ann{number} has a dog called Rex{number}.", f"What is Ann{number}'s dog called?"
    return {"chunks": [{"text": said}], "questions": [{"question": asked, "answers": [f"Rex{number}"]}]}


def test_a_dialogue_whose_questions_stand_in_several_lines_is_not_trained_on_and_tested(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    lines = [
        {**own_world(n), "questions": [{"question": f"Who is {q}?", "answers": ["Rex"]}]}
        for q in ("Ann", "Bob", "Cid", "Dan")
        for n in range(10)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    spec = load(f"memory:jsonl:{path}")
    source = jsonl_source(str(path))
    settings = HeldOut(validation_tasks=4)
    reserved = reserved_ids(spec, settings)

    def dialogues(seeds: Iterable[int]) -> set[str]:
        return {source.world(seed).chunks[0].text for seed in seeds}

    tested = dialogues(task.seed for task in spec.tasks("test"))
    validated = dialogues(task.seed for task in validation_tasks(spec, settings))
    trained = dialogues(spec.train_task(index).seed for index in taught_indices(spec, 16, reserved))
    assert [len(each) for each in (tested, validated, trained)] == [2, 4, 4]
    assert not trained & (tested | validated)


@pytest.mark.parametrize("worlds", [6, 60])
@pytest.mark.parametrize("quick", [False, True])
def test_a_run_of_own_worlds_can_start(worlds: int, quick: bool, tmp_path: Path) -> None:
    """The recipe of the synthetic worlds names a teacher, conditions and promises that a file has not."""
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(json.dumps(own_world(number)) for number in range(worlds)))
    findings = gradus.check(f"memory:jsonl:{path}", out=tmp_path / "run", quick=quick).findings
    assert not [finding for finding in findings if finding.status == "fail"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1 of .*: Invalid JSON"),
        ('{"chunks": [], "questions": []}', "chunks: .*expected"),
        (json.dumps({**OWN, "extra": 1}), "extra"),
        (
            json.dumps({**OWN, "questions": [{"question": "Who?", "answers": ["x"], "evidence": [9]}]}),
            "evidence 9 is not a chunk",
        ),
        (
            json.dumps({**OWN, "questions": [{"question": "Who?", "answers": ["x"], "evidence": ["nowhere"]}]}),
            "stands in no chunk",
        ),
    ],
)
def test_own_worlds_that_cannot_be_used(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(line)
    with pytest.raises(ConfigError, match=message):
        jsonl_source(str(path))


def test_some_training_worlds_are_lessons_in_copying_and_the_others_are_whole() -> None:
    spec = load("memory:synthetic:chunks=5")
    sizes = {
        index: spec.train_task(index).options.get("chunks")
        for index in (0, 1499, 1500, 3999, 4000, 7999, 8000, 100_000)
    }
    assert sizes == {0: 5, 1499: 5, 1500: 4, 3999: 4, 4000: 1, 7999: 1, 8000: 5, 100_000: 5}
    (episode,) = roll_out(spec, spec.policy("teacher"), [spec.train_task(4000)]).episodes
    assert len(episode.turns) == 1
    assert episode.outcome["turns"][0]["facts"] >= 1
