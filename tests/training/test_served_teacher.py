"""A teacher behind a server that scores prompts as vLLM does; the server here answers with a real small model."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import lamps

from gradus.core import ConfigError
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig
from gradus.rollouts import roll_out
from gradus.training.data.sequences import episode_samples
from gradus.training.teachers import ModelTeacher, ServedTeacher

SAMPLING = SamplingConfig(max_new_tokens=4)


def answers(model: LoadedModel, path: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What vLLM's routes say of a model."""
    if path == "/tokenize":
        return {"tokens": list(model.renderer.first("", asked["messages"][0]["content"]))}
    with torch.no_grad():
        logprobs = model.model(input_ids=torch.tensor([asked["prompt"]])).logits[0].float().log_softmax(-1)
    if "prompt_logprobs" not in asked:
        return {"choices": [{"token_ids": [0], "logprobs": {"token_logprobs": [float(logprobs[-1, 0])]}}]}
    places: list[Any] = [None]
    for said, row in zip(asked["prompt"][1:], logprobs, strict=False):
        words = {*row.topk(asked["prompt_logprobs"]).indices.tolist(), said}
        places.append({str(word): {"logprob": float(row[word]), "rank": 1} for word in words})
    return {"choices": [{"prompt_logprobs": places}]}


@contextmanager
def served(model: LoadedModel) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send({"data": [{"id": "teacher"}]})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._send(answers(model, self.path, asked))

        def _send(self, said: Mapping[str, Any]) -> None:
            body = json.dumps(said).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_server_scores_as_its_model_does(loaded: LoadedModel, lamps_model: Path) -> None:
    spec, other = lamps(), load_model(lamps_model, device="cpu")
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.add_(0.1)
    episodes = roll_out(spec, LocalPolicy(loaded, SAMPLING), [spec.train_task(index) for index in range(2)]).episodes
    samples = [one for index, each in enumerate(episodes) for one in episode_samples(each, index=index)]
    local = ModelTeacher(other, spec, loaded, SAMPLING)
    with served(other) as address:
        teacher = ServedTeacher(address, loaded, SAMPLING)
        for mine, theirs in zip(local.logprobs(samples, episodes), teacher.logprobs(samples, episodes), strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=0)
        for sample in teacher.label(samples, episodes):
            with torch.no_grad():
                logits = other.model(input_ids=sample.ids[None]).logits[0, sample.positions - 1].float()
            ids, chances = sample.soft
            known = chances > 0
            assert known.sum(1).min() >= 20
            likely = logits.double().softmax(-1).gather(1, ids)
            torch.testing.assert_close(chances[known], likely[known], atol=1e-4, rtol=0)
            assert (1 - chances.sum(1)).min() > 1e-8  # a softmax leaves something to all other words


answers_of = answers


def test_what_a_server_cannot_teach_is_refused(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(loaded) as address:
        with pytest.raises(ConfigError, match="temperature 1"):
            ServedTeacher(address, loaded, SAMPLING.model_copy(update={"temperature": 0.5}))
        monkeypatch.setitem(globals(), "answers", lambda *asked: {**answers_of(*asked), "tokens": [1]})
        with pytest.raises(ConfigError, match="another tokenizer or chat template"):
            ServedTeacher(address, loaded, SAMPLING)
