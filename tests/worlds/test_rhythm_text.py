"""The text of Rhythm: lines, answers, spans, and what must never be seen."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus import roll_out
from gradus.core import EpisodeStart, Observation, Request, StatesDistributions
from gradus_worlds.rhythm import RhythmEnvironment, load
from gradus_worlds.rhythm.persons import BELIEFS
from gradus_worlds.rhythm.scripted import random_answer
from gradus_worlds.rhythm.tables import ACTIONS, ANOMALY_GRID, DAYS, EVENTS, METER_GRID, REWARD_GRID, SLOTS, STEPS
from gradus_worlds.rhythm.text import COMPACT, SYSTEM_PROMPT, answer_text, parse_answer


@given(digits=st.tuples(*[st.integers(0, 9)] * 3), action=st.sampled_from(ACTIONS), reasoning=st.booleans())
def test_every_written_answer_is_read_back(digits: tuple[int, ...], action: str, reasoning: bool) -> None:
    text = answer_text(action, [digit / 9 for digit in digits], "perhaps sleep 1 2 3" if reasoning else None)
    answer = parse_answer(text)
    assert (answer.error, answer.action, answer.digits) == (None, action, digits)
    result = {span.name: text[span.start : span.end] for span in answer.spans}
    assert [result[name] for name in BELIEFS] == [str(digit) for digit in digits]
    assert result["action"] == action
    assert ("reasoning" in result) == reasoning


@pytest.mark.parametrize(
    ("text", "action", "digits"),
    [
        ("1 2 3 SLEEP", "sleep", (1, 2, 3)),
        ("  deep_work 9 0 5\n", "deep_work", (9, 0, 5)),
        ("sleep", "sleep", None),
        ("<REASONING>x</REASONING> 1 1 1 learn", "learn", (1, 1, 1)),
        ("<think>x 5 5 5 sleep</think> 1 1 1 learn", "learn", (1, 1, 1)),
        ("hm\n</think>\n\n1 1 1 learn", "learn", (1, 1, 1)),
        ("<think>x</think><reasoning>y</reasoning> 1 1 1 learn", "learn", (1, 1, 1)),
        ("<thinking>x</thinking> learn", "learn", None),
    ],
)
def test_forms_that_are_taken(text: str, action: str, digits: tuple[int, ...] | None) -> None:
    answer = parse_answer(text)
    assert (answer.error, answer.action, answer.digits) == (None, action, digits)
    reasoned = [text[span.start : span.end] for span in answer.spans if span.name == "reasoning"]
    assert "".join(reasoned) == text[: text.rfind(">") + 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "nothing"),
        ("1 2 sleep", "three digits"),
        ("1 2 3", "three digits"),
        ("12 2 3 sleep", "three digits"),
        ("1 2 3 sleep learn", "three digits"),
        ("1 2 3 nap", "unknown action 'nap'"),
        ("I would sleep", "three digits"),
        ("<reasoning>1 2 3 sleep</reasoning>", "three digits"),
        ("<reasoning>1 2 3 sleep", "not closed"),
        ("<think>1 2 3 sleep", "got nothing"),
        ("1 2 3 sleep <reasoning>why</reasoning>", "not closed or not first"),
    ],
)
def test_what_cannot_be_read_is_never_guessed(text: str, message: str) -> None:
    answer = parse_answer(text)
    assert answer.action is None
    assert answer.digits is None
    assert message in (answer.error or "")


@settings(max_examples=200)
@given(st.text(max_size=60))
def test_the_parser_never_raises(text: str) -> None:
    answer = parse_answer(text)
    assert (answer.action is None) == (answer.error is not None)


def test_an_invalid_answer_is_counted_and_spends_the_slot() -> None:
    environment = RhythmEnvironment()
    environment.reset(seed=1)
    observation = environment.step("gibberish !")
    assert not observation.action_valid
    assert observation.action_error
    assert observation.data["step"] == 1
    assert observation.action_data == {"action_type": None, "belief": None}
    assert environment.step("5 5 5 sleep").action_valid


def rollout_lines(seed: int, persons: str = "continuous") -> list[str]:
    environment = RhythmEnvironment()
    lines = [environment.reset(seed=seed, persons=persons).text]
    return lines + [environment.step(random_answer(1000 * seed + step)).text for step in range(STEPS)]


@pytest.mark.parametrize("policy", ["bayes", "bayes:reasoning"])
def test_every_word_is_in_the_vocabulary_and_a_turn_is_short(policy: str) -> None:
    spec = load()
    words = set(spec.language.vocabulary().words)
    assert set(SYSTEM_PROMPT.split()) <= words
    for persons in ("continuous", "ood", "discrete"):
        for line in rollout_lines(7, persons):
            assert set(line.split()) <= words
    environment = RhythmEnvironment()
    observation = environment.reset(seed=3)
    task = spec.tasks("in-distribution")[3]
    start = EpisodeStart(
        task=task, system_prompt=SYSTEM_PROMPT, key=(0, 0, 0), group=0, member=0, environment=environment
    )
    session = spec.policy(policy).start([start])
    while not observation.terminated:
        text = session.act([Request(row=0, observation=observation)])[0].text
        assert set(text.split()) <= words
        assert len(observation.text.split()) + len(text.split()) <= 30
        assert parse_answer(text).error is None
        observation = environment.step(text)


def test_hidden_state_is_in_nothing_that_is_shown() -> None:
    """Neither by key nor by value: the person's 14 numbers are searched in all that is public."""
    environment = RhythmEnvironment()
    for seed in range(5):
        observation = environment.reset(seed=seed)
        public = [environment.system_prompt]
        while not observation.terminated:
            public += [observation.text, json.dumps(observation.data)]
            observation = environment.step("5 5 5 sleep")
        public += [observation.text, json.dumps(observation.data)]
        everything = "\n".join(public)
        truth = environment.outcome()
        for key in load().audit.hidden:
            assert key in truth
            assert f'"{key}"' not in everything
        assert truth["person"] not in everything
        for value in [*truth["weights"], *truth["modifiers"], *truth["beliefs"].values()]:
            assert f"{value:.5f}"[:7] not in everything


def test_train_seeds_meet_no_condition() -> None:
    spec = load()
    train = {spec.train_task(index).seed for index in range(20_000)}
    assert min(train) >= 1_000_000
    for condition in spec.conditions.values():
        assert train.isdisjoint(condition.seeds)
    assert list(spec.conditions["in-distribution"].seeds) == list(range(100))
    assert list(spec.conditions["held-out"].seeds) == list(range(10_000, 10_050))


@pytest.mark.parametrize("persons", ["continuous", "ood", "discrete"])
def test_every_line_after_the_first_has_the_same_words_in_the_same_places(persons: str) -> None:
    """So that what was said and seen a turn ago is always equally far away."""
    for line in rollout_lines(11, persons)[1:-1]:
        words = line.split()
        assert len(words) == 15
        assert [word[0] for word in words[2:7]] == list("VCPSK") == [word[0] for word in words[10:]]
        assert words[8] in ACTIONS
        assert words[9].startswith("r")
        assert all(word[1] in "+-" for word in words[9:])


def level(letter: str) -> int:
    """What a letter of the compact text stands for."""
    return ord(letter) - ord("A") if letter.isupper() else ord("a") - ord(letter)


def read_back(line: str, answer: str, step: int) -> dict[str, Any]:
    """The figures of a compact line, and of the answer before it, as the structured observation has them."""
    *letters, slot = line.removesuffix(" " + DAYS[step // len(SLOTS)] if step % len(SLOTS) == 0 else "").split()
    assert slot == SLOTS[step % len(SLOTS)]
    data: dict[str, Any] = {"step": step, "slot": slot, "meters": [level(each) * METER_GRID for each in letters[:5]]}
    data |= {"reward": None, "anomaly": [0.0] * 5, "history": []}
    if step:
        action = None if "nothing" in letters else parse_answer(answer, COMPACT).action
        events = [word for word in letters if word in EVENTS]
        data["reward"] = level(letters[5]) * REWARD_GRID
        data["anomaly"] = [level(each) * ANOMALY_GRID for each in letters[6:11]]
        data["history"] = [{"action": action, "event": events[0] if events else "none"}]
    return data


@pytest.mark.parametrize("persons", ["continuous", "ood", "discrete"])
def test_the_teacher_reads_the_compact_text_back_without_loss(persons: str) -> None:
    plain, compact = load(), load("compact")
    environment = RhythmEnvironment(COMPACT)
    shown, line = (
        policy.start(
            [
                EpisodeStart(
                    task=compact.train_task(0),
                    system_prompt="",
                    key=(0, 0, 0),
                    group=0,
                    member=0,
                    environment=environment,
                )
            ]
        )
        for policy in (plain.policy("bayes"), plain.policy("bayes"))
    )
    assert isinstance(shown, StatesDistributions)
    assert isinstance(line, StatesDistributions)
    observation, answer = environment.reset(seed=4, persons=persons), ""
    for step in range(STEPS):
        restored = Observation(text="", data=read_back(observation.text, answer, step))
        expected = shown.distributions([Request(row=0, observation=observation)])
        assert line.distributions([Request(row=0, observation=restored)]) == expected
        answer = "mumble" if step == 9 else COMPACT.reword(random_answer(step))
        observation = environment.step(answer)
        assert observation.action_valid == (step != 9)


def test_a_compact_week_is_short_and_every_policy_speaks_its_words() -> None:
    """SmolLM2 writes each of these words as one token, 11 around each turn, and the rules in 122."""
    plain, compact = load(), load("compact")
    assert len(COMPACT.prompt.split()) <= 93
    words = set(compact.language.vocabulary().words)
    for policy in ("bayes", "heuristic+constant", "clairvoyant"):
        episodes = roll_out(compact, policy, episodes=10, condition="ood").episodes
        expected = roll_out(plain, policy, episodes=10, condition="ood").episodes
        for episode, other in zip(episodes, expected, strict=True):
            assert (episode.reward and episode.reward.value) == (other.reward and other.reward.value)
            said = [word for turn in episode.turns for word in f"{turn.observation} {turn.action}".split()]
            assert set(said) <= words
            assert 130 + 11 * STEPS + len(said) <= 900


def test_compact_answers_have_letters_and_errors_that_say_so() -> None:
    answer = parse_answer("a J F friends", COMPACT)
    assert (answer.action, answer.digits) == ("socialize", (0, 9, 5))
    assert "three letters A-J" in (parse_answer("5 5 5 sleep", COMPACT).error or "")
    assert "the actions are work" in (parse_answer("A A A deep_work", COMPACT).error or "")
