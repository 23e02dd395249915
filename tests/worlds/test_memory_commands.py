"""`gradus memory` as a user types it."""

import json

from typer.testing import CliRunner

from gradus.commands.app import app


def gradus(*words):
    result = CliRunner().invoke(app, ["memory", *map(str, words)])
    assert result.exit_code == 0, result.output
    return result


def test_an_answer_is_followed_by_a_look_at_the_memory(tmp_path):
    text, memory = tmp_path / "me.txt", tmp_path / "kept"
    text.write_text("Ann lives in Bergen.\n")
    gradus("learn", "append-only", text, "--memory", memory)
    said = gradus("ask", "append-only", "Where does Ann live?", "--memory", memory)
    assert said.stderr.splitlines()[-1] == f"next: gradus memory show {memory}"


def test_json_is_printed_or_written(tmp_path):
    text, memory, out = tmp_path / "me.txt", tmp_path / "kept", tmp_path / "out.json"
    text.write_text("Ann lives in Bergen.\n")
    gradus("learn", "dump", text, "--memory", memory)
    printed = gradus("show", memory, "--json").stdout
    assert "Bergen" in gradus("show", memory, "--json", out).stdout
    assert json.loads(out.read_text()) == json.loads(printed)
