"""vLLM itself as the sampler: its log-probs over reloads, and GRPO on what it samples beside GRPO on our own sampler."""

import json
import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from fakes import lamps
from short_runs import lamps_nano, lines, taught_lamps
from vllm_environment import python_with_vllm

from gradus.policies.local.conversation import room_behind
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig, sampling_logprobs
from gradus.policies.vllm.http_sampler import HttpSampler
from gradus.rollouts import roll_out
from gradus.runs.stages.training_stages import served_sampler, weights_to_server
from gradus.training.config import GrpoConfig
from gradus.training.data.sequences import episode_samples
from gradus.training.grpo import train_grpo
from gradus.training.lesson_config import SftConfig
from gradus.training.run.options import GrpoOptions
from gradus.training.teachers import ModelTeacher, ServedTeacher

SAMPLING = SamplingConfig(max_new_tokens=24, temperature=1.3)
SHAPE = {"hidden_size": 128, "intermediate_size": 128}  # heads of 64: vLLM's CPU kernels know few sizes
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@contextmanager
def serving(folder: Path, config: pytest.Config) -> Iterator[str]:
    """`vllm serve` in a process of its own; yields its address."""
    python = python_with_vllm(config)
    command = [str(python.with_name("vllm")), "serve", str(folder), "--served-model-name", "nano", "--port", "8613"]
    command += ["--host", "127.0.0.1", "--dtype", "float32", "--max-model-len", "256", "--max-num-seqs", "64"]
    command += ["--enforce-eager", "--logprobs-mode", "processed_logprobs"]
    environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    environment |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
    environment.pop("PYTHONPATH", None)
    log = folder.parent / "vllm.log"
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


@pytest.fixture(params=["untied", "tied"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A nano model whose generation_config.json would change every log-prob, were it heard."""
    path = lamps_nano(tmp_path / "served" / "nano", **SHAPE)
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


def largest_gap(policy: HttpSampler, loaded: LoadedModel, length: int, seed: int) -> float:
    """Nats between vLLM's log-probs and those of plain transformers, over one answer behind ``length`` tokens."""
    words = list(loaded.renderer.first("", "hello"))
    prompt = (words * length)[:length]
    room = room_behind(length, SAMPLING.max_new_tokens, policy.context, "server")
    choice = policy.complete(prompt, room, seed)
    ids = choice["token_ids"]
    with torch.no_grad():
        logits = loaded.model(torch.tensor([prompt + ids])).logits[0, length - 1 : -1]
    own = sampling_logprobs(logits, SAMPLING).gather(-1, torch.tensor(ids)[:, None])[:, 0]
    return float((own - torch.tensor(choice["logprobs"]["token_logprobs"])).abs().max())


def test_vllm_samples_what_the_trainer_scores_before_and_after_new_weights(
    folder: Path, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    loaded = load_model(folder)
    options: dict[str, Any] = {"renderer": loaded.renderer, "sampling": SAMPLING}
    with serving(folder, pytestconfig) as address:
        policy = HttpSampler(base_url=address, **options)
        gaps = [largest_gap(policy, loaded, length, length) for length in (8, 40, 250)]
        assert room_behind(250, SAMPLING.max_new_tokens, policy.context, "server") == 6
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


def test_vllm_scores_what_a_student_said_as_the_model_does(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    spec = lamps()
    student, teacher = (load_model(lamps_nano(tmp_path / name, **SHAPE)) for name in ("student", "nano"))
    with torch.no_grad():
        teacher.model.model.norm.weight.mul_(3)
    teacher.model.save_pretrained(teacher.path)
    plain = SamplingConfig(max_new_tokens=8)
    episodes = roll_out(spec, LocalPolicy(student, plain), [spec.train_task(index) for index in range(4)]).episodes
    samples = [one for index, each in enumerate(episodes) for one in episode_samples(each, index=index)]
    with serving(tmp_path / "nano", pytestconfig) as address:
        theirs = ServedTeacher(address, student, plain).logprobs(samples, episodes)
    for mine, other in zip(
        ModelTeacher(teacher, spec, student, plain).logprobs(samples, episodes), theirs, strict=True
    ):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=0)


def test_grpo_on_what_vllm_samples_is_grpo_on_our_own_sampler(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    lessons = SftConfig(epochs=12, batch_size=16, lr=3e-3, validation_share=0)
    model, spec = taught_lamps(tmp_path, lessons, **SHAPE) / "best", lamps()
    settings: dict[str, Any] = {"max_steps": 40, "groups": 8, "group_size": 8, "lr": 3e-4, "validation_every": 0}
    settings |= {"sampling": SamplingConfig(max_new_tokens=5), "checkpoint_every": 100, "store_every": 0}
    train_grpo(model, spec, GrpoConfig(**settings), tmp_path / "own", options=GrpoOptions(live=False))
    with serving(model, pytestconfig) as address:
        config = GrpoConfig(**settings, sampler="vllm", sampler_url=address, correction="truncate")
        source, sampler, push = served_sampler(str(model), config, tmp_path / "vllm")
        train_grpo(
            source, spec, config, tmp_path / "vllm", options=GrpoOptions(live=False, sampler=sampler, push_weights=push)
        )
    own, theirs = lines(tmp_path / "own"), lines(tmp_path / "vllm")
    trained = [record for record in theirs if record["trained_tokens"]]
    print("\nlargest ratio to vLLM:", max(record["mismatch_ratio_max"] for record in trained))
    for record in trained:  # it samples with the weights of the step, and computes what the trainer computes
        assert record["mismatch_ratio_max"] == pytest.approx(1.0, abs=1e-3)
        assert record["logp_diff_max"] < 1e-3
    rewards = [[record["reward_mean"] for record in each] for each in (own, theirs)]
    print("rewards:", [[round(value, 2) for value in each] for each in rewards])
    ends = [each[-12:] for each in rewards]
    for each, end in zip(rewards, ends, strict=True):
        assert statistics.mean(end) > statistics.mean(each[:8])
    spread = (sum(statistics.variance(end) for end in ends) / 12) ** 0.5
    assert abs(statistics.mean(ends[0]) - statistics.mean(ends[1])) < 3 * spread
