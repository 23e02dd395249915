"""Every architecture through every part: it works, or is refused in one sentence before anything is spent."""

from contextlib import suppress
from pathlib import Path

import pytest
import torch
from fakes import echo
from model_matrix import ARCHITECTURES, make_model
from transformers import AutoModelForCausalLM

from gradus.core import GradusError
from gradus.evidence.evaluation import evaluate
from gradus.policies.local.export import export_model, logp_diff
from gradus.policies.local.loading import load_model
from gradus.rollouts import roll_out
from gradus.runs.forecast.model_probe import check_model
from gradus.runs.policies import make_policy
from gradus.training.config import GrpoConfig
from gradus.training.grpo import train_grpo
from gradus.training.lesson_config import SftConfig
from gradus.training.run.options import GrpoOptions, RunOptions
from gradus.training.sft import train_sft
from gradus.training.trainer_config import LoraConfig

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

STEP = {"groups": 2, "group_size": 2, "validation_every": 0, "store_every": 0, "sampling": {"max_new_tokens": 4}}


def grpo(model: Path, folder: Path, **changes: object) -> Path:
    config = GrpoConfig.model_validate({**STEP, "max_steps": 1, **changes})
    return train_grpo(model, echo(), config, folder, options=GrpoOptions(live=False)).final


def sft(model: Path, folder: Path) -> Path:
    tasks = [echo().train_task(number) for number in range(4)]
    taught = roll_out(echo(), echo().policy("gold"), tasks).episodes
    config = SftConfig(max_steps=1, batch_size=4, validation_share=0.0)
    return train_sft(model, taught, config, folder, options=RunOptions(live=False)).final


def resumed(model: Path, folder: Path) -> None:
    """A run that was stopped behind its first step ends with the weights of one that was not."""

    class Stop(Exception):
        pass

    def stop(record: object) -> None:
        raise Stop

    whole = grpo(model, folder / "whole", max_steps=2, checkpoint_every=1)
    config = GrpoConfig.model_validate({**STEP, "max_steps": 2, "checkpoint_every": 1})
    with pytest.raises(Stop):
        train_grpo(model, echo(), config, folder / "broken", options=GrpoOptions(live=False, on_step=stop))
    again = train_grpo(model, echo(), config, folder / "broken", resume=True, options=GrpoOptions(live=False)).final
    one, other = (load_model(path).model.state_dict() for path in (whole, again))
    assert all(torch.equal(one[name], other[name]) for name in one)


def exported(trained: Path, folder: Path) -> None:
    """transformers alone loads the exported folder and computes what the checkpoint computes."""
    ids = torch.tensor([[5, 9, 20, 30, 31, 7, 8]])
    plain = AutoModelForCausalLM.from_pretrained(export_model(trained, folder).path).eval()
    with torch.inference_mode():
        assert logp_diff(plain(input_ids=ids).logits, load_model(trained).model(input_ids=ids).logits) < 1e-4


def evaluated(folder: Path) -> None:
    result = evaluate(echo(), {"model": make_policy(echo(), str(folder))}, episodes=2)
    assert all(not episode.failure for each in result.episodes.values() for many in each.values() for episode in many)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_works_or_is_refused(name: str, tmp_path: Path) -> None:
    """A model that passes the probe is trained; adapters, resuming, export and evaluation may be refused."""
    model = make_model(name, tmp_path / "model")
    try:
        check_model(load_model(model))
    except GradusError as error:
        pytest.skip(f"refused: {error}")
    sft(model, tmp_path / "sft")
    trained = grpo(model, tmp_path / "grpo")
    with suppress(GradusError):
        grpo(model, tmp_path / "lora", lora=LoraConfig(rank=2).model_dump())
    with suppress(GradusError):
        resumed(model, tmp_path)
    with suppress(GradusError):
        exported(trained, tmp_path / "out")
        evaluated(tmp_path / "out")
