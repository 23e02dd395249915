"""Every recipe and script of examples/ starts, with a Llama of two layers in place of a published model, few tasks and one step."""

import os
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tiny_qwen2 import make_tiny_llama

import gradus

EXAMPLES = Path(__file__).parents[2] / "examples"
# What a file needs beside the packages that the tests are installed with.
NEEDS = {
    "agents/lang_graph.py": "langgraph",
    "agents/openai_agents.py": "agents",
    "agents/pydantic_agent.py": "pydantic_ai",
    "agents/smol_agents.py": "smolagents",
    "published/chain_sum.py": "reasoning_gym",
    "published/chain_sum.toml": "reasoning_gym",
    "published/messages.py": "home_assistant_intents",
    "published/messages.toml": "home_assistant_intents",
}
# These are environments, agents and parts of scripts: importing them is what a run does.
IMPORTED = {"agents/shop_agent.py", "published/asking.py", "published/chain_sum.py", "published/messages.py"}
TOY: Mapping[str, Any] = {
    "audit.enabled": False,
    "teach.episodes": 4,
    "sft.max_steps": 1,
    "sft.batch_size": 2,
    "grpo.max_steps": 1,
    "grpo.groups": 2,
    "grpo.group_size": 2,
    "grpo.validation_every": 0,
    "eval.episodes": 2,
}
# The base is looked at before a run of rows and before one of a world; the others are quick.
PROBED = {"published/sums.toml", "published/shop.toml"}
# Tokens of an answer: enough for a right one, and no more than the recipe's own.
LONGEST = {"published/shop.toml": 28, "published/rhythm.toml": 12}
# Eight bits need bitsandbytes, and vLLM a server.
WITHOUT_A_CARD: Mapping[str, Any] = {
    "environment": f"gsm8k:{Path(__file__).parents[1] / 'data/gsm8k_excerpt.jsonl'}",
    "grpo.sampling.max_new_tokens": 40,  # a right answer has 29
    "grpo.optimizer": "adamw",
    "grpo.sampler": "local",
    "grpo.sampler_url": None,
    "grpo.correction": None,
}


def files(suffix: str) -> list[str]:
    return sorted(str(file.relative_to(EXAMPLES)) for file in EXAMPLES.rglob(f"*{suffix}"))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in place of SmolLM2's file."""
    pages = [
        (EXAMPLES.parent / "src/gradus_worlds" / name / "README.md").read_text(encoding="utf-8")
        for name in ("rhythm", "shop")
    ]
    return make_tiny_llama(tmp_path_factory.mktemp("llama"), context=16384, text=pages)


@pytest.fixture(autouse=True)
def place(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder, and the environment that the scripts read."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"QUICK": "1", "OUT": "run", "SMOLLM2": str(model), "MODEL": str(model)}.items():
        monkeypatch.setenv(name, value)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:  # two files of one name in two folders
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith(str(EXAMPLES)):
            del sys.modules[name]


def skip_without_its_package(name: str) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])


@pytest.mark.parametrize("name", files(".toml"))
def test_a_recipe_runs_all_stages(name: str, model: Path) -> None:
    skip_without_its_package(name)
    settings = {**TOY, "grpo.sampling.max_new_tokens": LONGEST.get(name, 8)}
    if name.startswith("cards/"):
        settings |= WITHOUT_A_CARD
    options: dict[str, Any] = {
        "settings": settings,
        "out": "run",
        "anyway": True,
    }  # a fresh model has nothing to learn from
    if name.startswith(("published/", "cards/")):
        options["model"] = model
    options["quick"] = name not in PROBED
    run = gradus.run(EXAMPLES / name, **options)
    assert run.results["conditions"]


@pytest.mark.parametrize("name", files(".py"))
def test_a_script_runs(name: str, monkeypatch: pytest.MonkeyPatch, toy_calls: None) -> None:
    skip_without_its_package(name)
    monkeypatch.setattr(sys, "argv", [name, "sums"])  # prompts.py takes the name of a set
    if name == "published/smollm2.py":
        monkeypatch.setattr(sys, "argv", [name, os.environ["SMOLLM2"]])
    monkeypatch.syspath_prepend(str((EXAMPLES / name).parent))
    names = runpy.run_path(str(EXAMPLES / name), run_name="imported" if name in IMPORTED else "__main__")
    if callable(names.get("spec")):
        episodes = gradus.roll_out(f"{EXAMPLES / name}:spec", "teacher", episodes=1).episodes
        assert all(episode.reward is not None for episode in episodes)


@pytest.fixture
def toy_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls of the scripts at toy size."""

    def at_most(name: str, **limits: int) -> None:
        real: Callable[..., Any] = getattr(gradus, name)

        def call(*values: Any, **options: Any) -> Any:
            return real(*values, **{**options, **limits})

        monkeypatch.setattr(gradus, name, call)

    at_most("audit", episodes=4, budget=0)
    at_most("roll_out", episodes=3)
    at_most("evaluate", episodes=3)
    real_train = gradus.train

    def train(*values: Any, steps: int = 0, settings: Mapping[str, Any] | None = None, **options: Any) -> Any:
        return real_train(
            *values,
            steps=2,  # a recipe of two stages needs two
            settings={**(settings or {}), **TOY, "grpo.max_steps": 2},
            **{**options, "quick": True},
        )

    monkeypatch.setattr(gradus, "train", train)
