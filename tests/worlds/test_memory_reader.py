"""A frozen language model as the reader: in reward, evaluation and ask, asked once, asked twice, and paid."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer, completion, serving

import gradus
from gradus.core import ConfigError, Stepping
from gradus.runs.job import resolve
from gradus.runs.recipe.record import Recipe
from gradus_worlds.memory import PAPER, Memory, load
from gradus_worlds.memory.learning import ask_memory, learn_text
from gradus_worlds.memory.readers.frozen import ModelReader, best_entries

ASKED = re.compile(r"What is (\w+)'s (\w+) now\?")
CONVERSATIONS = Path(__file__).parents[1] / "data/conversations.jsonl"


def answer(body: dict[str, Any]) -> str:
    """Answers questions on current values from the notes that it is shown, and nothing else."""
    notes, _, question = body["messages"][-1]["content"].partition("\n\nQuestion: ")
    asked = ASKED.search(question)
    noted = re.search(rf"\] {asked[1]} {asked[2]} (\w+)", notes) if asked else None
    return f"It is {noted[1]}." if noted else "Unknown."


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with serving(lambda body: (200, completion(answer(body), tokens=(100, 10)))) as server:
        yield server


def reader_file(folder: Path, server: ChatServer, **settings: Any) -> Path:
    values = {"model": "remote:m", "base_url": server.url, "recheck": 0.0, **settings}
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    path = folder / f"reader{len(list(folder.glob('*.toml')))}.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def questions_of(environment: str, policy: str = "teacher") -> tuple[Any, list[Any]]:
    (episode,) = gradus.roll_out(environment, policy, episodes=1, condition="in-distribution").episodes
    return episode, episode.outcome["questions"]


def test_one_setting_is_the_reader_of_reward_table_and_ask(server: ChatServer, tmp_path: Path) -> None:
    path = reader_file(tmp_path, server)
    episode, questions = questions_of(f"memory:synthetic?reader={path}")
    known = [each for each in questions if ASKED.search(each["question"]) and not each["unknown"]]
    assert known
    assert all(each["readings"]["reader"]["correct"] for each in known)
    right = sum(each["readings"]["reader"]["correct"] for each in questions)
    assert episode.metrics["reader_accuracy"] == pytest.approx(right / len(questions))
    assert episode.metrics["strict_accuracy"] == 1.0
    assert episode.metrics["reader_agreement"] == pytest.approx(right / len(questions))  # strict is right everywhere
    assert 0 < episode.reward.components["answered"] < 1  # the reader's, not that of strict
    assert questions_of("memory")[0].reward.components["answered"] == 1.0
    text = tmp_path / "own.txt"
    text.write_text("Lina: my city is Toda.\n", encoding="utf-8")
    learn_text("teacher", text, memory=tmp_path / "notes")
    answered = ask_memory("teacher", "What is Lina's city now?", memory=tmp_path / "notes", reader=path)
    assert answered.answer == "It is Toda."
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.toml").write_text(f'environment = "memory:synthetic?reader={path}"\n', encoding="utf-8")
    assert ask_memory(run, "What is Lina's city now?", memory=tmp_path / "notes").answer == "It is Toda."


def test_what_was_asked_is_kept_and_a_share_is_asked_twice(server: ChatServer, tmp_path: Path) -> None:
    cache = str(tmp_path / "answers.jsonl")
    first = questions_of(f"memory:synthetic?reader={reader_file(tmp_path, server, cache=cache, recheck=1.0)}")[0]
    assert first.metrics["reader_disagreement"] == 0.0
    asked = len(server.bodies)
    # Another process: a reader that only differs by its file, and finds what was asked in the cache.
    again = reader_file(tmp_path, server, cache=cache, recheck=1.0, concurrency=3)
    assert questions_of(f"memory:synthetic?reader={again}")[0].reward == first.reward
    assert len(server.bodies) == asked


def test_without_money_or_an_answer_there_is_no_reward(server: ChatServer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="budget needs price"):
        ModelReader(str(reader_file(tmp_path, server, budget=1.0)))
    poor = reader_file(tmp_path, server, budget=1e-9, price=[1.0, 1.0])
    episode, _ = questions_of(f"memory:synthetic?reader={poor}")
    assert episode.reward.value is None
    assert "is used up" in episode.reward.error
    assert episode.metrics["reader_accuracy"] is None
    assert episode.metrics["strict_accuracy"] == 1.0
    server.answer = lambda body: (400, '{"error": {"message": "out of order"}}')
    down, _ = questions_of(f"memory:synthetic?reader={reader_file(tmp_path, server)}")
    assert "out of order" in down.reward.error


def test_an_exam_has_a_limit_of_its_own(server: ChatServer, tmp_path: Path) -> None:
    spec = load(f"synthetic?reader={reader_file(tmp_path, server)}")
    assert spec.stepping.outcome_seconds > load().stepping.outcome_seconds
    server.answer = lambda body: time.sleep(0.5) or (200, completion("Oslo"))
    hasty = replace(spec, stepping=Stepping(outcome_seconds=0.1))
    (episode,) = gradus.roll_out(hasty, "noop", episodes=1).episodes
    assert episode.failure.stage == "outcome"


def test_a_run_pays_its_reader(server: ChatServer, tmp_path: Path) -> None:
    spec = load(f"synthetic?reader={reader_file(tmp_path, server)}")
    assert [policy.name for policy in spec.asks] == ["remote:m"]
    assert load().asks == ()


def test_two_jobs_in_one_process_have_a_budget_each(server: ChatServer, tmp_path: Path) -> None:
    path = reader_file(tmp_path, server, budget=1.0, price=[1.0, 1.0])
    recipe = Recipe(environment=f"memory:synthetic?reader={path}")
    first, second = resolve(recipe), resolve(recipe)
    gradus.roll_out(first.environment, "teacher", episodes=1)
    assert sum(policy.usage.account.spent for policy in first.environment.asks) > 0.0
    assert sum(policy.usage.account.spent for policy in second.environment.asks) == 0.0
    assert first.with_recipe(recipe).environment.asks == first.environment.asks  # a job's stages share one


@pytest.mark.parametrize(
    ("line", "says"), [("model = 3", "model"), ('reader = "x"', "reader"), ("model", "names no model to ask")]
)
def test_a_file_that_is_no_reader_is_refused(tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "reader.toml").write_text(line, encoding="utf-8")
    with pytest.raises(ConfigError, match=says):
        load(f"synthetic?reader={tmp_path / 'reader.toml'}")


def test_names_of_speakers_are_no_answer() -> None:
    memory = Memory()
    lines = ("Ann: the boat is sold", "Bob: I like tea", "Ann: my knee hurts", "Bob: see you on Friday", "Ann: bye")
    for line in lines:
        memory.insert("values", line)
    club, boat = best_entries(memory, ["Which club does Ann support?", "Did Ann sell the boat?"])
    assert (club.answer, boat.answer) == ("unknown", "Ann: the boat is sold")


def test_on_ordinary_conversations_the_shipped_reader_stands_beside_its_upper_bound() -> None:
    """26 questions that were fixed before any reader saw them."""
    spec = load(f"jsonl:{CONVERSATIONS}")
    tasks = [spec.train_task(0), *spec.tasks("test")]
    episodes = gradus.roll_out(spec, "append-only", tasks=tasks).episodes
    questions = [each for episode in episodes for each in episode.outcome["questions"]]
    right = {
        name: sum(each["readings"][name]["correct"] for each in questions) for name in ("reader", "strict", "generous")
    }
    assert len(questions) == 26
    assert right["reader"] < right["strict"] + 1 <= right["generous"]
    assert right["reader"] >= 10  # measured: 10, 13 and 21


def test_the_banks_of_the_paper_can_be_chosen() -> None:
    (episode,) = gradus.roll_out("memory:synthetic?schema=paper", "teacher", episodes=1).episodes
    assert {entry["bank"] for entry in episode.outcome["memory"]["entries"]} <= set(PAPER.banks)
    assert episode.metrics["strict_accuracy"] == 1.0
    assert "CATEGORY:semantic,episodic" in episode.system_prompt
    with pytest.raises(ConfigError, match="there are nine-banks, paper"):
        load("synthetic?schema=mine")


def test_terms_stand_at_the_calls_that_earned_them() -> None:
    spec = load()
    (episode,) = gradus.roll_out(spec, "spam", episodes=1).episodes
    for name in ("v2", "mem-alpha"):
        (reward,) = spec.graders[name].rewards([episode])
        for turn, terms in zip(episode.turns, reward.terms, strict=True):
            spans = [term.span for term in terms if term.component == "calls"]
            assert spans == [span.name for span in turn.spans]
