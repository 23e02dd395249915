"""The root and the help stay light."""

import json
import subprocess
import sys

HEAVY = ("torch", "transformers", "scipy", "matplotlib", "numpy")


def _modules_after(code: str) -> set[str]:
    script = f"import sys, json\n{code}\nprint(json.dumps([name for name in sys.modules]))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(run.stdout.splitlines()[-1]))


def test_the_words_and_the_help_of_the_command_line_import_nothing_heavy():
    code = """
import gradus, gradus.core
from gradus.commands.app import run_command
assert run_command(["--help"]) == 0
"""
    assert not _modules_after(code).intersection(HEAVY)


def test_evaluating_scripted_policies_needs_no_torch():
    code = "import gradus; gradus.evaluate('gold', 'random', env='arithmetic', episodes=2, conditions=['held-out'])"
    assert "torch" not in _modules_after(code)
