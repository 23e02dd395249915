"""What the settings of a run come to, and which are refused."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from fakes import lamps
from pydantic import BaseModel

from gradus.core import ConfigError
from gradus.policies.local.sampling import SamplingConfig
from gradus.rewards.grading import reweigh
from gradus.runs.recipe.record import Recipe
from gradus.training.config import GrpoConfig
from gradus.training.grpo import train_grpo
from gradus.training.lesson_config import SftConfig
from gradus.training.run.folder import RunFolder
from gradus.training.run.options import GrpoOptions

SAMPLING = SamplingConfig(max_new_tokens=3, grammar=True)
BY_TURN = lamps().grader()
AT_END = replace(BY_TURN, name="at-end", per_turn=False)


def test_credit_follows_the_grader_unless_the_algorithm_says_otherwise() -> None:
    assert BY_TURN.per_turn
    assert GrpoConfig().resolved(BY_TURN).credit == "turn"
    assert GrpoConfig().resolved(AT_END).credit == "episode"
    assert GrpoConfig(algorithm="grpo").resolved(BY_TURN).credit == "episode"
    assert GrpoConfig(credit="span").resolved(AT_END).credit == "span"
    with pytest.raises(ConfigError, match="informing has no effect with credit by turn"):
        GrpoConfig(informing=False, credit="turn").resolved(AT_END)
    with pytest.raises(ConfigError, match="discount has no effect with credit by episode, which suits grader 'at-end'"):
        GrpoConfig(discount=0.9).resolved(AT_END)
    with pytest.raises(ConfigError, match=r"observations is about what .* has no effect in episodes of one turn"):
        GrpoConfig(observations=0.1, max_turns=1).resolved(AT_END)


def test_dapo_brings_dynamic_sampling_with_its_name() -> None:
    resolved = GrpoConfig(algorithm="dapo").resolved(AT_END)
    assert resolved.dynamic_sampling == 10
    assert "dynamic_sampling 10" in resolved.objective()
    assert "add the reward length" in resolved.objective()
    assert GrpoConfig(algorithm="dapo", dynamic_sampling=0).resolved(AT_END).dynamic_sampling == 0
    assert GrpoConfig(algorithm="grpo").resolved(AT_END).dynamic_sampling == 0


def test_the_entropy_bonus_falls_by_its_schedule() -> None:
    config = GrpoConfig(max_steps=4, entropy_coef=0.4, entropy_schedule="linear")
    assert [config.at_step(step).entropy_coef for step in (1, 2, 4)] == pytest.approx([0.4, 0.3, 0.1])
    steady = GrpoConfig(max_steps=4, entropy_coef=0.4)
    assert steady.at_step(4) is steady
    with pytest.raises(ValueError, match="entropy_schedule, entropy_spans has no effect while entropy_coef is 0"):
        GrpoConfig(entropy_schedule="linear", entropy_spans={"number": 1.0})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"muon_lr": 0.02}, "muon_lr has no effect with optimizer = 'adamw'"),
        ({"schedule": "constant", "min_lr_ratio": 0.1}, "min_lr_ratio has no effect with schedule = 'constant'"),
    ],
)
@pytest.mark.parametrize("config", [SftConfig, GrpoConfig])
def test_settings_of_another_optimizer_or_schedule_are_refused(
    config: type[BaseModel], settings: dict, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        config(**settings)


def test_a_name_brings_its_paper_and_settings_override_it() -> None:
    paper = GrpoConfig(algorithm="gspo").resolved(BY_TURN)
    assert (paper.scale, paper.clip_low, paper.clip_high) == ("group", 3e-4, 4e-4)
    mine = GrpoConfig(algorithm="gspo", scale="batch").resolved(BY_TURN)
    assert mine.objective() == "algorithm gspo · credit episode · scale batch · clip_low 0.0003 · clip_high 0.0004"


def test_weights_have_effect_in_gdpo(lamps_model: Path, tmp_path: Path) -> None:
    """GDPO scales each component on its own; weights that were applied before would be scaled away again."""
    grader = BY_TURN
    assert len(grader.weights) > 1
    first = next(iter(grader.weights))
    norms = []
    for number, factor in enumerate((1.0, 5.0)):
        config = GrpoConfig(
            algorithm="gdpo", max_steps=1, groups=4, group_size=4, validation_every=0, threads=1, device="cpu",
            sampling=SAMPLING, seed=3,
        )  # fmt: skip
        weighted = reweigh(grader, {first: factor * grader.weights[first]})
        train_grpo(
            lamps_model, lamps(), config, tmp_path / str(number), options=GrpoOptions(grader=weighted, live=False)
        )
        (record,) = [each for each in RunFolder(tmp_path / str(number)).records() if each["kind"] == "step"]
        norms.append(record["grad_norm"])
    assert norms[0] != pytest.approx(norms[1], rel=1e-3)


def test_every_key_of_a_recipe_says_what_it_does():
    def keys(model, way=""):
        for name, field in model.model_fields.items():
            yield f"{way}{name}", field.description
            for kind in (field.annotation, *get_args(field.annotation)):
                if isinstance(kind, type) and issubclass(kind, BaseModel):
                    yield from keys(kind, f"{way}{name}.")

    described = dict(keys(Recipe))
    assert len(described) > 120
    sections = {"model", "audit", "teach", "sft", "grpo", "eval", "stepping", "prices"}
    assert [key for key, text in described.items() if not text and key not in sections] == []
