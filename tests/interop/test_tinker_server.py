"""The server of the Tinker API, as the SDK's own programs, hostile clients and kills meet it."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tinker_servers import HERE, Python, environment, program, serving
from tiny_qwen2 import make_tiny_llama

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tinker") / "llama")


def test_the_loops_of_the_cookbook_learn(sdk_python: Python, tmp_path: Path) -> None:
    python, loops = sdk_python("0.38.0"), HERE / "cookbook_loops.py"
    made = program(python, loops, "base", tmp_path)
    assert made.returncode == 0, made.stderr[-2000:]
    with serving(python, tmp_path / "tiny-llama", tmp_path / "saved") as (url, _):
        for loop in ("sl", "rl"):
            ran = program(python, loops, loop, tmp_path, url)
            assert ran.returncode == 0, ran.stderr[-2000:]

    def figures(loop: str, name: str) -> list[float]:
        lines = (tmp_path / loop / "metrics.jsonl").read_text().splitlines()
        return [row[name] for row in map(json.loads, lines) if name in row]

    losses, rewards = figures("sl", "train_mean_nll"), figures("rl", "reward/total")
    assert len(losses) == len(rewards) == 20
    assert np.mean(losses[-5:]) < 0.6 * losses[0]
    assert np.mean(rewards[-5:]) > np.mean(rewards[:5]) + 0.2


def test_every_version_of_the_sdk_gets_the_same_numbers(sdk_python: Python, llama: Path, tmp_path: Path) -> None:
    answers: list[str] = []
    with serving(sdk_python("0.38.0"), llama, tmp_path) as (url, _):
        for version in ("0.24.1", "0.38.0", "0.38.0"):
            ran = program(sdk_python(version), HERE / "tinker_program.py", "numbers", url)
            assert ran.returncode == 0, ran.stderr[-2000:]
            answers.append(ran.stdout)
    assert json.loads(answers[0]) == json.loads(answers[1])
    assert answers[1] == answers[2]


def test_nothing_that_was_said_to_be_saved_is_lost_by_kills(sdk_python: Python, llama: Path, tmp_path: Path) -> None:
    python, driver = sdk_python("0.38.0"), HERE / "tinker_program.py"
    rounds: list[list[dict[str, Any]]] = []
    for moment in np.random.default_rng(0).uniform(0.0, 1.0, 10):
        with serving(python, llama, tmp_path) as (url, process):
            start = rounds[-1][-1]["path"] if rounds else "new"
            command = [python, driver, "train", url, start]
            client = subprocess.Popen(
                command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            first = client.stdout.readline()  # it trains
            time.sleep(moment)
            process.send_signal(signal.SIGKILL)
            client.kill()
            lines = [first, *client.communicate()[0].splitlines(keepends=True)]
            rounds.append([json.loads(line) for line in lines if line.endswith("\n")])
    last = [saved[-1] for saved in rounds]
    with serving(python, llama, tmp_path) as (url, _):
        ran = program(python, driver, "score", url, *(saved["path"] for saved in last))
        assert ran.returncode == 0, ran.stderr[-2000:]
    scored = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [one["scores"] for one in scored] == [saved["scores"] for saved in last]
    # The client after a kill went on from the last checkpoint: its first update is the next one, bit for bit.
    assert [one["next"] for one in scored[:-1]] == [saved[0]["scores"] for saved in rounds[1:]]


def hostile(session: str, model: str, sampler: str, future: str) -> Iterator[tuple[str, Any]]:
    """Requests of one client with the ids of another, then of wrong sizes, types and kinds."""
    adam = {"learning_rate": 1e-3}
    sample: dict[str, Any] = {"sampling_session_id": sampler, "seq_id": 0, "sampling_params": {"max_tokens": 4}}
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]}
    yield "session_heartbeat", {"session_id": session}
    yield "create_model", {"session_id": session, "model_seq_id": 9, "base_model": "llama", "lora_config": {"rank": 4}}
    yield "get_info", {"model_id": model}
    yield "unload_model", {"model_id": model}
    yield "optim_step", {"model_id": model, "adam_params": adam, "seq_id": 1}
    yield "save_weights", {"model_id": model, "path": "theirs", "seq_id": 1}
    yield "save_weights_for_sampler", {"model_id": model, "path": "theirs", "seq_id": 1}
    yield "load_weights", {"model_id": model, "path": f"tinker://{model}/weights/mine", "optimizer": True}
    yield "weights_info", {"tinker_path": f"tinker://{model}/weights/mine"}
    yield "create_sampling_session", {"session_id": session, "sampling_session_seq_id": 0, "base_model": "llama"}
    yield "asample", {**sample, "prompt": prompt}
    yield (
        "asample",
        {**sample, "prompt": prompt, "sampling_session_id": None, "model_path": f"tinker://{model}/weights/mine"},
    )
    yield "retrieve_future", {"request_id": future}
    yield "forward_backward", batch(model, [1, 2], [2, 3])
    yield "forward_backward", batch(f"{session}:train:00", [1, 2], [2, 3])


def batch(model: str, ids: Any, targets: Any, loss: str = "cross_entropy", **inputs: Any) -> dict[str, Any]:
    tensors = {"target_tokens": {"data": targets, "dtype": "int64"}, **inputs}
    datum = {"model_input": {"chunks": [{"type": "encoded_text", "tokens": ids}]}, "loss_fn_inputs": tensors}
    return {"model_id": model, "forward_backward_input": {"data": [datum], "loss_fn": loss}}


def malformed(session: str, model: str, sampler: str) -> Iterator[tuple[str, Any]]:
    floats = {"data": [1.0, 1.0], "dtype": "float32"}
    sparse = {
        "data": [1.0],
        "dtype": "float32",
        "shape": [2**40, 2**40],
        "sparse_crow_indices": [0, 1],
        "sparse_col_indices": [0],
    }
    sample: dict[str, Any] = {
        "sampling_session_id": sampler,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1]}]},
    }
    model_of: dict[str, Any] = {"session_id": session, "model_seq_id": 7, "base_model": "llama"}
    yield "forward_backward", batch(model, [1, 2], [2])
    yield "forward_backward", batch(model, [], [])
    yield "forward_backward", batch(model, [1, 10**9], [2, 3])
    yield "forward_backward", batch(model, [1, 2], [-1, 3])
    yield "forward_backward", batch(model, ["a"], [1])
    yield "forward_backward", batch(model, [1] * 600, [1] * 600)
    yield "forward_backward", batch(model, [1, 2], [10**30, 3])
    yield "forward_backward", batch(model, [1, 2], [2, 3], "dro")
    yield "forward_backward", batch(model, [1, 2], [2, 3], "importance_sampling")
    yield "forward_backward", batch(model, [1, 2], [2, 3], weights=sparse)
    yield "forward_backward", batch(model, [1, 2], [2, 3], advantages=floats)
    yield "forward_backward", batch(model, [1, 2], [2, 3], weights={**floats, "shape": [3]})
    yield "forward_backward", b"\x0a\xff\xff\xff"
    yield "forward_backward", b"[" * 100_000
    yield "forward", {"model_id": model}
    yield "create_model", {**model_of, "lora_config": {"rank": 10**6}}
    yield "create_model", {**model_of, "lora_config": {"rank": -1}}
    yield "create_model", {**model_of, "base_model": "../../etc", "lora_config": {"rank": 4}}
    yield "optim_step", {"model_id": model, "adam_params": {"learning_rate": -1.0}}
    yield "optim_step", {"model_id": model, "adam_params": {"beta1": 1.0}}
    yield "save_weights", {"model_id": model, "path": "../../../tmp/x"}
    yield "weights_info", {"tinker_path": "tinker://../weights/.."}
    yield "weights_info", []
    yield "asample", {**sample, "num_samples": 10**9, "sampling_params": {"max_tokens": 1}}
    yield "asample", {**sample, "sampling_params": {"max_tokens": 10**9}}
    yield "asample", {**sample, "sampling_params": {"max_tokens": 1, "temperature": -1}}
    yield "asample", {**sample, "sampling_params": {"max_tokens": 1, "stop": [""]}}
    yield "asample", {**sample, "topk_prompt_logprobs": 10**6, "sampling_params": {"max_tokens": 1}}
    yield "retrieve_future", {"request_id": "x" * 10_000}
    yield "no/such/route", {}


def test_hostile_requests_are_refused_in_one_sentence(sdk_python: Python, llama: Path, tmp_path: Path) -> None:
    with serving(sdk_python("0.38.0"), llama, tmp_path, keys="of-one,of-another") as (url, _):

        def post(key: str, route: str, body: Any) -> httpx.Response:
            headers = {"X-API-Key": key, "Content-Type": "application/json"}
            if isinstance(body, bytes):
                headers["Content-Type"] = "application/x-protobuf"
            content = body if isinstance(body, bytes) else json.dumps(body)
            return httpx.post(f"{url}/api/v1/{route}", content=content, headers=headers, timeout=60)

        def act(route: str, body: Any) -> Any:
            promise = post("of-one", route, body).json()
            return (
                post("of-one", "retrieve_future", {"request_id": promise["request_id"]}).json()
                if "request_id" in promise
                else promise
            )

        session = act("create_session", {"tags": [], "user_metadata": {}, "sdk_version": "0"})["session_id"]
        made = {"session_id": session, "model_seq_id": 0, "base_model": "llama", "lora_config": {"rank": 4}}
        model = act("create_model", made)["model_id"]
        assert act("save_weights", {"model_id": model, "path": "mine", "seq_id": 1})["path"].endswith("weights/mine")
        base = {"session_id": session, "sampling_session_seq_id": 0, "base_model": "llama"}
        sampler = act("create_sampling_session", base)["sampling_session_id"]
        refused = [post("of-another", route, body) for route, body in hostile(session, model, sampler, f"{model}:1")]
        refused += [post("of-one", route, body) for route, body in malformed(session, model, sampler)]
        refused += [post(key, "create_session", {}) for key in ("", "of-on", "of-one,of-another", "x" * 10_000)]
        refused.append(post("of-one", "forward_backward", b"x" * (65 * 2**20)))
        assert len(refused) == 50
        for response in refused:
            assert 400 <= response.status_code < 500, (response.request.url, response.text[:300])
            assert len(response.json()["error"]["message"]) < 400
            assert "Traceback" not in response.text
        listed = httpx.get(f"{url}/api/v1/checkpoints", headers={"X-API-Key": "of-another"}).json()
        assert listed == {"checkpoints": []}
        # The client goes on as if nothing had been.
        assert act("optim_step", {"model_id": model, "adam_params": {}, "seq_id": 2})["metrics"] == {"grad_norm": 0.0}
