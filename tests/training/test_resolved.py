"""Every value of a run, and where it came from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from fakes import lamps
from pydantic import BaseModel

from gradus.core import ConfigError
from gradus.policies.local.sampling import SamplingConfig
from gradus.rewards.grading import reweigh
from gradus.runs.recipe.load import load_recipe
from gradus.runs.recipe.record import Recipe
from gradus.training.config import GrpoConfig
from gradus.training.grpo import train_grpo
from gradus.training.lesson_config import SftConfig
from gradus.training.run.folder import RunFolder
from gradus.training.run.options import GrpoOptions
from gradus.training.run.resolved import resolve

SAMPLING = SamplingConfig(max_new_tokens=3, grammar=True)
BY_TURN = lamps().grader()
AT_END = replace(BY_TURN, name="at-end", per_turn=False)


def test_credit_follows_the_grader_unless_the_algorithm_says_otherwise() -> None:
    assert BY_TURN.per_turn
    assert resolve(GrpoConfig(), BY_TURN).config.credit == "turn"
    assert resolve(GrpoConfig(), AT_END).config.credit == "episode"
    assert resolve(GrpoConfig(algorithm="grpo"), BY_TURN).config.credit == "episode"
    assert resolve(GrpoConfig(credit="span"), AT_END).config.credit == "span"
    with pytest.raises(ConfigError, match="informing is about terms of spans and has no effect with credit by turn"):
        resolve(GrpoConfig(informing=False, credit="turn"), AT_END)
    with pytest.raises(ConfigError, match="discount is per turn and has no effect here: grader 'at-end'"):
        resolve(GrpoConfig(discount=0.9), AT_END)
    with pytest.raises(ConfigError, match=r"observations is about what .* has no effect in episodes of one turn"):
        resolve(GrpoConfig(observations=0.1, max_turns=1), AT_END)


def test_dapo_brings_dynamic_sampling_with_its_name() -> None:
    resolved = resolve(GrpoConfig(algorithm="dapo", max_turns=2, sampling=SamplingConfig(max_new_tokens=50)), AT_END)
    assert resolved.config.dynamic_sampling == 10
    assert "dynamic_sampling 10 (algorithm dapo)" in resolved.text()
    assert "add the reward length" in resolved.text()
    own = resolve(GrpoConfig(algorithm="dapo", dynamic_sampling=0), AT_END).config
    assert own.dynamic_sampling == 0
    plain = resolve(GrpoConfig(algorithm="grpo"), AT_END).config
    assert plain.dynamic_sampling == 0


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
    paper = resolve(GrpoConfig(algorithm="gspo"), BY_TURN)
    assert (paper.config.scale, paper.config.clip_low, paper.config.clip_high) == ("group", 3e-4, 4e-4)
    assert paper.sources["scale"] == "algorithm gspo"
    mine = resolve(
        GrpoConfig(algorithm="gspo", scale="batch"), BY_TURN, {"scale": "command line", "algorithm": "recipe"}
    )
    assert mine.config.scale == "batch"
    assert mine.text() == (
        "algorithm gspo (recipe) · credit episode (algorithm gspo) · scale batch (command line) · "
        "clip_low 0.0003 (algorithm gspo) · clip_high 0.0004 (algorithm gspo)"
    )


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


def test_a_recipe_knows_what_was_typed() -> None:
    recipe = load_recipe("rhythm", changes=["grpo.groups=4", "grpo.sampling.max_new_tokens=9"])
    sources = recipe.grpo_sources()
    assert (sources["groups"], sources["sampling"], sources["credit"]) == ("command line", "command line", "recipe")
    assert "epochs" not in sources


def test_every_key_of_a_recipe_says_what_it_does():
    def keys(model, way=""):
        for name, field in model.model_fields.items():
            yield f"{way}{name}", field.description
            for kind in (field.annotation, *get_args(field.annotation)):
                if isinstance(kind, type) and issubclass(kind, BaseModel):
                    yield from keys(kind, f"{way}{name}.")

    described = dict(keys(Recipe))
    assert len(described) > 120
    sections = {"model", "audit", "teach", "sft", "grpo", "eval", "stepping"}
    assert [key for key, text in described.items() if not text and key not in sections] == []
