"""A person is asked about answers that no rule settles; what they say is kept."""

import pytest
import typer
from typer.testing import CliRunner

from gradus.core import ConfigError
from gradus.runs.person import ask_person, read_marks

ROWS = [
    {"key": str(i), "operator": "other case", "prompt": f"Town {i}?", "gold": "Rome", "answer": "ROME", "reward": 1.0}
    for i in range(4)
]


def _asked(file, said):
    app = typer.Typer()
    app.command()(lambda: typer.echo(f"{ask_person(ROWS, file)} marked"))
    return CliRunner().invoke(app, [], input=said)


def test_marks_are_kept_and_what_has_one_is_not_asked_again(tmp_path):
    file = tmp_path / "marks.json"
    first = _asked(file, "perhaps\nwrong\ns\nr\n")  # the input ends before the last answer
    assert first.exit_code == 0, first.output
    assert "got 'p'" in first.output
    assert "2 marked" in first.output
    assert read_marks(file) == {"0": "wrong", "2": "right"}
    assert "Town 0?" not in _asked(file, "r\nr\n").output
    assert read_marks(file) == {"0": "wrong", "2": "right", "1": "right", "3": "right"}


@pytest.mark.parametrize("text", ["[1]", '{"marks": {"a": ["x"]}}', '{"marks": 3}'])
def test_a_file_that_holds_no_marks_is_refused(tmp_path, text):
    file = tmp_path / "marks.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match="holds no marks; expected"):
        read_marks(file)
