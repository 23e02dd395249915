"""Graders in the styles of public projects, sound and flawed, as a stranger brings them: a file with a reward, and rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gradus.auditing.text.tasks import TextSubject, subject_of
from gradus.commands.environments import load_environment
from gradus.core.files import read_toml, write_text
from scoreboard.styles.rows import rows

_HERE = Path(__file__).parent
_TASKS = 48


def labels() -> dict[str, Any]:
    """The frozen labels, by name."""
    return read_toml(_HERE / "labels.toml")


def subject(name: str, folder: Path, *, seed: int) -> TextSubject:
    """The grader with its rows. ``folder``: where the rows are written."""
    label = labels()[name]
    file = folder / f"{name}.jsonl"
    write_text(file, "".join(json.dumps(row) + "\n" for row in rows(label["tasks"], seed=seed)))
    spec = load_environment(file, rewards=[f"{_HERE / label['label']}.py:{name}"])
    made = subject_of(spec, spec.grader(), tasks=_TASKS)
    assert made is not None
    return made
