"""vLLM itself as the sampler, where VLLM_PYTHON names a Python that has it (docs/gpu.md says how to make one on a CPU)."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from fakes import lamps

from gradus.pipeline.connections import weights_to_server
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.local.sampling import SamplingConfig, sampling_logprobs
from gradus.policies.nano.model import NanoConfig, make_nano
from gradus.policies.vllm.http_sampler import HttpSampler

PYTHON = os.environ.get("VLLM_PYTHON")
SAMPLING = SamplingConfig(max_new_tokens=24, temperature=1.3)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PYTHON, reason="VLLM_PYTHON names no Python with vLLM")]


@pytest.fixture(scope="module", params=["untied", "tied"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A nano model whose generation_config.json would change every log-prob, were it heard."""
    spec = lamps()
    assert spec.language.vocabulary is not None
    path = tmp_path_factory.mktemp(request.param) / "nano"
    make_nano(path, spec.language.vocabulary(), NanoConfig(hidden_size=128, layers=2, heads=2, intermediate_size=128))
    model = load_model(path).model
    if request.param == "untied":
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.model.embed_tokens.weight.detach().clone())
        model.save_pretrained(path)
    settings = json.loads((path / "generation_config.json").read_text())
    settings |= {"repetition_penalty": 1.5, "top_k": 5, "min_p": 0.1}
    (path / "generation_config.json").write_text(json.dumps(settings))
    (path / "SHA256SUMS").unlink(missing_ok=True)
    return path


@pytest.fixture(scope="module")
def address(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    assert PYTHON is not None
    command = [
        str(Path(PYTHON).with_name("vllm")),
        "serve",
        str(folder),
        "--served-model-name",
        "nano",
        "--port",
        "8613",
    ]
    command += ["--host", "127.0.0.1", "--dtype", "float32", "--max-model-len", "256", "--max-num-seqs", "16"]
    command += ["--enforce-eager", "--logprobs-mode", "processed_logprobs"]
    environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    environment |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
    environment.pop("PYTHONPATH", None)
    log = tmp_path_factory.mktemp("vllm") / "log"
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment, cwd=log.parent)
        try:
            while True:
                assert process.poll() is None, log.read_text()[-3000:]
                try:
                    httpx.get("http://127.0.0.1:8613/health", timeout=5).raise_for_status()
                    break
                except httpx.HTTPError:
                    time.sleep(2)
            yield "http://127.0.0.1:8613/v1"
        finally:
            process.terminate()
            process.wait(60)


def largest_gap(policy: HttpSampler, loaded: LoadedModel, length: int, seed: int) -> float:
    """Nats between vLLM's log-probs and those of plain transformers, over one answer behind ``length`` tokens."""
    words = list(loaded.renderer.first("", "hello"))
    prompt = (words * length)[:length]
    choice = policy.complete(prompt, policy.room(length), seed)
    ids = choice["token_ids"]
    with torch.no_grad():
        logits = loaded.model(torch.tensor([prompt + ids])).logits[0, length - 1 : -1]
    own = sampling_logprobs(logits, SAMPLING).gather(-1, torch.tensor(ids)[:, None])[:, 0]
    return float((own - torch.tensor(choice["logprobs"]["token_logprobs"])).abs().max())


def test_vllm_samples_what_the_trainer_scores_before_and_after_new_weights(
    folder: Path, address: str, tmp_path: Path
) -> None:
    loaded = load_model(folder)
    options: dict[str, Any] = {"base_url": address, "renderer": loaded.renderer, "sampling": SAMPLING}
    policy = HttpSampler("nano", **options)
    gaps = [largest_gap(policy, loaded, length, length) for length in (8, 40, 250)]
    assert policy.room(250) == 6
    push = weights_to_server(policy, tmp_path / "sampler")
    noise = torch.Generator().manual_seed(0)
    for step in range(3):
        with torch.no_grad():
            for weight in loaded.model.parameters():
                weight.add_(0.05 * torch.randn(weight.shape, generator=noise))
        push(loaded, step)
        gaps += [largest_gap(policy, loaded, length, step) for length in (8, 40)]
    policy.close()
    print("\nlargest gaps to vLLM:", [f"{gap:.1e}" for gap in gaps])
    assert max(gaps) < 1e-4
