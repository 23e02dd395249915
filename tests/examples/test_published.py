"""The sets for a published model: no held-out fact is trained on, and the base can be asked in another way."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

import gradus
from gradus.core import EnvironmentSpec

FOLDER = Path(__file__).parents[2] / "examples" / "published"


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in ("smollm2", "asking", "sums"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return str(FOLDER / "sums.py:spec")


def load(name: str) -> ModuleType:
    return __import__(name)


def facts(spec: EnvironmentSpec, split: str) -> set[frozenset[str]]:
    asked: list[frozenset[str]] = []
    for seed in range(spec.data_set.size(split)):
        environment = spec.make()
        environment.reset(seed=seed, split=split)
        asked.append(frozenset(environment.outcome()["columns"]["question"].removesuffix(" =").split(" + ")))
    return set(asked)


def test_no_held_out_sum_is_trained_on_in_either_order(published: str) -> None:
    spec = gradus.load_environment(published)
    assert len(facts(spec, "held-out")) == 60
    assert not facts(spec, "held-out") & facts(spec, "train")


def test_both_orders_of_a_sum_are_one_fact_for_an_interval(published: str) -> None:
    spec = gradus.load_environment(published)
    episodes = gradus.roll_out(spec, "gold", episodes=114, condition="held-out").episodes
    cluster = spec.conditions["held-out"].cluster
    assert all(episode.outcome["correct"] == 1.0 for episode in episodes)
    assert len({cluster(episode) for episode in episodes}) == 60


def test_the_base_can_be_asked_with_examples_as_earlier_turns(published: str) -> None:
    asking = load("asking")
    spec = gradus.load_environment(published)
    prompt = asking.Prompt(system="Add.", question="What is {question}?", shots=[("1 + 1", "2")])
    said = [(each.role, each.content) for each in prompt.messages("3 + 4")]
    assert said == [("user", "What is 1 + 1?"), ("assistant", "2"), ("user", "What is 3 + 4?")]
    echo = asking.Prompted(name="echo", inner=gradus.FunctionPolicy("echo", lambda seen, _: seen.text), prompt=prompt)
    (episode,) = gradus.roll_out(spec, echo, episodes=1).episodes
    assert episode.turns[0].action == f"What is {episode.turns[0].observation}?"


def test_a_file_with_another_checksum_is_refused(
    published: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    monkeypatch.setenv("SMOLLM2", str(file))
    with pytest.raises(SystemExit, match="expected b179"):
        load("smollm2").model_file()
