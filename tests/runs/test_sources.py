"""A run is recognized by what its data and code say, not by their names."""

import functools
import json
from pathlib import Path

import pytest
from rich.console import Console

from gradus.commands.training import make_job
from gradus.core import ConfigError
from gradus.runs.sources import code_digest
from gradus.runs.stages.context import RunContext
from gradus.runs.stages.runner import do_stages

STAGES = {"teach": ("teach",), "grpo": ("rewards",)}
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
    job = make_job(data, rewards=rewards, settings={"grpo.max_steps": 1, "grpo.groups": 2})
    run = RunContext(job, folder, redo=redo, console=Console(quiet=True))
    done = []
    folder.mkdir(exist_ok=True)
    for name in STAGES:
        (folder / name).mkdir(exist_ok=True)

    def stub(name):
        return lambda run, cost: done.append(name)

    do_stages(run, {name: (stub(name), sections) for name, sections in STAGES.items()})
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
def test_other_rows_are_refused_and_redo_does_them_again(tmp_path: Path, where):
    make = functools.partial(in_files, tmp_path) if where == "files" else in_memory
    assert stages(tmp_path / "run", *make()["rows"]) == ["teach", "grpo"]
    assert stages(tmp_path / "run", *make()["rows"]) == []
    with pytest.raises(ConfigError, match="'teach' made with other rows"):
        stages(tmp_path / "run", *make(answer="b")["rows"])
    assert stages(tmp_path / "run", *make(answer="b")["rows"], redo=True)[-1] == "grpo"
    assert stages(tmp_path / "run", *make(answer="b")["rows"]) == []


@pytest.mark.parametrize(
    ("kind", "change", "says"),
    [
        ("rows", {"value": 9}, "grpo: code of mine.py has changed since; --redo does the stage again"),
        ("class", {"number": 7.5}, "teach: code of doors.py has changed since"),
    ],
)
def test_other_code_is_said_and_redo_does_the_stage_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind, change, says
):
    assert stages(tmp_path / "run", *in_files(tmp_path)[kind]) == ["teach", "grpo"]
    assert stages(tmp_path / "run", *in_files(tmp_path)[kind]) == []
    assert "has changed" not in capsys.readouterr().err
    assert stages(tmp_path / "run", *in_files(tmp_path, **change)[kind]) == []
    assert says in capsys.readouterr().err
    assert stages(tmp_path / "run", *in_files(tmp_path, **change)[kind], redo=True)[-1] == "grpo"
    assert stages(tmp_path / "run", *in_files(tmp_path, **change)[kind]) == []
    assert "has changed" not in capsys.readouterr().err


def test_the_source_of_a_function_in_memory_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    other = lambda completions, **_: [3.0 for _ in completions]  # noqa: E731
    assert stages(tmp_path / "run", rows(), [constant(1.0)]) == ["teach", "grpo"]
    assert stages(tmp_path / "run", rows(), [constant(1.0)]) == []
    other.__name__ = "score"
    assert stages(tmp_path / "run", rows(), [other]) == []
    assert "grpo: code of score has changed since" in capsys.readouterr().err


def test_a_file_of_another_form_is_no_change(tmp_path: Path):
    given = in_files(tmp_path)["rows"]
    stages(tmp_path / "run", *given)
    in_files(tmp_path, beside="\n\n")
    assert stages(tmp_path / "run", *given) == []


def test_a_changed_module_that_a_reward_imports_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
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
    assert stages(tmp_path / "run", *given) == []
    assert "code of parts/inner.py has changed" in capsys.readouterr().err


class Scorer:
    def __call__(self, completions, **_):
        return [0.0 for _ in completions]

    def method(self, completions, **_):
        return self(completions)


def test_a_digest_is_of_the_text_of_a_function():
    space = {}
    exec("def f(rewards, **_): return rewards.values", space)
    assert code_digest(constant(1.0)) == code_digest(functools.partial(constant(2.0), answer=1))
    assert code_digest(Scorer()) == code_digest(Scorer) != code_digest(constant(1.0))
    assert code_digest(space["f"]) is None
