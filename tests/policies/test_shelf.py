"""An evaluation holds one model, however many policies it compares."""

import gc
import shutil
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import echo

import gradus
from gradus.core import ConfigError
from gradus.policies.local import loading
from gradus.policies.local.loading import LoadedModel


def test_models_are_loaded_one_after_another(
    model_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folders = [Path(shutil.copytree(model_folder("llama"), tmp_path / name)) for name in ("a", "b")]
    load, alive = loading.load_model, weakref.WeakSet[Any]()
    counts: list[int] = []

    def noted(name: str, **options: Any) -> LoadedModel:
        for _ in range(100):  # a thread that read its weights may let go of a model a moment later
            if not alive:
                break
            time.sleep(0.05)
            gc.collect()
        counts.append(len(alive))
        loaded = load(name, **options)
        alive.add(loaded.model)
        return loaded

    monkeypatch.setattr(loading, "load_model", noted)
    spec = echo()
    conditions = list(spec.conditions)[:2]
    result = gradus.evaluate(folders, env=spec, episodes=3, conditions=conditions, max_new_tokens=3)
    assert counts == [0, 0]  # of other models when one is loaded; each is loaded once
    document = result.to_json()
    assert all(len(document["conditions"][name]["policies"]) == 2 for name in conditions)
    rewards = [figures["reward"]["mean"] for figures in document["conditions"][conditions[0]]["policies"].values()]
    assert rewards[0] == rewards[1]  # copies of one model


def test_what_is_no_model_fails_before_others_are_evaluated(model_folder: Callable[[str], Path], tmp_path: Path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "adapter_config.json").write_text('{"base_model_name_or_path": "nowhere/at/all"}')
    with pytest.raises(ConfigError, match="nowhere/at/all"):
        gradus.evaluate([model_folder("llama"), broken], env=echo(), episodes=2)
