"""A run is recognized by what its data and code say, not by their names."""

import functools
import json
from pathlib import Path

import pytest
from rich.console import Console

import gradus
from gradus import environments
from gradus.api.training import make_recipe
from gradus.core import ConfigError
from gradus.pipeline.run import do_stages
from gradus.pipeline.sources import code_digest
from gradus.pipeline.stages import RunContext, section_of

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


def in_memory(*, answer="a", value=1.0, number=1.0):
    space = {}
    exec(DOORS.format(number), space)
    return {"rows": (rows(answer), [constant(value)]), "class": (space["Doors"], [])}


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


def test_a_run_without_digests_and_a_file_of_another_form_are_no_change(tmp_path: Path):
    given = in_files(tmp_path)["rows"]
    stages(tmp_path / "run", *given)
    in_files(tmp_path, beside="\n\n")
    assert stages(tmp_path / "run", *given) == []
    state = json.loads((tmp_path / "run" / "state.json").read_text())
    for stage in state["stages"].values():
        del stage["sources"]
    (tmp_path / "run" / "state.json").write_text(json.dumps(state))
    assert stages(tmp_path / "run", *in_files(tmp_path, answer="b", value=2)["rows"]) == []


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


def _compiled(text):
    space = {}
    exec(text, space)  # functions without a source
    return space["f"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (constant(1.0), constant(2.0)),
        (functools.partial(constant, 1.0), functools.partial(constant, value=1.0)),
        (Scorer(), constant(1.0)),
        (_compiled("def f(c): return 'x' in {'a', 'b'}"), _compiled("def f(c): return 'x' in {'a', 'c'}")),
        (
            _compiled("def f(c): return [len(each) for each in c]"),
            _compiled("def f(c): return [abs(each) for each in c]"),
        ),
    ],
)
def test_code_is_told_apart_by_what_it_says_and_encloses(one, other):
    assert code_digest([one]) == code_digest([one]) != code_digest([other])
    assert code_digest([Scorer()]) == code_digest([Scorer().method])
    assert code_digest([gradus.load_environment]) is None, "another version of Gradus is no change"


def test_rows_are_read_once_to_tell_how_the_template_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stage asks; with a pretrained model each read all rows again."""
    recipe = make_recipe("arithmetic", settings=[f"model.path={tmp_path}"])
    read: list[str] = []
    load = environments.load
    monkeypatch.setattr("gradus.environments.load", lambda name: read.append(name) or load(name))
    assert recipe.template() == recipe.template()
    assert recipe.template()["keep_history"]
    assert read == ["arithmetic"]
