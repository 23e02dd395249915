"""`import gradus`: the names, how they load, and what comes back."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gradus


def test_every_name_is_there_documented_and_loads_when_first_used():
    for name in gradus.__all__:
        value = getattr(gradus, name)
        assert (value.__doc__ or "").strip(), name
    assert dir(gradus) == sorted(gradus.__all__)
    with pytest.raises(AttributeError, match="trian"):
        _ = gradus.trian


def test_every_command_is_a_function():
    code = "import gradus; print(gradus.commands.envs('rhythm')['turns'])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert said.stdout == "28\n", said.stderr
    for name in gradus.commands.__all__:
        assert (getattr(gradus.commands, name).__doc__ or "").strip(), name


def test_importing_gradus_loads_next_to_nothing_and_changes_nothing_in_the_process():
    code = (
        "import os, sys, threading\n"
        "before = (dict(os.environ), list(sys.path), threading.active_count())\n"
        "import gradus\n"
        "assert sum(name.startswith('gradus') for name in sys.modules) <= 2\n"
        "assert before == (dict(os.environ), list(sys.path), threading.active_count()) and type(gradus) is type(os)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr


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


# The calls of the README and of the first pages, as a user with a strict type checker writes them.
USER = """
import gradus


def right(completions: list[str], answer: list[str], **columns: object) -> list[float | None]:
    return [float(text.strip() == gold) for text, gold in zip(completions, answer)]


def my_agent(task: dict[str, object], client: object) -> str:
    return "done"


rows = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(80)]
run = gradus.train("Qwen/Qwen2.5-0.5B-Instruct", "rows.jsonl", rewards=[right, ("length", 0.1)], steps=200, out="runs/mine")
print(run.report(), run.results["environment"], run.metrics()[0]["reward_mean"])
gradus.train(None, rows, rewards=[right], settings={"grpo.lr": 1e-3})
gradus.train(None, my_agent, rows, rewards=[right])
audit = gradus.audit(right, "rows.jsonl")
print(audit.verdict, gradus.audit("arithmetic", grader="format-only").to_json(), gradus.audit([right, ("length", 0.1)], rows))
scores = gradus.evaluate([run, "gold"], env="rows.jsonl", rewards=[right], episodes=20)
print(scores.to_json(), gradus.check(rows, rewards=[right]).status)
gradus.distill("student", "teacher", "rows.jsonl", steps=3)
gradus.run("rhythm", quick=True, out="runs/first").report()
spec = gradus.load_environment("arithmetic")
print(gradus.roll_out(spec, "gold", episodes=4).episodes[0].reward, gradus.compare("runs/a", run))
"""


def test_the_calls_of_a_user_are_typed(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER)
    source = str(Path(gradus.__file__).parents[1])
    settings = {"typeCheckingMode": "strict", "include": ["user.py"], "extraPaths": [source], "pythonVersion": "3.11"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
