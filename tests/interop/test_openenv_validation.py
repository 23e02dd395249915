"""Packages with a flaw and their mended twins are told apart by the checks of RFC 008."""

from __future__ import annotations

import json
import runpy
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from openenv_twins import FLAWS, manifest, write_twin

from gradus import environments
from gradus.core import ConfigError, EnvironmentFault
from gradus.interop.openenv.server import create_app, server_config
from gradus.interop.openenv.validation import report
from gradus.interop.openenv.validation import statistical as statistics
from gradus.interop.openenv.validation.semantic import SEMANTIC, Package
from gradus.interop.openenv.validation.statistical import oracle_spec, statistical
from gradus.interop.openenv.validation.trajectories import read_oracle, read_trajectories
from gradus.policies.scripted import FunctionPolicy
from gradus.rollouts import roll_out
from gradus.stats import Interval

CAUGHT = {
    "sum": {"semantic.floor_gap"},
    "reverse": {"semantic.no_solution_leakage"},
    "steps": {"semantic.verifier_determinism", "semantic.oracle_max"},
    "label": {"semantic.canary_floor"},
}


@contextmanager
def _served(root: Path, kind: str) -> Iterator[Package]:
    app = runpy.run_path(str(root / "server" / "app.py"))["app"]
    with _running(app) as url:
        yield Package(root=root, manifest=manifest(kind)["validation"], url=url)


@contextmanager
def _running(app: Any) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(server_config(app, host="127.0.0.1", port=port))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


@pytest.mark.parametrize("kind", list(FLAWS))
def test_a_flaw_fails_and_its_mended_twin_does_not(kind: str, tmp_path: Path) -> None:
    failed: dict[bool, set[str]] = {}
    for flawed in (True, False):
        with _served(write_twin(tmp_path, kind, flawed=flawed), kind) as package:
            findings = {name: check(package) for name, check in SEMANTIC.items()}
        failed[flawed] = {name for name, each in findings.items() if each.status == "fail"}
        assert all(each.evidence for each in findings.values())
        assert all(each.remediation for each in findings.values() if each.status == "fail")
    assert failed == {True: CAUGHT[kind], False: set()}


@pytest.mark.slow
def test_the_adversarial_floor_tells_a_verifier_that_takes_any_text_with_the_answer_in_it(tmp_path: Path) -> None:
    with _served(write_twin(tmp_path, "label", flawed=True), "label") as package:
        policy = FunctionPolicy("always", lambda seen, script: "square")
        found = {name: each.status for name, each in statistical(package, policy=policy).items()}
    found.pop("statistical.gameability_gap")
    assert found == {
        "statistical.adversarial_floor": "fail",
        "statistical.difficulty_separation": "pass",
        "statistical.training_signal": "pass",
        "statistical.variance_bound": "pass",
        "statistical.reward_reachability": "pass",
        "statistical.headroom": "pass",
    }


def _earned(role: str, mean: float, low: float | None) -> Any:
    return SimpleNamespace(policy=role, role=role, reward=Interval(mean=mean, low=low, high=None, n=9))


@pytest.mark.parametrize(
    ("role", "mean", "low", "status"),  # from a floor of 0.2 to an oracle of 1 the limit is 0.6
    [
        ("exploit", 0.7, 0.61, "fail"),
        ("search", 0.7, 0.59, "pass"),
        ("search", 0.7, None, "fail"),
        ("ladder", 0.9, 0.8, "pass"),
    ],
)
def test_a_plan_may_earn_half_of_the_way_from_the_floor_to_the_oracle(
    role: str, mean: float, low: float | None, status: str
) -> None:
    audit: Any = SimpleNamespace(points=[_earned(role, mean, low), _earned("exploit", 0.3, 0.3)])
    assert statistics._by_plans(audit, 0.2, 1.0).status == status


@pytest.mark.parametrize(
    ("noise", "tolerance", "status"), [(0.25, 0.0, "pass"), (0.3, 0.0, "fail"), (0.3, 0.3, "pass"), (None, 0.0, "skip")]
)
def test_noise_stays_below_half_of_what_a_group_spreads(
    noise: float | None, tolerance: float, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = SimpleNamespace(measured={} if noise is None else {"largest_difference": noise})
    monkeypatch.setattr(statistics, "verifier_determinism", lambda package: found)
    package: Any = SimpleNamespace(variance_tolerance=tolerance)
    signal: Any = SimpleNamespace(measured={"forecast": {"8": {"reward_std": 0.5}}})
    assert statistics._variance(package, signal).status == status


@pytest.mark.parametrize(
    ("rewards", "reach", "room"),  # a tenth of the way from 0.2 to 1 is 0.08
    [
        ([0.2, 0.27], "fail", "pass"),
        ([0.2, 0.29], "pass", "pass"),
        ([0.95, 0.95], "pass", "fail"),
        ([None, 0.9], "pass", "pass"),
        ([None, None], "fail", "fail"),
    ],
)
def test_a_policy_reaches_something_and_leaves_something(
    rewards: list[float | None], reach: str, room: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    episodes = [SimpleNamespace(reward=None if value is None else SimpleNamespace(value=value)) for value in rewards]
    monkeypatch.setattr(statistics, "roll_out", lambda *_, **options: SimpleNamespace(episodes=episodes))
    spec: Any = SimpleNamespace(tasks=lambda name: [], grader=lambda: None)
    policy: Any = SimpleNamespace(name="p")
    assert [each.status for each in statistics._by_policy(spec, policy, 0.2, 1.0, 0).values()] == [reach, room]


@pytest.mark.parametrize(("low", "status"), [(0.11, "fail"), (0.09, "pass"), (None, "pass")])
def test_the_gap_is_that_of_the_answer_that_earned_most_unearned(low: float | None, status: str) -> None:
    rates = [
        {"operator": operator, "unearned": {"mean": mean, "low": bound, "high": None}}
        for operator, mean, bound in (("little", 0.1, 0.5), ("most", 0.3, low))
    ]
    text: Any = SimpleNamespace(checks=[SimpleNamespace(measured={"best": rates})])
    found = statistics._gameability(text)
    assert (found.status, found.measured["operator"]) == (status, "most")


def test_an_oracle_script_is_run_and_what_it_prints_is_played(tmp_path: Path) -> None:
    (tmp_path / "solve.sh").write_text("echo")
    printed = 'starting\n[{"reset": {"seed": 1}, "actions": [{"text": "7"}]}]\n'
    (one,) = read_oracle(tmp_path, "script", "solve.sh", lambda command: printed)
    assert (one.seed, one.actions) == (1, [{"text": "7"}])
    with pytest.raises(ConfigError, match="print its actions as JSON"):
        read_oracle(tmp_path, "script", "solve.sh", lambda command: "reward: 1.0")
    with pytest.raises(ConfigError, match="inside the package"):
        read_oracle(tmp_path, "script", "../outside.json", None)
    with pytest.raises(ConfigError, match="provider"):
        read_oracle(tmp_path, "script", "solve.sh", None)


def test_a_state_to_inject_and_runtime_plans_are_read(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"board": "solved"}')
    (state,) = read_oracle(tmp_path, "injected_state", "state.json", None)
    assert state.reset == {"injected_state": {"board": "solved"}}
    plan = (
        '{"plan_schema_version": "1", "reset": {"episode_id": "a", "seed": 5, "options": {"level": 2}}, "actions": []}'
    )
    (tmp_path / "plan.json").write_text(plan)
    (read,) = read_trajectories(tmp_path / "plan.json")
    assert read.reset == {"level": 2, "episode_id": "a", "seed": 5}
    (tmp_path / "bad.json").write_text('{"actions": 3}')
    with pytest.raises(ConfigError, match="expected"):
        read_trajectories(tmp_path / "bad.json")


def test_the_tasks_of_the_oracle_are_reset_as_its_episodes_were(tmp_path: Path) -> None:
    """Its seed alone was sent, so that the server asked other questions than the oracle had answered."""
    arithmetic = environments.load("arithmetic")
    solved = roll_out(arithmetic, arithmetic.policy("gold"), arithmetic.tasks("held-out", 8)).episodes
    rows = [
        {"reset": {"seed": e.task.seed, **e.task.options}, "actions": [{"text": e.turns[0].action}]} for e in solved
    ]
    (tmp_path / "oracle.json").write_text(json.dumps(rows))
    declared = {"capabilities": {"oracle": {"form": "actions", "location": "oracle.json"}}}
    with _running(create_app(arithmetic)) as url:
        spec = oracle_spec(Package(root=tmp_path, manifest=declared, url=url))
        tasks = [*spec.tasks("oracle"), *(spec.train_task(index) for index in range(8))]
        again = roll_out(spec, spec.policy("oracle"), tasks).episodes
    assert [episode.env_return for episode in again] == [1.0] * 16


def _package_whose_server(root: Path, does: str) -> Path:
    (root / "server").mkdir()
    (root / "server" / "app.py").write_text(
        "import sys\n"
        "async def app(scope, receive, send):\n"
        "    if scope['type'] == 'http':\n"
        "        await send({'type': 'http.response.start', 'status': 200, 'headers': []})\n"
        "        await send({'type': 'http.response.body', 'body': b''})\n" + does
    )
    return root


def test_a_server_that_writes_much_to_its_log_is_not_stopped_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "_START", 10.0)
    with report.serve_package(_package_whose_server(tmp_path, "print('much' * 50_000, file=sys.stderr)")) as url:
        assert url.startswith("http://127.0.0.1:")


def test_a_server_that_ends_is_quoted(tmp_path: Path) -> None:
    root = _package_whose_server(tmp_path, "raise SystemExit('no licence')")
    with pytest.raises(EnvironmentFault, match="no licence"), report.serve_package(root):
        pass


@pytest.fixture(scope="module")
def stock() -> Path:
    """A Python with stock openenv 0.10.0 and an installed gradus-rl; other packages come from this environment."""
    folder = Path(tempfile.gettempdir()) / "gradus-openenv-0.10.0-validation"
    python, done = folder / "bin" / "python", folder / "done"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        installed = subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "openenv==0.10.0"], capture_output=True, text=True
        )
        if installed.returncode != 0:
            pytest.skip(f"needs openenv from a package registry: {installed.stderr[-300:]}")
        done.touch()
    places = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    others = Path(places.stdout.strip(), "others.pth")  # written each time: who made the folder may be gone
    others.write_text(sysconfig.get_path("purelib"))
    root = Path(__file__).parents[2]
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--editable", root], check=True)
    return python


@pytest.mark.slow
def test_stock_openenv_loads_the_graders_and_its_schema_takes_the_report(stock: Path, tmp_path: Path) -> None:
    roots = [write_twin(tmp_path, kind, flawed=flawed) for kind in FLAWS for flawed in (True, False)]
    script = Path(__file__).parent / "openenv_validate_stock.py"
    ran = subprocess.run([stock, script, *roots], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    for kind, caught in CAUGHT.items():
        for flawed in (True, False):
            told = found[f"{kind}_{'broken' if flawed else 'mended'}"]
            for results in told.values():
                assert {n for n, status in results.items() if n.startswith("semantic") and status == "fail"} == (
                    caught if flawed else set()
                )
            assert (told["report"]["verdict"] == "fail") is flawed
    assert found["label_broken"]["report"]["statistical.adversarial_floor"] == "fail"
