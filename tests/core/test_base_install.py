"""The base install has no torch, and audits, evaluates and reports all the same."""

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = (
    *("torch", "transformers", "peft", "accelerate", "safetensors", "tokenizers", "huggingface_hub", "gguf"),
    "datasets",
)
WITHOUT = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""
WORK = """
import gradus
from gradus.core import ConfigError

def right(prompts, completions, answer, **columns):
    return [float(text.strip() == gold) for text, gold in zip(completions, answer)]

class Doors:
    actions = ("left", "right")
    def reset(self, seed):
        self.seed, self.turns = seed, 0
        return f"doors {seed % 7}"
    def step(self, action):
        self.turns += 1
        return "on", float((action == "left") == (self.seed % 2 == 0)), self.turns >= 3

for environment, teacher in (("arithmetic", "careless:0.5"), ("rhythm", "bayes")):
    gradus.commands.teach(environment, teacher, episodes=2, out=f"{environment}.jsonl")  # the first use of commands
    assert len(open(f"{environment}.jsonl").readlines()) == 3, "a header and two episodes"
assert gradus.audit("rows.jsonl", rewards=[right], episodes=12, budget=300).verdict == "pass"
assert gradus.audit(Doors, episodes=8, budget=1700).verdict in ("pass", "fail", "unresolved")
scores = gradus.evaluate("gold", "random", env="arithmetic", conditions=["held-out"], episodes=6)
assert scores.to_json()["conditions"]["held-out"]["policies"]["gold"]["true_reward"]["mean"] == 1.0
scores.report("scores.html")
gradus.load_environment("shop").make().reset(seed=0)
try:
    gradus.run("arithmetic", quick=True, out="run")
except ConfigError as error:
    assert "pip install 'gradus-rl[train]'" in str(error), error
else:
    raise AssertionError("a run trained without torch")
assert not {*__import__("sys").modules} & {"torch", "transformers"}
print("done")
"""


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    asked = ({"question": f"What is {a} + {a + 3}?", "answer": str(2 * a + 3)} for a in range(1, 60))
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, asked)))
    return tmp_path


def _works(python: str | Path, code: str, folder: Path) -> None:
    (folder / "work.py").write_text(code)
    said = subprocess.run([python, "work.py"], cwd=folder, capture_output=True, text=True, timeout=170)
    assert said.stdout.endswith("done\n"), said.stderr[-3000:]
    assert "<html" in (folder / "scores.html").read_text(encoding="utf-8")


def test_audits_and_reports_need_no_torch_and_training_says_what_to_install(rows: Path) -> None:
    _works(sys.executable, WITHOUT + WORK, rows)


@pytest.mark.slow
def test_the_base_install_stands_alone_in_an_empty_environment(rows: Path) -> None:
    venv.create(rows / "venv", with_pip=True)
    python = rows / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", ROOT / "constraints.txt", ROOT], check=True, capture_output=True)
    installed = subprocess.run([python, "-m", "pip", "freeze"], check=True, capture_output=True, text=True).stdout
    assert not {line.partition("==")[0].lower() for line in installed.splitlines()} & set(HEAVY)
    _works(python, WORK, rows)
    said = subprocess.run([rows / "venv/bin/gradus", "envs"], cwd=rows, check=True, capture_output=True, text=True)
    assert "rhythm" in said.stdout
