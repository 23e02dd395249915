"""A whole validation of a package by an operator: its server is started, measured, and reported in OpenEnv's schema, version 2."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import httpx

from gradus.core import ConfigError, EnvironmentFault, EnvironmentSpec, Policy

if TYPE_CHECKING:
    from openenv.validation.report import ValidationReportV2  # pyright: ignore[reportMissingImports] - an extra

_START = 60.0  # seconds until a server must answer


def is_package(path: str | Path) -> bool:
    """Whether it is a folder with an ``openenv.yaml``."""
    return (Path(path) / "openenv.yaml").is_file()


@contextmanager
def serve_package(root: Path) -> Iterator[str]:
    """Run the package's server in a process of its own; yields its address. Raises EnvironmentFault if it does not answer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "server.app:app",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--log-level",
        "error",
    ]
    with tempfile.TemporaryFile(
        "w+", encoding="utf-8", errors="replace"
    ) as log:  # a pipe that is full would stop the server
        process = subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(process, url, log)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: TextIO) -> None:
    deadline = time.monotonic() + _START
    with httpx.Client(trust_env=False, timeout=5.0) as client:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                log.seek(0)
                said = log.read().strip().splitlines()[-1:]
                raise EnvironmentFault(f"the package's server ended with code {process.returncode}: {said}")
            try:
                if client.get(f"{url}/health").status_code == 200:
                    return
            except httpx.HTTPError:
                time.sleep(0.1)
    raise EnvironmentFault(f"the package's server did not answer /health within {_START:g} seconds")


def validate_package(
    root: str | Path,
    *,
    seed: int = 0,
    budget: int = 4000,
    policy: Callable[[EnvironmentSpec], Policy] | None = None,
) -> ValidationReportV2:
    """The static, semantic and statistical checks in the operator's lane. Needs ``pip install gradus-rl[openenv]``.

    The server runs here without a container: validate only packages that you would run.
    """
    if find_spec("openenv") is None or find_spec("openenv.validation") is None:
        raise ConfigError("a report for OpenEnv needs openenv 0.10 or later; pip install 'gradus-rl[openenv]'")
    from openenv.validation import (  # pyright: ignore[reportMissingImports] - an extra
        CheckResult,
        CheckStatus,
        Lane,
        Level,
        ManifestError,
        apply_policy,
        detect_signature,
        load_policy,
    )
    from openenv.validation.graders.static import StaticManifestGrader  # pyright: ignore[reportMissingImports] - an extra
    from openenv.validation.parsers.openenv_yaml import OpenEnvYamlParser  # pyright: ignore[reportMissingImports] - an extra
    from openenv.validation.report import ValidationReportV2  # pyright: ignore[reportMissingImports] - an extra
    from openenv.validation.runner import source_digest  # pyright: ignore[reportMissingImports] - an extra

    root, rules = Path(root), load_policy("v2")
    manifest: Any = None
    results: list[Any] = []
    levels = [Level.STATIC]
    try:
        manifest = OpenEnvYamlParser().parse(root)
    except ManifestError as error:
        results.append(
            CheckResult(
                check_id="static.manifest",
                status=CheckStatus.FAIL,
                evidence=error.errors,
                remediation=error.remediation,
                duration_s=0.0,
            )
        )
    if manifest is not None:
        results.append(StaticManifestGrader(rules.bounds).run(_Subject(manifest)))
        results += _measured(root, manifest.model_dump(mode="json"), seed=seed, budget=budget, policy=policy)
        levels += [Level.RUNTIME, Level.SEMANTIC, Level.STATISTICAL]
    return ValidationReportV2(
        report_schema_version="2",
        target=str(root),
        source_digest=source_digest(root),
        signature=detect_signature(root),
        manifest=manifest,
        policy_version=rules.policy_version,
        lane=Lane.HUB,
        levels_run=levels,
        results=results,
        verdict=apply_policy(results, rules, Lane.HUB),
    )


class _Subject:
    """What the static grader looks at."""

    def __init__(self, manifest: Any) -> None:
        self.manifest = manifest


def _measured(
    root: Path, manifest: dict[str, Any], *, seed: int, budget: int, policy: Callable[[EnvironmentSpec], Policy] | None
) -> list[Any]:
    """What needs the running server."""
    from gradus.interop.openenv.validation.graders import as_result, run_check
    from gradus.interop.openenv.validation.semantic import SEMANTIC, Finding, Package
    from gradus.interop.openenv.validation.statistical import oracle_spec, statistical

    started = time.monotonic()
    try:
        with serve_package(root) as url:
            up = Finding(status="pass", evidence=["the server answers"], measured={"provider": "process"})
            results = [as_result("runtime.startup", up, time.monotonic() - started)]
            package = Package(root=root, manifest=manifest, url=url, execute=_beside(root))
            results += [run_check(check_id, package) for check_id in SEMANTIC]
            started = time.monotonic()
            chosen = policy(oracle_spec(package)) if policy is not None else None
            findings = statistical(package, seed=seed, budget=budget, policy=chosen)
            each = (time.monotonic() - started) / len(findings)
            return [*results, *(as_result(name, finding, each) for name, finding in findings.items())]
    except EnvironmentFault as error:
        down = Finding(status="fail", evidence=[str(error)], remediation="the server must start and answer")
        return [as_result("runtime.startup", down, time.monotonic() - started)]


def _beside(root: Path) -> Callable[[Sequence[str]], str]:
    """Run an oracle's script in the package's folder."""

    def execute(command: Sequence[str]) -> str:
        command = [sys.executable if command[0] == "python" else command[0], *command[1:]]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False).stdout

    return execute
