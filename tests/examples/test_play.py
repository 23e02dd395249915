"""The page on which a visitor exploits four graders: its JavaScript gives what the Python graders give, and the audit's finds are true."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))
import play  # noqa: E402

PAGE = play.PAGE.read_text(encoding="utf-8")
TABLE = json.loads(PAGE.partition("const table = ")[2].partition(";\n")[0])
PIECES = (
    " ",
    "\n",
    ".",
    ",",
    "-",
    "or",
    "nan",
    "inf",
    "1.41",
    "12",
    "7",
    "repair",
    "billing",
    "late",
    "bus",
    "é",
    "²",
    "\u00a0",
    "\ufeff",
    "İ",
    "🦊",
)


def strings(golds: list[str]) -> list[tuple[str, str]]:
    """A thousand pairs of a text and a reference answer: pieces joined, with the references among them."""
    draw = Random(0)
    pairs = []
    for _ in range(1000):
        gold = draw.choice(golds)
        parts = [draw.choice((*PIECES, gold)) for _ in range(draw.randrange(5))]
        pairs.append((draw.choice(("", " ")).join(parts), gold))
    return pairs


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize("each", play.ROUNDS, ids=lambda each: each.grader.__name__)
def test_the_page_scores_a_thousand_texts_as_python_does(each: play.Round) -> None:
    rules = PAGE.partition("// graders")[2].partition("\n")[2].partition("// page")[0]
    pairs = strings([row["answer"] for row in each.rows()])
    name = each.grader.__name__
    script = f"{rules}\nconst pairs = {json.dumps(pairs)};\nconsole.log(JSON.stringify(pairs.map((pair) => [graders.{name}(...pair), right(...pair)])));"
    done = subprocess.run(["node"], input=script, capture_output=True, text=True, check=True)
    texts, golds = zip(*pairs, strict=True)
    expected = zip(each.grader(list(texts), list(golds)), map(play.right, texts, golds), strict=True)
    scores = json.loads(done.stdout)
    assert scores == [pytest.approx(pair) for pair in expected]
    assert 10 < sum(reward for reward, _ in scores) < 980
    assert any(truth for _, truth in scores)


@pytest.mark.parametrize("shown", TABLE, ids=lambda shown: shown["name"])
def test_what_the_page_says_the_audit_found_is_an_exploit(shown: dict) -> None:
    each = next(each for each in play.ROUNDS if each.grader.__name__ == shown["name"])
    assert shown["verdict"] == "fail"
    golds = [row["answer"] for row in shown["rows"]]
    texts = [shown["found"]] * len(golds)
    assert sum(each.grader(texts, golds)) >= 0.9 * shown["goal"] * len(golds)
    assert sum(map(play.right, texts, golds)) <= 1
    assert all(row in each.rows() for row in shown["rows"])


def test_the_page_loads_nothing_from_elsewhere() -> None:
    assert not any(each in PAGE for each in ("http:", "https:", "src=", "@import", "fetch("))
