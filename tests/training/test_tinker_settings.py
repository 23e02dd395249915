"""What a run on a Tinker server refuses before anything is spent. No server is needed."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from pydantic import ValidationError

from gradus.core import ConfigError
from gradus.policies.tinker.policy import TokenCounts
from gradus.policies.tinker.service import TinkerService, server_of
from gradus.runs.recipe.load import load_recipe
from gradus.runs.recipe.record import Recipe
from gradus.training.tinker.reduction import DIVISORS


class Sdk:
    """The errors of the package ``tinker``, none of which is raised here."""

    TinkerError = APIStatusError = APIConnectionError = NotFoundError = InternalServerError = KeyError


def recipe(**changes: Any) -> Recipe:
    return Recipe.model_validate(
        {"environment": "arithmetic", "model": {"path": "m"}, "trainer": "tinker:http://localhost:1", **changes}
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"grpo": {"sampling": {"temperature": 0.7}}}, "temperature = 1"),
        ({"grpo": {"entropy_coef": 0.01}}, "entropy_coef = 0"),
        ({"grpo": {"optimizer": "muon"}}, "adamw"),
        ({"grpo": {"lora": {"rank": 8, "alpha": 16}}}, "leave out lora.alpha"),
        ({"sft": {"lora": {"targets": ["q_proj"]}}}, "lora.targets"),
        ({"distill": {}}, "distill_coef"),
        ({"model": {}}, "model.path"),
        ({"prices": {"max_cost": 5.0}}, "needs a price"),
        ({"trainer": "tinker:localhost"}, "tinker:http://"),
    ],
)
def test_a_setting_that_no_server_keeps_is_refused_with_the_way_out(changes: dict[str, Any], words: str):
    with pytest.raises(ValidationError, match=words):
        recipe(**changes)


@pytest.mark.parametrize("name", ["arithmetic", "memory", "rhythm", "shop"])
def test_a_recipe_is_trained_on_a_server_by_changing_one_key(lamps_model: Path, name: str):
    here = load_recipe(name, changes={"model.path": str(lamps_model)})
    served = load_recipe(name, changes={"model.path": str(lamps_model), "trainer": "tinker:http://localhost:1"})
    there, kept = served.model_dump(), here.model_dump()
    assert {key for key in there if there[key] != kept[key]} <= {"trainer", "sft", "grpo"}
    assert {key for key in there["grpo"] if there["grpo"][key] != kept["grpo"][key]} <= {
        "optimizer",
        "muon_lr",
        "sampling",
    }


def test_a_refusal_within_a_request_is_no_lost_server():
    service = TinkerService("http://127.0.0.1:9")
    service.sdk = Sdk
    with pytest.raises(ConfigError, match="no Tinker server answers"), service.explained("train"):
        _ = service.client


def test_no_server_is_one_sentence():
    with pytest.raises(ConfigError, match=r"no Tinker server answers at http://127\.0\.0\.1:9"):
        TinkerService("http://127.0.0.1:9").model_names()


def test_a_key_is_asked_for_beyond_this_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="TINKER_API_KEY"):
        TinkerService("https://tinker.example").model_names()


@contextmanager
def answering(status: int, body: object) -> Iterator[TinkerService]:
    """A server that gives one answer to everything, as a client sees it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield TinkerService(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


def test_a_wrong_key_is_one_sentence():
    with (
        answering(401, {"detail": "no"}) as service,
        pytest.raises(ConfigError, match=r"refuses the key .* TINKER_API_KEY"),
    ):
        service.model_names()


def test_another_kind_of_server_is_one_sentence():
    with answering(200, {"models": []}) as service, pytest.raises(ConfigError, match="does not list models"):
        service.model_names()


def test_a_model_that_it_does_not_have_is_refused_with_those_that_it_has():
    answer = {"supported_models": [{"model_name": "Qwen/Qwen3-8B"}, {"model_name": "/models/small"}]}
    with answering(200, answer) as service:
        assert service.find_model("/models/small") == "/models/small"
        with pytest.raises(ConfigError, match="does not have the model other; it has Qwen/Qwen3-8B, /models/small"):
            service.find_model("other")


def test_a_run_without_the_client_or_the_server_ends_before_anything_is_spent(lamps_model: Path, tmp_path: Path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"question": f"{n} + 1?", "answer": str(n + 1)}) + "\n" for n in range(40)))
    command = [
        "grpo",
        str(rows),
        "--model",
        str(lamps_model),
        "--trainer",
        "tinker:http://127.0.0.1:9",
        "--out",
        str(tmp_path / "run"),
    ]
    with pytest.raises(ConfigError, match=r"no Tinker server answers|needs the package tinker"):
        call(*command)
    assert not list((tmp_path / "run").rglob("metrics.jsonl"))


def test_addresses():
    assert server_of("local") is None
    assert server_of("tinker:https://host/") == "https://host"


def test_each_divisor_is_told_from_the_others_by_a_factor_of_two():
    ratios = sorted(divisor(32, [32, 96]) / divisor(8, [8]) for divisor in DIVISORS.values())
    assert ratios == [1, 2, 4, 8, 16]


def test_money_is_counted_only_with_a_price():
    counts = TokenCounts(prompt=1_000_000, sampled=2_000_000, trained=500_000)
    assert counts.cost(None) == 0.0
    assert counts.cost((1.0, 2.0, 4.0)) == pytest.approx(7.0)
