"""Paths in a recipe are relative to its own folder, wherever the command is typed; `gradus init` writes them so."""

import json
import tomllib
from pathlib import Path

import pytest

from gradus.commands import init
from gradus.core import ConfigError
from gradus.rewards import choose_rewards, find_reward
from gradus.runs.job import resolve
from gradus.runs.recipe.load import load_recipe

ROWS = [{"question": f"{n} + 1", "answer": str(n + 1)} for n in range(80)]


@pytest.fixture
def places(tmp_path, monkeypatch):
    """The folder of the recipe, beside the current one, in which other files have the same names."""
    monkeypatch.chdir(tmp_path)
    for name, pays in ((".", 1.0), ("recipes", 2.0)):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "pay.py").write_text(f"def pay(completions, **_): return [{pays}] * len(completions)\n")
        (folder / "schema.json").write_text(json.dumps({"type": "string" if name == "." else "number"}))
        _write(folder / "rows.jsonl", ROWS)
    return Path("recipes")


def _write(path: Path, rows) -> None:
    path.write_text("\n".join(map(json.dumps, rows)))


@pytest.mark.parametrize(
    "reward", ['"pay.py:pay=0.5"', '["pay.py:pay", 0.5]', '{function = "pay.py:pay", weight = 0.5}']
)
def test_a_reward_beside_the_recipe_is_found_in_every_form(places, reward):
    """Two of the three forms took the file of that name in the current folder, and said nothing."""
    (places / "r.toml").write_text(f'environment = "jsonl:rows.jsonl"\nrewards = [{reward}]\n')
    (config,) = load_recipe(None, path=places / "r.toml").rewards
    assert find_reward(config.function)(completions=["x"]) == [2.0]
    assert config.weight == 0.5


def test_two_spellings_of_one_reward_are_one_setting(places):
    """A run as `mine:exact`, as Python names it, was refused to go on as `mine.py:exact`."""
    spelled = [load_recipe("arithmetic", rewards=choose_rewards([name])).rewards for name in ("pay:pay", "pay.py:pay")]
    assert spelled[0] == spelled[1]
    assert find_reward(spelled[0][0].function)(completions=["x"]) == [1.0]


@pytest.mark.parametrize("source", ["rows.jsonl?{}", "jsonl:rows.jsonl?{}", "gsm8k:rows.jsonl?{}", "gsm8k:set?{}"])
def test_init_writes_every_path_of_a_data_set_from_the_recipe(places, source):
    Path("set").mkdir()
    _write(Path("set/train.jsonl"), ROWS)
    Path("more").mkdir()
    _write(Path("more/held out.jsonl"), ROWS[:9])
    Path("sys.txt").write_text("Be brief.")
    init(source.format("test=more/held%20out.jsonl&system=sys.txt"), out=places / "r.toml")
    named = tomllib.loads((places / "r.toml").read_text())["environment"]
    assert named.endswith("?test=../more/held%20out.jsonl&system=../sys.txt")
    tasks = resolve(load_recipe(None, path=places / "r.toml")).environment.data_set
    assert (len(tasks.splits["held-out"]), tasks.system_prompt) == (9, "Be brief.")


def test_a_recipe_below_works_from_every_folder(places, monkeypatch):
    Path("doors.py").write_text(
        "class Doors:\n    actions = ['1', '2']\n    def reset(self, seed): return 'go'\n"
        "    def step(self, action): return 'end', 1.0, True\n"
    )
    init("doors.py", out=places / "r.toml")
    assert resolve(load_recipe(None, path=places / "r.toml")).environment.name == "doors"
    monkeypatch.chdir(places)
    assert resolve(load_recipe(None, path=Path("r.toml"))).environment.name == "doors"


@pytest.mark.parametrize(
    ("text", "says"), [("lm = 3", "lm and quick are tables"), ("grpo = 3", "grpo is a value, not a table")]
)
def test_a_section_that_is_no_table_is_named(tmp_path: Path, text: str, says: str):
    """Each was a TypeError or an AttributeError."""
    (tmp_path / "mine.toml").write_text(f'environment = "arithmetic"\n{text}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=says):
        load_recipe(None, path=tmp_path / "mine.toml", changes=["model.path=somebody/model"], quick=True)
