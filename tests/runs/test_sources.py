"""A run is recognized by what its data and code say, not by their names."""

import dataclasses
import functools
import json
from pathlib import Path

import pytest
from rich.console import Console

import gradus
from gradus.algorithms import find_algorithm, register_algorithm, registry
from gradus.commands.training import make_recipe
from gradus.core import ConfigError
from gradus.runs.stages.context import RunContext, section_of
from gradus.runs.stages.runner import do_stages
from gradus.runs.stages.seeds import known_elsewhere
from gradus.runs.stages.sources import code_digest

STAGES = {"teach": section_of("teach"), "grpo": section_of("rewards")}
DOORS = (
    "class Doors:\n    def reset(self, seed): return 'a door'\n    def step(self, action): return 'open', {}, True\n"
)


def rows(answer="a"):
    return [{"question": f"Say {n}", "answer": answer} for n in range(60)]


def constant(value):
    def score(completions, **_):
        return [value] * len(completions)

    return score


def stages(folder, data, rewards=(), *, redo=False):
    """The stages that were done; they leave nothing but their record."""
    recipe = make_recipe(data, rewards=rewards, settings={"grpo.max_steps": 1, "grpo.groups": 2})
    run = RunContext(recipe, folder, redo=redo, console=Console(quiet=True))
    done = []
    folder.mkdir(exist_ok=True)
    for name in STAGES:
        (folder / name).mkdir(exist_ok=True)

    def stub(name):
        return lambda run, cost: done.append(name)

    do_stages(run, {name: (stub(name), select) for name, select in STAGES.items()})
    return done


def in_files(folder, *, answer="a", value=1, number=1.0, beside=""):
    """Rows, a reward and an environment as files."""
    data, reward, doors = folder / "e.jsonl", folder / "mine.py", folder / "doors.py"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows(answer)) + beside)
    reward.write_text(f"def rew(completions, **kw): return [{value}.0] * len(completions)\n")
    doors.write_text(DOORS.format(number))
    return {"rows": (str(data), [f"{reward}:rew"]), "class": (str(doors), [])}


@functools.cache
def doors(number):
    space = {}
    exec(DOORS.format(number), space)
    return space["Doors"]


def in_memory(*, answer="a", value=1.0, number=1.0):
    return {"rows": (rows(answer), [constant(value)]), "class": (doors(number), [])}


@pytest.mark.parametrize("where", ["files", "memory"])
@pytest.mark.parametrize(
    ("kind", "change", "says"),
    [
        ("rows", {"answer": "b"}, "'teach' made with other rows"),
        ("rows", {"value": 9}, r"'grpo' made with other code of (mine.py|score)"),
        ("class", {"number": 7.5}, r"'teach' made with other code of doors"),
    ],
)
def test_other_rows_or_code_are_refused_and_redo_does_them_again(tmp_path: Path, where, kind, change, says):
    make = functools.partial(in_files, tmp_path) if where == "files" else in_memory
    assert stages(tmp_path / "run", *make()[kind]) == ["teach", "grpo"]
    assert stages(tmp_path / "run", *make()[kind]) == []
    with pytest.raises(ConfigError, match=says):
        stages(tmp_path / "run", *make(**change)[kind])
    assert stages(tmp_path / "run", *make(**change)[kind], redo=True)[-1] == "grpo"
    assert stages(tmp_path / "run", *make(**change)[kind]) == []


def test_a_file_of_another_form_is_no_change(tmp_path: Path):
    given = in_files(tmp_path)["rows"]
    stages(tmp_path / "run", *given)
    in_files(tmp_path, beside="\n\n")
    assert stages(tmp_path / "run", *given) == []


def test_a_changed_module_that_a_reward_imports_is_noticed(tmp_path: Path):
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / "__init__.py").write_text("")
    (parts / "inner.py").write_text("VALUE = 1.0\n")
    (parts / "outer.py").write_text("import json\nfrom . import inner\n")
    (tmp_path / "mine.py").write_text(
        "from parts.outer import inner\ndef rew(completions, **kw): return [inner.VALUE] * len(completions)\n"
    )
    given = rows(), [f"{tmp_path / 'mine.py'}:rew"]
    stages(tmp_path / "run", *given)
    assert stages(tmp_path / "run", *given) == []
    (parts / "inner.py").write_text("VALUE = 2.0\n")
    with pytest.raises(ConfigError, match=r"other code of parts/inner.py"):
        stages(tmp_path / "run", *given)


class Scorer:
    def __call__(self, completions, **_):
        return [0.0 for _ in completions]

    def method(self, completions, **_):
        return self(completions)


def _without_text(value):
    space = {}
    exec(f"def f(rewards, **_): return {value} * rewards.values", space)
    return space["f"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (constant(1.0), constant(2.0)),
        (functools.partial(constant, 1.0), functools.partial(constant, value=1.0)),
        (Scorer(), constant(1.0)),
        (_without_text(1), _without_text(1)),
    ],
)
def test_code_is_told_apart_by_its_text_and_what_it_encloses(one, other):
    assert code_digest([one]) == code_digest([one]) != code_digest([other])
    assert code_digest([Scorer()]) == code_digest([Scorer().method])
    assert code_digest([gradus.load_environment]) is None, "another version of Gradus is no change"


def test_another_teacher_or_other_tasks_in_the_same_environment_are_noticed(tmp_path: Path):
    space = {}
    exec(DOORS.format(1), space)
    spec = dataclasses.replace(gradus.load_environment(space["Doors"]), name="doors")
    other = gradus.FunctionPolicy("random", lambda seen, script: "b")
    assert stages(tmp_path / "run", spec) == ["teach", "grpo"]
    for change in ({"policies": {**spec.policies, "random": lambda _: other}}, {"max_turns": 3}):
        with pytest.raises(ConfigError, match="other code of doors"):
            stages(tmp_path / "run", dataclasses.replace(spec, **change))
    assert stages(tmp_path / "run", spec) == []


def scaled(rewards, *, baseline, scale, factor):
    return factor * rewards.values


def test_an_algorithm_of_this_session_is_known_by_its_code_and_trains_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(registry, "_ALGORITHMS", dict(registry._ALGORITHMS))

    def run(value, **others):
        advantage = functools.partial(scaled, factor=value)
        register_algorithm("mine", dataclasses.replace(find_algorithm("grpo"), advantage=advantage, **others))
        recipe = make_recipe("arithmetic", settings={"grpo.algorithm": "mine"})
        assert not known_elsewhere(recipe)
        context = RunContext(recipe, tmp_path, redo=False, console=Console(quiet=True))
        return [context.made_from(section_of(*names)).sources for names in (("grpo",), ())]

    assert run(1.0) == run(1.0)
    assert run(1.0)[0] != run(2.0)[0] != run(2.0, clip=(0.1, 0.1))[0]
    assert run(1.0)[1] == {}
    assert known_elsewhere(make_recipe("arithmetic"))
