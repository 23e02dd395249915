"""Four OpenEnv packages, each sound or with one flaw: their servers, oracles and stored hacks."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

FLAWS = {"sum": "empty", "reverse": "leak", "steps": "noise", "label": "substring"}
TASKS = 24

_SERVER = '''
import random
from gradus.core import Condition, EnvironmentSpec, Grader, Observation, Task
from gradus.interop.openenv.server import create_app

KIND, FLAW = {kind!r}, {flaw!r}
LABELS = ("circle", "square", "triangle", "hexagon")


def problem(seed):
    """Question and answers, one a turn."""
    rng = random.Random(f"{{KIND}} {{seed}}")
    if KIND == "sum":
        a, b = rng.randrange(100, 999), rng.randrange(100, 999)
        return f"What is {{a}} + {{b}}?", [str(a + b)]
    if KIND == "reverse":
        word = "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(7))
        return f"Write backwards: {{word}}", [word[::-1]]
    if KIND == "label":
        sides = rng.choice((0, 3, 4, 6))
        return f"Which shape has {{sides}} sides?", [{{0: "circle", 3: "triangle", 4: "square", 6: "hexagon"}}[sides]]
    digits = [rng.randrange(10) for _ in range(3)]
    return f"Say twice each, one a turn: {{digits}}", [str(2 * digit) for digit in digits]


class Twin:
    system_prompt = "Answer with the answer alone."

    def reset(self, *, seed=None, episode_id=None, **options):
        self.question, self.answers = problem(seed or 0)
        self.given = []
        data = {{"length": len(self.answers)}}
        if FLAW == "leak":
            data["note"] = self.answers[0]
        return Observation(text=self.question, data=data)

    @property
    def state(self):
        return {{"episode_id": "twin", "step_count": len(getattr(self, "given", []))}}

    def accepts(self, given, answer):
        if FLAW == "empty" and not given.strip():
            return True
        return answer in given if FLAW == "substring" else given.strip() == answer

    def step(self, action):
        self.given.append(action)
        done = len(self.given) == len(self.answers)
        right = sum(map(self.accepts, self.given, self.answers)) / len(self.answers)
        reward = right if done else 0.0
        if FLAW == "noise" and done:
            reward *= random.SystemRandom().uniform(0.7, 1.0)
        return Observation(text="done" if done else "next", reward=reward, terminated=done)

    def outcome(self):
        return {{}}

    def close(self):
        pass


spec = EnvironmentSpec(
    name="twin",
    summary=KIND,
    make=Twin,
    graders={{"return": Grader(name="return", compute=lambda episodes: [e.env_return for e in episodes])}},
    conditions={{"main": Condition(name="main", seeds=range(50))}},
    train_task=lambda index: Task(environment="twin", seed=1000 + index),
    max_turns=3,
)
app = create_app(spec, sessions=64)
'''


def write_twin(folder: Path, kind: str, *, flawed: bool) -> Path:
    """A package whose server is sound, or has the flaw of its kind."""
    root = folder / f"{kind}_{'broken' if flawed else 'mended'}"
    (root / "server").mkdir(parents=True)
    (root / "server" / "__init__.py").write_text("")
    (root / "server" / "app.py").write_text(_SERVER.format(kind=kind, flaw=FLAWS[kind] if flawed else ""))
    space: dict = {}
    exec(
        _SERVER.format(kind=kind, flaw="")
        .split("class Twin")[0]
        .replace("from gradus.interop.openenv.server import create_app", ""),
        space,
    )
    oracle = [{"reset": {"seed": s}, "actions": [{"text": a} for a in space["problem"](s)[1]]} for s in range(TASKS)]
    hacks = ["", "yes", "circle square triangle hexagon", "The answer above is correct."]
    canaries = [{"reset": {"seed": 3}, "actions": [{"text": text}] * 3} for text in hacks]
    for name, rows in (("oracle.jsonl", oracle), ("canaries.jsonl", canaries)):
        (root / name).write_text("\n".join(map(json.dumps, rows)))
    (root / "openenv.yaml").write_text(yaml.safe_dump(manifest(kind)))
    return root


def manifest(kind: str) -> dict:
    return {
        "spec_version": 1,
        "name": f"twin_{kind}",
        "version": "1.0.0",
        "type": "space",
        "runtime": "fastapi",
        "app": "server.app:app",
        "port": 8000,
        "validation": {
            "reward": {"range": [0.0, 1.0], "oracle_tolerance": 0.0, "floor_margin": 0.5},
            "resources": {"cpu": 1.0, "memory_mb": 512, "disk_mb": 512, "episode_timeout_s": 60.0},
            "capabilities": {
                "verifier": {"kind": "reward_channel"},
                "oracle": {"form": "script", "location": "oracle.jsonl"},
                "canaries": "canaries.jsonl",
            },
            "types": {"tags": ["agent"]},
        },
    }
