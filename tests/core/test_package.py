"""A wheel stands alone: the command, the recipes, the report's templates and the documentation are in it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

import gradus

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the built wheel puts into an empty folder."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT / "src", folder / "tree" / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / file, folder / "tree")
    build = [sys.executable, "-c", "from setuptools.build_meta import build_wheel; build_wheel('..')"]
    subprocess.run(build, cwd=folder / "tree", check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def _run(installed: Path, *words: str) -> str:
    code = f"import sys; sys.path.insert(0, {str(installed)!r}); from gradus.commands.app import main; main()"
    run = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=installed.parent)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_the_wheel_has_what_the_checkout_has(installed: Path) -> None:
    there = {path.relative_to(installed) for path in installed.rglob("*") if path.is_file()}
    wanted = {path.relative_to(ROOT / "src") for path in (ROOT / "src").glob("gradus*/**/*") if path.is_file()}
    missing = {path for path in wanted - there if not {"__pycache__", "gradus_rl.egg-info"} & set(path.parts)}
    assert not missing


def test_one_version_in_package_changelog_citation_and_wheel(installed: Path) -> None:
    newest = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[0]
    cited = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    metadata = next(installed.glob("gradus_rl-*.dist-info/METADATA")).read_text(encoding="utf-8")
    assert [newest, *cited] == [gradus.__version__] * 2
    assert f"\nVersion: {gradus.__version__}\n" in metadata


def test_the_installed_command_runs_without_the_checkout(installed: Path) -> None:
    assert f"gradus {gradus.__version__}" in _run(installed, "--version")
    assert "rhythm" in _run(installed, "envs")
