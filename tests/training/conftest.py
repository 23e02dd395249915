"""Models and sequences that the training tests share."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fakes import echo, lamps

from gradus.core import EnvironmentSpec, Vocabulary
from gradus.policies.local.loading import load_model
from gradus.policies.nano.model import NanoConfig, make_nano

torch.set_num_threads(1)
SMALL = NanoConfig(hidden_size=32, layers=2, heads=2, kv_heads=1, intermediate_size=64, context=512)


def vocabulary(spec: EnvironmentSpec) -> Vocabulary:
    return spec.language.vocabulary()


@pytest.fixture(scope="session")
def echo_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_nano(tmp_path_factory.mktemp("models") / "echo", vocabulary(echo()), SMALL, seed=1)


@pytest.fixture(scope="session")
def lamps_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_nano(tmp_path_factory.mktemp("models") / "lamps", vocabulary(lamps()), SMALL, seed=2)


@pytest.fixture
def loaded(lamps_model: Path):
    return load_model(lamps_model, device="cpu")


@pytest.fixture
def bfloat16_instructions(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Says whether this CPU has instructions for bfloat16, whatever it has."""

    def there(answer: bool) -> None:
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: answer)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: answer)

    return there
