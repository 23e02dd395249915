"""A scripted teacher needs no torch, which takes longer to import than such a teacher to answer."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from gradus.training.config import GrpoConfig
from gradus.training.data.tasks import HeldOut

CODE = """
import sys
from gradus import commands
commands.teach(sys.argv[1], sys.argv[2], episodes=2, out=sys.argv[3])
print("torch" in sys.modules)
"""


@pytest.mark.parametrize(("environment", "policy"), [("arithmetic", "careless:0.5"), ("rhythm", "bayes")])
def test_teaching_imports_no_torch(environment: str, policy: str, tmp_path: Path) -> None:
    words = [environment, policy, str(tmp_path / "lessons.jsonl")]
    done = subprocess.run([sys.executable, "-c", CODE, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "lessons.jsonl").read_text().splitlines()) == 3  # a header and two episodes
    assert done.stdout.split()[-1] == "False"


def test_what_is_held_out_is_what_grpo_holds_out() -> None:
    defaults = {name: field.default for name, field in GrpoConfig.model_fields.items()}
    assert {each.name: each.default for each in fields(HeldOut)} == {
        each.name: defaults[each.name] for each in fields(HeldOut)
    }
