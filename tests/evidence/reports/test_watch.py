"""The page that follows a run: it shows what is there, tells what is new, and answers this machine alone."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.testclient import TestClient

from gradus.core.files import pack
from gradus.rollouts import write_episodes
from gradus.runs.watch import progress_of, watch_app


def _steps(first: int, last: int) -> str:
    lines = [
        {"kind": "step", "step": step, "reward_mean": 0.1 * step, "seconds": {"total": 60}}
        for step in range(first, last)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "grpo").mkdir()
    (tmp_path / "grpo" / "metrics.jsonl").write_text(_steps(1, 5))
    (tmp_path / "grpo" / "config.json").write_text('{"max_steps": 10}')
    return tmp_path


def test_the_page_is_the_report_and_follows(run: Path) -> None:
    client = TestClient(watch_app({"run": run}))
    page = client.get("/")
    assert page.status_code == 200
    assert 'data-live="yes"' in page.text
    (reward,) = [curve for curve in client.get("/data").json()["grpo"] if curve["title"] == "Reward"]
    assert reward["series"][0]["y"] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert progress_of({"run": run})["said"] == "GRPO, step 4 of 10, about 6 min left"
    assert "Nothing was found in 4 steps of GRPO" in page.text
    (run / "grpo" / "metrics.jsonl").write_text(
        _steps(1, 11)
    )  # it said "about 0 min left" as long as the evaluation took
    assert progress_of({"run": run})["said"] == "GRPO, all 10 steps are done"


def test_it_reads_only_and_answers_no_foreign_name(run: Path) -> None:
    client = TestClient(watch_app({"run": run}))
    assert client.post("/").status_code == 405
    assert client.get("/", headers={"host": "evil.example"}).status_code == 400
    before = sorted(run.rglob("*"))
    client.get("/")
    assert sorted(run.rglob("*")) == before


def test_a_page_for_the_network_answers_every_name(run: Path) -> None:
    client = TestClient(watch_app({"run": run}, hosts=None))
    assert client.get("/", headers={"Host": "mybox:8765"}).status_code == 200


def test_it_gives_any_episode_of_the_evaluation(run: Path, played: Any) -> None:
    episodes = [each for group in played.groups for each in group.episodes]
    write_episodes(run / "eval" / "episodes.jsonl.gz", episodes, environment="rhythm")
    client = TestClient(watch_app({"run": run}))
    for number in (0, len(episodes) - 1):
        (entry,) = client.get("/episode", params={"number": number}).json()["entries"]
        assert (entry["policy"], entry["seed"]) == (episodes[number].policy, episodes[number].task.seed)
        assert [turn["action"] for turn in entry["members"][0]["turns"]] == [
            each.action for each in episodes[number].turns
        ]
    for number in (len(episodes), "-1", "x", "", "9" * 5000):
        refused = client.get("/episode", params={"number": number})
        assert refused.status_code == 404
        assert "has no episode" in refused.json()["error"]


def test_it_searches_the_texts_of_all_evaluated_episodes(run: Path, played: Any) -> None:
    first, *others = [each for group in played.groups for each in group.episodes]
    turn = replace(first.turns[0], action='She said: "Half PAST ten"\\now')
    episodes = [*others, replace(first, turns=(turn, *first.turns[1:]))]
    file = run / "eval" / "episodes.jsonl.gz"
    write_episodes(file, episodes, environment="rhythm")
    client = TestClient(watch_app({"run": run}))

    def numbers(text: str) -> list[int]:
        return client.get("/search", params={"text": text}).json()["numbers"]

    assert numbers('said: "half past ten"\\n') == [len(others)]
    assert numbers("env_reward") == []  # a name of a field
    assert numbers(episodes[0].turns[0].observation[:40]) == [
        number
        for number, each in enumerate(episodes)
        if any(episodes[0].turns[0].observation[:40] in turn.observation for turn in each.turns)
    ]
    file.write_bytes(pack("{}")[:-9] + file.read_bytes())
    for address in ("/search?text=ten", "/episode?number=1"):  # the numbers are those of other episodes now
        refused = client.get(address)
        assert refused.status_code == 404


def test_the_name_of_an_environment_in_a_file_runs_no_code(run: Path, played: Any) -> None:
    (run / "mine.py").write_text(f"open({str(run / 'ran')!r}, 'w')")
    episodes = played.groups[0].episodes
    write_episodes(run / "grpo" / "episodes" / "step-1.jsonl.gz", episodes, environment=f"{run / 'mine.py'}:spec")
    assert TestClient(watch_app({"run": run})).get("/").status_code == 200
    assert not (run / "ran").exists()


def test_a_run_of_several_seeds_is_followed_seed_by_seed(tmp_path: Path) -> None:
    for seed, steps in ((0, 5), (1, 3)):
        (tmp_path / f"seed-{seed}" / "grpo").mkdir(parents=True)
        (tmp_path / f"seed-{seed}" / "grpo" / "metrics.jsonl").write_text(_steps(1, steps))
    said = progress_of({"run": tmp_path})["said"]
    assert (said.count("seed 0: GRPO, step 4"), said.count("seed 1: GRPO, step 2")) == (1, 1)
    client = TestClient(watch_app({"run": tmp_path}))
    assert [series["name"] for series in client.get("/data").json()["grpo"][0]["series"]] == ["seed 0", "seed 1"]
    both = TestClient(watch_app({"a": tmp_path, "b": tmp_path / "seed-0"})).get("/data").json()["grpo"][0]
    assert [series["name"] for series in both["series"]] == ["a, seed 0", "a, seed 1", "b"]


def test_the_page_of_several_runs_says_what_each_has_shown(run: Path, tmp_path: Path, played: Any) -> None:
    """It said that nothing was evaluated, led to an empty section, and called itself a file that loads nothing."""
    run = run / "done"
    (run / "grpo").mkdir(parents=True)
    (run / "grpo" / "metrics.jsonl").write_text(_steps(1, 5))
    (run / "results.json").write_text(json.dumps(played.results))
    page = TestClient(watch_app({"done": run, "begun": tmp_path})).get("/").text
    assert "Nothing was evaluated yet" not in page
    assert "graded highest on in-distribution" in page.partition("done: ")[2]
    assert "begun: nothing was evaluated yet" in page
    assert "How it was made" not in page
    assert "it loads nothing" not in page


@pytest.fixture
def server(run: Path) -> Iterator[str]:
    config = uvicorn.Config(watch_app({"run": run}, seconds=0.05), host="127.0.0.1", port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(timeout=10)


def test_what_is_written_is_told(run: Path, server: str) -> None:
    told: list[str] = []
    with httpx.stream("GET", f"{server}/events", timeout=20) as response:
        for line in response.iter_lines():
            if line.startswith("data:"):
                told.append(json.loads(line[5:])["said"])
                if len(told) == 2:
                    break
                with (run / "grpo" / "metrics.jsonl").open("a") as file:
                    file.write(_steps(5, 6))
    assert [said.partition(",")[2].split()[1] for said in told] == ["4", "5"]
