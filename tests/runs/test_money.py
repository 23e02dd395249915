"""What a run costs: counted by one table of prices, foretold, and never beyond its limit."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer, completion, serving
from command_line import call
from short_runs import lines

from gradus.core import ConfigError
from gradus.core.money import Account, OutOfMoney, Price
from gradus.environments import load
from gradus.policies.remote.client import RemoteUsage
from gradus.runs.job import resolve
from gradus.runs.money import forecast_money, read_dollars
from gradus.runs.recipe.record import Recipe

ROWS = [{"question": f"{a} + {b} =", "answer": str(a + b)} for a in range(2, 8) for b in range(1, 9)]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    """A teacher whose answers take 100 tokens of the prompt and 10 more: 0.0002 dollars at 1 and 10 a million."""

    def answer(body: dict[str, Any]) -> tuple[int, str]:
        a, b = body["messages"][-1]["content"].split("=")[0].split("+") if "+" in str(body) else ("0", "0")
        return 200, completion(f"<answer> {int(a.split()[-1]) + int(b)} </answer>", tokens=(100, 10))

    with serving(answer) as each:
        monkeypatch.setenv("OPENAI_BASE_URL", each.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        yield each


def run(tmp_path: Path, *words: object) -> Any:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    options = ["--reward", "final_answer", "--teacher", "remote:m", "--episodes", 20, "--price", "1,10"]
    fast = ["--concurrency", 2, "--quick", "--set", "sft.max_steps=2", "--set", "teach.remote.max_tokens=20"]
    return call("sft", rows, *options, *fast, "--out", tmp_path / "run", *words)


def taught(tmp_path: Path) -> dict[str, Any]:
    return json.loads((tmp_path / "run/manifest.json").read_text())["stages"]["teach"]


def test_a_run_stops_before_its_limit_and_goes_on_when_it_is_raised(server: ChatServer, tmp_path: Path) -> None:
    with pytest.raises(OutOfMoney, match=r"at most \$0.002,.*--max-cost goes on"):
        run(tmp_path, "--max-cost", "0.002usd")
    record = taught(tmp_path)
    assert not record["done"]
    asked = len(server.bodies)
    assert 4 <= asked < 10
    assert record["cost"]["paid"] == pytest.approx(0.0002 * asked)
    assert record["cost"]["paid"] < 0.002
    with pytest.raises(OutOfMoney, match="go beyond"):  # the same limit again asks next to nothing
        run(tmp_path, "--max-cost", "0.002usd")
    assert len(server.bodies) <= asked + 2

    ended = run(tmp_path, "--max-cost", "$1")
    assert ended.code == 0
    assert "the run stops before $1" in ended.output
    assert "the teacher's 20 episodes cost at most about" in ended.output
    record = taught(tmp_path)
    assert record["done"]
    assert record["cost"]["paid"] == pytest.approx(0.0002 * len(server.bodies))
    assert len(server.bodies) <= 20 + 3 + 2  # a short first request of each call, and none of what was kept


def test_a_limit_without_a_longest_answer_is_refused_before_anything_is_asked(server: ChatServer) -> None:
    usage = RemoteUsage(price=Price(prompt=1, completion=1), account=Account(limit=1.0))
    with pytest.raises(ConfigError, match="max_tokens"):
        usage.ceiling([{"role": "user", "content": "x"}], None)
    assert not server.bodies


def test_a_training_stops_behind_a_checkpoint_and_the_total_is_the_sum_of_the_stages(tmp_path: Path) -> None:
    """A judge has its own opinion of every length, for 0.0002 dollars."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))

    def judge(body: dict[str, Any]) -> tuple[int, str]:
        score = len(body["messages"][-1]["content"]) % 3 / 2
        return 200, completion(json.dumps({"reason": "r", "score": score}), tokens=(100, 10))

    def recipe(server: ChatServer, out: Path, limit: float) -> list[object]:
        settings = f'{{model = "m", rubric = "r", base_url = "{server.url}", recheck = 0.0, max_tokens = 20}}'
        file = tmp_path / "judged.toml"
        file.write_text(
            f'environment = "rows.jsonl"\n[[rewards]]\nfunction = "judge"\nsettings = {settings}\n'
            "[teach]\nenabled = false\n[audit]\nenabled = false\n[grpo]\nmax_steps = 4\nvalidation_every = 0\nsampling = {max_new_tokens = 6}\n"
            "[eval]\nepisodes = 4\n[model.nano]\n[prices]\njudge = [1.0, 10.0]\nhour = 0.001\n"
        )
        return ["run", file, "--quick", "--out", out, "--max-cost", limit]

    with serving(judge) as server:
        ended = call(*recipe(server, tmp_path / "run", 10))
        asked = len(server.bodies)
        costs = json.loads((tmp_path / "run/costs.json").read_text())
        assert "scores of GRPO cost at most about" in ended.output
        assert costs["total"] == pytest.approx(0.0002 * asked, rel=0.05)  # the machine's share is small
        assert costs["total"] == pytest.approx(sum(stage["cost"] for stage in costs["stages"]))
        pairs = next(iter(json.loads((tmp_path / "run/results.json").read_text())["conditions"].values()))["pairs"]
        gain = costs["gain_per_dollar"]
        reward = pairs[gain["pair"]]["reward"]
        assert gain["pair"] == "grpo - base"
        assert gain["mean"] == pytest.approx(reward["mean"] / costs["total"])
        assert (gain["low"] is None) == (reward["low"] is None)

        server.bodies.clear()
        # In a thread of its own: the limit ends that training, and no other.
        with ThreadPoolExecutor(1) as threads, pytest.raises(OutOfMoney, match="grpo would go beyond"):
            threads.submit(call, *recipe(server, tmp_path / "half", costs["total"] / 2)).result()
        assert 0.0002 * len(server.bodies) < costs["total"] / 2
        half, whole = tmp_path / "half/grpo", tmp_path / "run/grpo"
        assert 1 <= len(lines(half)) < len(lines(whole))
        assert list((tmp_path / "half/grpo/checkpoints").iterdir())
        assert call(*recipe(server, tmp_path / "half", 10)).code == 0
        assert len(lines(half)) == len(lines(whole))


def test_without_a_price_nothing_is_begun_to_foretell_it() -> None:
    def refuse() -> Any:
        raise AssertionError("an environment was made")

    spec = replace(load("arithmetic"), make=refuse)
    assert list(forecast_money(resolve(Recipe(environment="arithmetic"), environment=spec))) == []


@pytest.mark.parametrize(("text", "dollars"), [("5usd", 5.0), ("$0.5", 0.5), ("2 USD", 2.0), ("3", 3.0)])
def test_dollars_are_read(text: str, dollars: float) -> None:
    assert read_dollars(text) == dollars


@pytest.mark.parametrize("text", ["", "5eur", "-1", "nan", "0"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="as in 5usd"):
        read_dollars(text)
