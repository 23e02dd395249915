"""Servers of the Tinker API in processes of their own, and programs that use them, in environments with a version of the SDK."""

from __future__ import annotations

import os
import re
import site
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["HERE", "Python", "environment", "program", "sdk_python_of", "serving"]

HERE = Path(__file__).parent / "interop"
# What the SDK and the cookbook import, beyond what Gradus is tested with; the cookbook's own list names a package for other models.
SDK = ["pyqwest", "orjson", "distro", "zstandard", "h2", "hpack", "hyperframe"]
COOKBOOK = ["blobfile", "chz", "cloudpickle", "lxml", "pylatexenc", "pyrage", "termcolor", "tiktoken", "aiohttp"]
Python = Callable[[str], Path]


def sdk_python_of(version: str) -> Path:
    """The Python of an environment with a version of the SDK beside the packages of this one."""
    folder = Path(tempfile.gettempdir()) / f"gradus-tinker-{version}"
    packages = [f"tinker=={version}", *SDK]
    if version == "0.38.0":
        packages += ["tinker-cookbook==0.6.1", *COOKBOOK]
    if not (folder / "done").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        (own,) = folder.glob("lib/python*/site-packages")
        (own / "gradus_tests.pth").write_text("\n".join(site.getsitepackages()))
        pip = [folder / "bin/pip", "install", "--quiet", "--no-deps", *packages]
        installed = subprocess.run(pip, capture_output=True, text=True)
        if installed.returncode != 0:
            pytest.skip(f"needs tinker {version} from a package registry: {installed.stderr[-300:]}")
        (folder / "done").touch()
    return folder / "bin" / "python"


def environment(key: str = "tml-test") -> dict[str, str]:
    paths = [str(HERE.parents[1] / "src"), str(HERE.parent)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TINKER_API_KEY": key, "OMP_NUM_THREADS": "1"}


@contextmanager
def serving(python: Path, model: Path, out: Path, keys: str = "") -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server in a process of its own; yields its address."""
    command = [python, "-m", "gradus", "serve", model, "--train", "--port", "0", "--out", out]
    process = subprocess.Popen(
        command,
        env={**environment(), "GRADUS_SERVE_KEY": keys},
        stderr=subprocess.STDOUT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        lines: list[str] = []
        while not (lines and "Ctrl-C stops" in lines[-1]):
            lines.append(process.stdout.readline())
            assert lines[-1], "".join(lines)
        match = re.search(r"http://[\d.:]+", lines[-1])
        assert match is not None
        yield match[0], process
    finally:
        process.kill()
        log = process.communicate()[0]
        assert "Traceback" not in log, log


def program(python: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, *words], env=environment(), capture_output=True, text=True, timeout=400)
