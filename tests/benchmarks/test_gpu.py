"""The benchmark for a GPU runs at toy size on a CPU, so that it is known to work before a GPU is at hand."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch):
    spec = importlib.util.spec_from_file_location("benchmark_gpu", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_every_section_runs_at_toy_size(gpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = gpu.main(["--toy", "--other", "transformers", "--out", str(tmp_path)])
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == line
    assert line["errors"] == []
    assert line["ratio"] > 0
    sections = json.loads((tmp_path / "gpu.json").read_text())
    exact = {name: row for name, row in sections.items() if name.startswith("agree") and "float32" in name}
    assert len(exact) == 7
    for row in exact.values():
        assert row["sampler_trainer"]["max"] < 1e-4
        assert row["trainer_plain"]["max"] < 1e-4
