"""What cannot be used gets a sentence and an exit code of 2 or 3, and leaves nothing half-written."""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from gradus import commands
from gradus.commands.app import main

TINY = ["model.nano.hidden_size=32", "model.nano.layers=1", "model.nano.intermediate_size=64", "sft.threads=1"]
SFT = ["sft.max_steps=2", "sft.batch_size=2", "sft.short_turns=4", "sft.short_turns_share=1"]
GRPO = [
    "grpo.max_steps=1",
    "grpo.groups=1",
    "grpo.group_size=2",
    "grpo.threads=1",
    "grpo.validation_tasks=1",
    "grpo.validation_every=1",
]


class Said:
    """A command's exit code and what it wrote on standard error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._patch, self._capture = monkeypatch, capsys

    def __call__(self, *words: object, settings: list[str] | None = None) -> tuple[int, str]:
        changes = [word for change in settings or [] for word in ("--set", change)]
        self._patch.setattr(sys, "argv", ["gradus", *(str(word) for word in words), *changes])
        self._capture.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), self._capture.readouterr().err


@pytest.fixture
def gradus(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    return Said(monkeypatch, capsys)


@pytest.fixture(scope="module")
def lessons(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("taught") / "t.jsonl"
    commands.teach("rhythm", episodes=4, out=file)
    return file


@pytest.fixture(scope="module")
def trained(lessons: Path) -> Path:
    return commands.sft("rhythm", lessons=lessons, out=lessons.parent / "sft", settings=[*TINY, *SFT])


@pytest.fixture
def warm_started(trained: Path, tmp_path: Path) -> Path:
    """A model of a test's own."""
    return shutil.copytree(trained, tmp_path / "best")


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """A disk on which no file may pass ``size`` bytes: what is written beyond fails as on a full one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_missing_model_folder(gradus: Said, tmp_path: Path) -> None:
    for words in (["grpo", "rhythm"], ["run", "rhythm", "--quick"]):
        code, said = gradus(*words, "-m", tmp_path / "nope", "-o", tmp_path / "out")
        assert (code, "there is no model in" in said) == (2, True), said
        assert not (tmp_path / "out").exists()  # so that the same folder takes the corrected command


def test_damaged_models(gradus: Said, warm_started: Path, tmp_path: Path) -> None:
    weights, whole = warm_started / "model.safetensors", load_file(warm_started / "model.safetensors")

    def refused() -> str:
        code, said = gradus("grpo", "rhythm", "-m", warm_started, "-o", tmp_path / "out", settings=GRPO)
        assert code in (2, 3), said  # of a wrong name, and of a file that cannot be read
        assert not (tmp_path / "out").exists()
        return said

    weights.write_bytes(weights.read_bytes()[:-1] + b"x")  # one byte
    assert "model.safetensors is not what was written" in refused()
    (warm_started / "SHA256SUMS").unlink()  # from here on it is somebody's own folder
    save_file({name: value for name, value in whole.items() if "down_proj" not in name}, weights, {"format": "pt"})
    assert "lack 1 tensors" in refused()  # transformers would begin with random ones
    weights.write_bytes(b"\x10\x00")
    assert "could not be loaded" in refused()
    (warm_started / "config.json").write_text("{")
    assert "there is no model in" in refused()


def test_a_prompt_longer_than_the_context(gradus: Said, lessons: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    short = [*TINY, *SFT, "model.nano.context=64"]
    code, said = gradus("sft", "rhythm", "-d", lessons, "-o", out, settings=short)
    assert (code, "the model's context holds 64" in said) == (3, True), said
    assert not (out / "sft").exists()
    code, _ = gradus("sft", "rhythm", "-d", lessons, "-o", out, settings=[*TINY, *SFT])
    assert code == 0, "with the context asked for now"
    assert json.loads((out / "model" / "config.json").read_text())["max_position_embeddings"] > 64


def test_a_full_disk_while_training_keeps_what_was_there(gradus: Said, warm_started: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with largest_file(50_000):  # enough for metrics, too little for weights
        code, said = gradus("grpo", "rhythm", "-m", warm_started, "-o", out, settings=GRPO)
        assert (code, "could not write" in said) == (3, True), said
        code, said = gradus("run", "rhythm", "--quick", "-o", tmp_path / "run")
        assert (code, "could not write" in said) == (3, True), said
    left = [file for file in out.rglob("*") if file.is_file()]
    assert {file.name for file in left} <= {"config.json", "metrics.jsonl", "splits.json", ".lock", "manifest.json"}
    assert not (tmp_path / "run").exists()
    assert gradus("grpo", "rhythm", "-m", warm_started, "-o", out, settings=GRPO)[0] == 0


def test_an_unreachable_teacher(gradus: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setattr("openai._base_client.BaseClient._calculate_retry_timeout", lambda *_: 0.0)
    code, said = gradus("sft", "rhythm", "--teacher", "remote:some-model", "-n", 2, "-o", tmp_path / "out")
    assert code == 3
    assert "All connection attempts failed" in said
    assert "OPENAI_BASE_URL" in said
    assert not (tmp_path / "out" / "teach").exists()


@pytest.mark.parametrize("option", ["--out", "--report", "--json"])
def test_a_file_that_cannot_be_written_is_told_before_anything_is_rolled_out(
    gradus: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """The evaluation was done first, and lost."""
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("gradus.commands.comparing.evaluate", pytest.fail)
    monkeypatch.setattr("gradus.rollouts.rollout.roll_out", pytest.fail)
    for place in (tmp_path / "file" / "a.json", tmp_path):
        code, said = gradus("eval", "arithmetic", "--policy", "expert", "--episodes", 2, f"{option}={place}")
        assert (code, f"could not write {place}: " in said) == (3, True), said
    assert os.listdir(tmp_path) == ["file"]


def test_an_environment_in_the_current_folder_is_found(
    gradus: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_lamps.py").write_text("from fakes import lamps\n\nSPEC = lamps()\n")
    monkeypatch.chdir(tmp_path)
    before = [*sys.path]
    assert gradus("envs", "my_lamps:SPEC")[0] == 0
    assert sys.path == before


def test_a_file_in_the_current_folder_is_imported_only_if_it_is_named(tmp_path: Path) -> None:
    """brotli and h2 are modules that httpx uses if they are there: a stranger's folder could hold files of these names."""
    for name in ("brotli", "h2", "zstandard", "socksio", "yaml"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of the working folder ran')\n")
    code = "import sys; from gradus.commands.app import main; import httpx, openai; main()"
    rows = "".join(json.dumps({"question": f"{n} + 1?", "answer": str(n + 1)}) + "\n" for n in range(80))
    (tmp_path / "rows.jsonl").write_text(rows)
    command = [sys.executable, "-P", "-c", code, "check", "rows.jsonl", "--quick"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (ended.returncode, "ran" in ended.stderr) == (0, False), ended.stderr


OWN = {
    "boom.py": ("raise ValueError('boom')\n", "boom.py cannot be imported for environment: ValueError: boom (boom.py, line 1); fix it there"),
    "exits.py": ("import sys\n\nsys.exit(7)\n", "SystemExit: 7 (exits.py, line 3)"),
    "needs.py": ("import a_package_that_is_not_there\n", "ModuleNotFoundError: No module named 'a_package_that_is_not_there' (needs.py, line 1)"),
}  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_own_code_that_cannot_be_imported_is_named_with_its_line(gradus: Said, tmp_path: Path, name: str) -> None:
    """Python's traceback came, and a file that ends Python ended the command with its own code and no word."""
    code, says = OWN[name]
    (tmp_path / name).write_text(code)
    said = gradus("envs", tmp_path / name)
    assert said[0] == 2
    assert says in said[1].replace(f"{tmp_path}/", "")
    assert "Traceback" not in said[1]
