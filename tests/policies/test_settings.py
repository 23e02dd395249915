"""What a model was trained with is stored beside it and used wherever it answers; what is asked for changes it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import echo

from gradus.core import ConfigError
from gradus.interop.serving.requests import ChatRequest
from gradus.interop.serving.text import begin_chat, chat_loop
from gradus.policies.local.folders import is_hub_name
from gradus.policies.local.loading import load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.local.settings import ModelSettings, write_settings
from gradus.runs.policies import make_policy

TRAINED = ModelSettings(
    environment="echo", system_prompt="w7 w8 w9", sampling=SamplingConfig(temperature=0.8, max_new_tokens=100)
)


@pytest.fixture
def folder(model_folder: Callable[[str], Path], tmp_path: Path) -> Path:
    copy = Path(shutil.copytree(model_folder("llama"), tmp_path / "model"))
    write_settings(copy, TRAINED)
    return copy


def sampling(name: Path, **changes: float) -> SamplingConfig:
    policy = make_policy(echo(), str(name), **changes)
    assert isinstance(policy, LocalPolicy)
    return policy.sampling


def test_a_model_samples_as_it_was_trained(folder: Path):
    """Evaluation and teaching cut every model at 64 tokens, whatever it was trained with, and nothing could change it."""
    assert sampling(folder) == TRAINED.sampling
    assert sampling(folder, max_new_tokens=7) == SamplingConfig(temperature=0.8, max_new_tokens=7)
    assert sampling(folder, temperature=0) == SamplingConfig(greedy=True, max_new_tokens=100)
    assert sampling(folder, temperature=0.5, max_new_tokens=9) == SamplingConfig(temperature=0.5, max_new_tokens=9)


def test_a_conversation_begins_with_the_system_prompt_of_training(folder: Path):
    loaded = load_model(folder)

    def prompt(*system: dict[str, str]) -> tuple[int, ...]:
        request = ChatRequest(messages=[*system, {"role": "user", "content": "w1"}])
        return begin_chat(loaded, *request.read())[1].prompt

    told = prompt({"role": "system", "content": "w7 w8 w9"})
    assert prompt() == told
    assert prompt({"role": "system", "content": "w5"}) != told, "one's own system prompt stays"


def test_chat_answers_with_the_sampling_of_training(folder: Path):
    write_settings(folder, TRAINED.model_copy(update={"sampling": SamplingConfig(max_new_tokens=2, grammar=True)}))
    loaded = load_model(folder)

    def answer(sampling: SamplingConfig | None) -> str:
        questions = iter(["w30 w31", None])
        said = chat_loop(loaded, ask=lambda: next(questions), show=lambda _: None, sampling=sampling, seed=3)
        return said[-1]["content"]

    assert answer(None) == answer(SamplingConfig(max_new_tokens=256)) != answer(SamplingConfig(max_new_tokens=9))


def test_a_hub_name_is_a_policy_and_anything_else_is_not(tmp_path: Path):
    assert is_hub_name("somebody/some-model")
    assert not any(is_hub_name(name) for name in ("gold", "./a/b", "a/b/c", str(tmp_path), "src/gradus"))
    with pytest.raises(ConfigError, match="unknown policy"):
        make_policy(echo(), "golden")
