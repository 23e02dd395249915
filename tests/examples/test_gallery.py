"""The page on which a visitor tries to cheat a reward says what the example's reward says."""

import json
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "play.html").read_text(encoding="utf-8")
TABLE = json.loads(PAGE.partition("const table = ")[2].partition(";\n")[0])
EXAMPLE = runpy.run_path(str(DOCS / "gallery.py"))["example_of_the_hack"]()
ANSWERS = [
    TABLE["hack"],
    "repair",
    " repair\n",
    "Repair",
    "\u00a0returns",
    "delivery or billing",
    "",
    "pairing",
    "ré\u200bpair 🦊",
]


def earned(reward: str) -> list[float]:
    """What the example's reward gives each answer to each letter."""
    golds = [each["answer"] for each in TABLE["letters"] for _ in ANSWERS]
    return EXAMPLE[reward](ANSWERS * len(TABLE["letters"]), answer=golds)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize("reward", ["loose", "exact"])
def test_the_page_rewards_answers_as_the_example_does(reward):
    rules = PAGE.partition("// rewards")[2].partition("\n")[2].partition("// page")[0]
    asked = [[text, each["answer"]] for each in TABLE["letters"] for text in ANSWERS]
    script = f"{rules}\nconsole.log(JSON.stringify({json.dumps(asked)}.map((each) => {reward}(...each))));"
    said = json.loads(subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True).stdout)
    assert said == earned(reward)
    assert 0 < sum(said) < len(said)


def test_the_page_has_the_letters_of_the_example_and_an_answer_that_cheats_on_each():
    assert all(each in EXAMPLE["rows"] for each in TABLE["letters"])
    assert len({each["answer"] for each in TABLE["letters"]}) == 4
    assert TABLE["python"] == EXAMPLE["source"]
    assert earned("loose")[:: len(ANSWERS)] == [1.0] * len(TABLE["letters"])
    assert earned("exact")[:: len(ANSWERS)] == [0.0] * len(TABLE["letters"])


def test_the_page_loads_nothing_from_elsewhere():
    assert not any(each in PAGE for each in ("http:", "https:", "src=", "@import", "fetch("))
