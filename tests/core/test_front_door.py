"""`import gradus`: the names, how they load, and what comes back."""

import os
import subprocess
import sys

import pytest

import gradus


def test_every_name_is_there_documented_and_loads_when_first_used():
    for name in gradus.__all__:
        value = getattr(gradus, name)
        assert (value.__doc__ or "").strip(), name
    assert dir(gradus) == sorted(gradus.__all__)
    with pytest.raises(AttributeError, match="trian"):
        _ = gradus.trian


LIGHT = """
import os, sys, threading
before = (dict(os.environ), list(sys.path), threading.active_count())
import gradus
assert sum(name.startswith('gradus') for name in sys.modules) <= 2
assert before == (dict(os.environ), list(sys.path), threading.active_count()) and type(gradus) is type(os)
import gradus.core
from gradus.commands.app import run_command
assert run_command(["--help"]) == 0
assert not {"torch", "transformers", "scipy", "matplotlib", "numpy"} & {*sys.modules}
"""


def test_importing_gradus_changes_nothing_in_the_process_and_the_help_imports_nothing_heavy():
    said = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr


def test_every_command_is_a_function():
    for name in gradus.commands.__all__:
        assert (getattr(gradus.commands, name).__doc__ or "").strip(), name


def test_threads_of_a_command_that_wait_leave_the_cores_to_others():
    """libgomp's own 300,000 rounds of spinning stop whatever shares the cores; a policy that the user set is left alone."""
    code = "import os, sys; from gradus.commands.app import main; sys.argv = ['gradus', '--version']\ntry: main()\nexcept SystemExit: print(os.environ.get('GOMP_SPINCOUNT'))"
    outside = {key: value for key, value in os.environ.items() if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    for given, expected in (({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")):
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=outside | given)
        assert said.stdout.split()[-1] == expected, said.stderr


def test_policies_are_names_objects_or_a_mapping():
    half = gradus.FunctionPolicy("always 12", lambda seen, script: "<answer> 12 </answer>")
    scores = gradus.evaluate({"top": "gold", "twelve": half}, env="arithmetic", conditions=["held-out"], episodes=6)
    record = scores.to_json()["conditions"]["held-out"]
    assert record["policies"]["top"]["true_reward"]["mean"] == 1.0
    assert record["policies"]["twelve"]["true_reward"]["mean"] < 1.0
    assert "top" in repr(scores)


def test_reward_functions_are_a_grader():
    def brief(prompts, completions, **columns):
        return [float(len(text) < 40) for text in completions]

    spec = gradus.load_environment("arithmetic", rewards=[(brief, 0.5), "correctness=2"])
    assert spec.grader().weights == {"brief": 0.5, "correct": 2.0}
    rewards = [episode.reward.components for episode in gradus.roll_out(spec, "gold", episodes=3).episodes]
    assert all(each["correct"] == 1.0 for each in rewards)
