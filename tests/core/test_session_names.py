"""Objects of a session have names."""

from dataclasses import replace

import pytest

import gradus
from gradus import environments
from gradus.commands.environments import as_name
from gradus.core import ConfigError
from gradus.environments import registry


@pytest.fixture(autouse=True)
def _other_tests_see_no_names_of_these(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))


@pytest.mark.parametrize("name", ["jsonl", "arithmetic"])
def test_an_environment_of_ones_own_does_not_replace_one_of_gradus(name):
    mine = replace(gradus.load_environment("arithmetic"), name=name, summary="mine")
    with pytest.raises(ConfigError, match="comes with Gradus"):
        as_name(mine)
    assert as_name(replace(mine, name="mine")) == "mine"
    assert environments.load("mine").summary == "mine"
    assert environments.load("arithmetic").summary != "mine"
