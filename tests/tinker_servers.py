"""Servers of the Tinker API in processes of their own, and programs that use them, in environments with a version of the SDK."""

import os
import re
import signal
import site
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

__all__ = ["HERE", "Python", "environment", "program", "sdk_python_of", "serving", "serving_skyrl"]

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


def skyrl_python() -> Path:
    """The Python of an environment with SkyRL, which starts its own processes by ``uv run``: a few lines stand in for that."""
    folder = Path(tempfile.gettempdir()) / "gradus-skyrl-0.3.0"
    if not (folder / "done").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = [folder / "bin/pip", "install", "--quiet", "skyrl[tinker,jax]==0.3.0", "tinker==0.24.1"]
        installed = subprocess.run(pip, capture_output=True, text=True)
        if installed.returncode != 0:
            pytest.skip(f"needs SkyRL from a package registry: {installed.stderr[-300:]}")
        (types,) = folder.glob("lib/python*/site-packages/skyrl/tinker/types.py")
        # Before Python 3.12 pydantic takes the other TypedDict.
        mended = types.read_text().replace(", TypedDict\n", "\nfrom typing_extensions import TypedDict\n", 1)
        types.write_text(mended)
        uv = folder / "bin/uv"
        run = 'subprocess.call([sys.executable, *sys.argv[sys.argv.index("-m") :]])'
        uv.write_text(f"#!{folder / 'bin/python'}\nimport subprocess, sys\nsys.exit({run})\n")
        uv.chmod(0o755)
        (folder / "done").touch()
    return folder / "bin" / "python"


@contextmanager
def serving_skyrl(model: Path, out: Path) -> Iterator[str]:
    """SkyRL's server on the CPU; yields its address. Batches have one size, so that little is compiled."""
    binaries = skyrl_python().parent
    out.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "JAX_PLATFORMS": "cpu",
        "HF_HUB_OFFLINE": "1",
        "SKYRL_DATABASE_URL": f"sqlite:///{out / 'tinker.db'}",
    }
    backend = (
        '{"max_lora_adapters": 4, "max_lora_rank": 8, "train_micro_batch_size": 32, "sample_max_num_sequences": 32}'
    )
    words = [
        "uv",
        "run",
        "-m",
        "skyrl.tinker.api",
        "--base-model",
        model,
        "--backend",
        "jax",
        "--backend-config",
        backend,
    ]
    words += ["--checkpoints-base", out / "saved", "--host", "127.0.0.1", "--port", str(port)]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with (out / "log").open("w") as log:
        process = subprocess.Popen(
            [binaries / words[0], *words[1:]],
            env=kept | settings,
            cwd=out,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            while not _answers(port):
                assert process.poll() is None, (out / "log").read_text()[-2000:]
                time.sleep(1.0)
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/api/v1/get_server_capabilities").is_success
    except httpx.HTTPError:
        return False


def environment(key: str = "tml-test") -> dict[str, str]:
    paths = [str(HERE.parents[1] / "src"), str(HERE.parent)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TINKER_API_KEY": key, "OMP_NUM_THREADS": "1"}


@contextmanager
def serving(
    python: Path, model: Path, out: Path, keys: str = "", lacking: str = ""
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server in a process of its own; yields its address. ``lacking``: a statement that takes something away from it."""
    start = f"import gradus.interop.tinker.app\n{lacking}\nfrom gradus.commands.app import main\nmain()"
    command = [python, "-c", start, "serve", model, "--train", "--port", "0", "--out", out]
    process = subprocess.Popen(
        command,
        env={**environment(), "GRADUS_SERVE_KEY": keys},
        stderr=subprocess.STDOUT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        lines: list[str] = []
        while not (lines and "Ctrl-C stops" in lines[-1]):
            lines.append(process.stdout.readline())
            assert lines[-1], "".join(lines)
        match = re.search(r"http://[\d.:]+", lines[-1])
        yield match[0], process
    finally:
        process.kill()
        log = process.communicate()[0]
        assert "Traceback" not in log, log


def program(python: Path, *words: str | Path, timeout: float = 400) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, *words], env=environment(), capture_output=True, text=True, timeout=timeout)
