"""Training through `gradus grpo` on what `gradus serve` samples in another process."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import gradus
from fakes import lamps
from safetensors.torch import load_file
from short_runs import lamps_nano, lines, taught_lamps

from gradus.policies.local.loading import load_model
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.vllm.http_sampler import HttpSampler
from gradus.rollouts import roll_out
from gradus.runs.stages.training_stages import served_sampler, weights_to_server
from gradus.training.config import GrpoConfig
from gradus.training.engine.prepare import prepare_model
from gradus.training.trainer_config import LoraConfig

TESTS = Path(__file__).parent.parent
TOKEN = "a-token-of-the-test"


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of `gradus sft`."""
    return taught_lamps(tmp_path_factory.mktemp("served"))


@contextmanager
def serving(model: Path, weights: Path) -> Iterator[str]:
    """`gradus serve` in a process of its own that loads weights from below a folder; yields its base URL."""
    command = [sys.executable, "-m", "gradus", "serve", str(model), "--port", "0", "--weights", str(weights)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_API_KEY": TOKEN}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        line = process.stderr.readline()
        address_match = re.search(r"http://\S+/v1", line)
        assert address_match, line + process.stderr.read()
        yield address_match[0]
    finally:
        process.terminate()
        process.communicate(timeout=20)


def grpo(taught: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, *changes: str) -> list[dict[str, Any]]:
    """`gradus grpo` on lamps; its step records."""
    (folder / "outside_lamps.py").write_text("from fakes import lamps\n\nSPEC = lamps()\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("VLLM_API_KEY", TOKEN)
    settings = [
        "grpo.correction=truncate",
        "grpo.validation_every=0",
        "grpo.checkpoint_every=100",
        "grpo.sampling.max_new_tokens=5",
        "grpo.sampling.temperature=1.3",
        *changes,
    ]
    words = ["grpo", "outside_lamps:SPEC", "-m", str(taught), "-o", str(folder / "run")]
    gradus(*words, *(word for each in settings for word in ("--set", each)))
    return lines(folder / "run" / "grpo")


def served(address: str, **more: Any) -> list[str]:
    return [
        "grpo.sampler=http",
        f"grpo.sampler_url={address}",
        *(f"grpo.{name}={value}" for name, value in more.items()),
    ]


@pytest.mark.slow
def test_a_server_that_is_given_every_update_has_ratios_of_one(
    taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load_file(taught / "best" / "model.safetensors")
    with serving(taught, tmp_path) as address:
        run = grpo(taught, tmp_path, monkeypatch, *served(address, max_steps=3, groups=4, group_size=4, lr=3e-3))
    trained = [record for record in run if record["trained_tokens"]]
    assert len(trained) >= 2
    for record in trained:
        assert record["mismatch_ratio_max"] == pytest.approx(1.0, abs=1e-4)
        assert record["logp_diff_max"] < 1e-4
    last = load_file(tmp_path / "run" / "final" / "model.safetensors")
    carried = load_file(tmp_path / "run" / "sampler" / "model.safetensors")
    assert all(torch.equal(last[name], carried[name]) for name in last)  # the last update went there too
    after = load_file(taught / "best" / "model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)  # the folder that is served is not written to


def refuse_copies(model: torch.nn.Module, memo: Any) -> None:
    raise AssertionError("the model was copied")


def test_adapters_are_merged_on_the_way(taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = GrpoConfig(lora=LoraConfig(rank=2, alpha=4), sampling=SamplingConfig(max_new_tokens=5))
    loaded = prepare_model(str(taught / "best"), config)
    with torch.no_grad():
        for name, parameter in loaded.model.named_parameters():
            if "lora_" in name:
                parameter.add_(0.1)
    before = {name: value.clone() for name, value in loaded.model.state_dict().items()}

    class Noted:
        def reload(self, folder: Path) -> None:
            self.folder = folder

    noted: Any = Noted()
    monkeypatch.setattr(torch.nn.Module, "__deepcopy__", refuse_copies, raising=False)
    weights_to_server(noted, tmp_path / "sampler")(loaded, 0)
    merged = load_model(noted.folder)
    ids = torch.arange(12)[None]
    with torch.no_grad():
        gap = (merged.model(ids).logits - loaded.model(ids).logits).abs().max()
    assert float(gap) < 1e-4
    after = loaded.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("changes", "option", "expected"),
    [
        ({"sampling": SamplingConfig(max_new_tokens=5)}, "timeout", 300),
        ({"sampling": SamplingConfig(max_new_tokens=16_384)}, "timeout", 4_096),  # time for the longest answer to come
        ({}, "concurrency", 256),  # all rows at once: vLLM computes as many as it is given
        ({"batch_size": 8}, "concurrency", 8),
    ],
)
def test_a_server_is_given_time_and_rows(
    taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: Any, option: str, expected: float
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr("gradus.runs.stages.training_stages.HttpSampler", lambda **options: given.update(options))
    server = {"sampler": "vllm", "sampler_url": "http://127.0.0.1:1/v1", "correction": "truncate"}
    served_sampler(str(taught / "best"), GrpoConfig(**{**server, **changes}), tmp_path)
    assert given[option] == expected


@pytest.mark.slow
def test_weights_that_do_not_fit_are_refused_and_the_server_goes_on(taught: Path, tmp_path: Path) -> None:
    spec = lamps()
    lamps_nano(tmp_path / "wider", hidden_size=64, intermediate_size=384)
    loaded = load_model(taught / "best")
    with serving(taught, tmp_path) as address:
        sampling = SamplingConfig(max_new_tokens=5)
        policy = HttpSampler(base_url=address, renderer=loaded.renderer, sampling=sampling, retries=0, api_key=TOKEN)
        for folder, says in ((tmp_path / "wider", "of another shape"), (tmp_path / "nowhere", "0 tensors")):
            with pytest.raises(Exception, match=rf"did not take the new weights: 409: .*{says}"):
                policy.reload(folder)
        episodes = roll_out(spec, policy, [spec.train_task(0)], group_size=2).episodes
        policy.close()
    assert all(episode.failure is None for episode in episodes)
