"""What changed after a stage had written it is noticed; what a killed process left is cleared or put back."""

import json
import shutil
from pathlib import Path

import pytest

from gradus.core import ConfigError, StorageError
from gradus.core.files import clear_half_written, write_checksums
from gradus.evidence.reports import write_report
from gradus.evidence.stage_files import changed_since, keep_evaluated
from gradus.runs.manifest import Manifest, StageInputs
from gradus.runs.stages.doctor import diagnosis_of

WRITTEN = {
    "teach": "teach/episodes.jsonl.gz",
    "sft": "sft/metrics.jsonl",
    "grpo": "grpo/splits.json",
    "eval": "results.json",
    "doctor": "doctor.json",
}


def a_run(folder: Path) -> Path:
    """A run whose stages each wrote one file, and a model."""
    state = Manifest(folder)
    for stage, name in WRITTEN.items():
        with state.doing(stage, StageInputs(settings={"seed": 0})):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            record = {"kind": "sft", "step": 1, "loss": 2.0} if stage == "sft" else {}
            (folder / name).write_text(json.dumps({**record, "figure": 12}) + "\n")
            if stage == "sft":
                (folder / "sft" / "best").mkdir()
                (folder / "sft" / "best" / "model.safetensors").write_bytes(bytes(100))
                write_checksums(folder / "sft" / "best")
    return folder


def test_a_stage_goes_on_with_other_resources(tmp_path: Path) -> None:
    state = Manifest(tmp_path)
    with state.doing("sft", StageInputs(settings={"sft": {"lr": 0.1, "token_budget": 4096}})):
        (tmp_path / "sft").mkdir()
    assert state.done("sft", StageInputs(settings={"sft": {"lr": 0.1, "token_budget": 900}}))
    with pytest.raises(ConfigError, match=r"sft\.lr was 0\.1, is now 0\.2"):
        state.done("sft", StageInputs(settings={"sft": {"lr": 0.2, "token_budget": 900}}))
    with state.doing("grpo", StageInputs(settings={"sft": {"batch_size": 8}, "grpo": {"batch_size": 8}})):
        (tmp_path / "grpo").mkdir()
    assert state.done("grpo", StageInputs(settings={"sft": {"batch_size": 8}, "grpo": {"batch_size": 4}}))
    with pytest.raises(ConfigError, match=r"sft\.batch_size was 8, is now 4"):  # of SFT it is the size of a step
        state.done("grpo", StageInputs(settings={"sft": {"batch_size": 4}, "grpo": {"batch_size": 8}}))


def test_the_probe_counts_among_the_costs_of_a_run(tmp_path: Path) -> None:
    state = Manifest(tmp_path)
    with state.doing("plan", StageInputs(settings={})) as cost:
        cost |= {"settings": {"grpo.groups": 4}, "plan": {"seconds": {"probe": 61.0}}}
    (row,) = state.costs()
    assert (row["stage"], row["planned"]) == ("probe", 61.0)
    assert "settings" not in row


def test_a_stage_that_goes_on_says_its_other_resources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "grpo").mkdir()
    (tmp_path / "grpo" / "metrics.jsonl").touch()
    stage = Manifest(tmp_path).doing("grpo", StageInputs(settings={"grpo": {"batch_size": 8}}))
    stage.__enter__()
    stage.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert not Manifest(tmp_path).done("grpo", StageInputs(settings={"grpo": {"batch_size": 4}}))
    assert "grpo goes on with grpo.batch_size = 4 (it was 8)" in capsys.readouterr().err


def test_a_changed_figure_in_any_file_of_a_stage_is_noticed(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    assert changed_since(run) == []
    for stage, name in WRITTEN.items():
        whole = (run / name).read_bytes()
        for damaged in (whole.replace(b"12", b"13"), whole[:-5], None):
            (run / name).unlink() if damaged is None else (run / name).write_bytes(damaged)
            assert [name in said for said in changed_since(run)] == [True]
            assert len(changed_since(run / name)) == 1
            others = [changed_since(run / other) for other in WRITTEN.values() if other != name]
            assert not any(others)
            with pytest.raises(StorageError, match=f"{name} in .*damaged or gone.*stage '{stage}'.*--redo"):
                Manifest(run).done(stage, StageInputs(settings={"seed": 0}))
            (run / name).write_bytes(whole)
        assert Manifest(run).done(stage, StageInputs(settings={"seed": 0}))
    (run / "sft" / "best" / "model.safetensors").write_bytes(bytes(99) + b"1")
    with pytest.raises(StorageError, match="sft/best in"):
        Manifest(run).done("sft", StageInputs(settings={"seed": 0}))


def test_with_redo_a_damaged_stage_and_what_builds_on_it_are_done_again(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    (run / "sft" / "metrics.jsonl").write_text("{}")
    state = Manifest(run, redo=True)
    assert state.done("teach", StageInputs(settings={"seed": 0}))
    for stage in ("sft", "grpo", "eval", "doctor"):
        assert not state.done(stage, StageInputs(settings={"seed": 0}))
    assert not (run / "sft").exists()


def test_no_evaluation_outlives_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results, report and recipe of a run were published with the weights of the next one, which had just begun."""
    run = a_run(tmp_path / "run")
    made = ("report.html", "figures/scores.png", "costs.json", "recipe.toml")
    for name in ("report/episodes.json.gz", *made):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("of the old weights")
    Manifest(run).keep("costs.json", "recipe.toml")

    def killed(folder: Path, **_: object) -> None:
        if folder.name == "grpo":
            raise KeyboardInterrupt

    with monkeypatch.context() as stopped:
        stopped.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            Manifest(run, redo=True).done("grpo", StageInputs(settings={"seed": 1}))
    assert not any((run / name).exists() for name in ("results.json", "doctor.json", "report/episodes.json.gz", *made))
    assert not Manifest(run, redo=True).done("grpo", StageInputs(settings={"seed": 1}))
    assert changed_since(run) == []
    assert Manifest(run).done("sft", StageInputs(settings={"seed": 0}))
    assert (run / "sft" / "best").is_dir()


def test_a_report_names_what_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(tmp_path / "run")
    (run / "grpo" / "splits.json").write_text("{}")
    page = write_report(run).read_text()
    assert "grpo/splits.json is not what the run wrote there" in capsys.readouterr().err
    assert "grpo/splits.json is not what the run wrote there" in page


def test_the_doctor_names_what_changed_or_is_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(tmp_path / "run")
    (run / "results.json").unlink()
    diagnosis_of(run)
    assert "results.json is not what the run wrote there" in capsys.readouterr().err
    metrics = run / "sft" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace("2.0", "9.0"))
    diagnosis_of(metrics)
    diagnosis_of(run)
    assert "metrics.jsonl is not what the run wrote there" in capsys.readouterr().err


def test_what_a_killed_process_left_is_cleared_and_what_it_put_aside_comes_back(tmp_path: Path) -> None:
    for name in (".best.old", ".final.tmp", ".step-000002.old", "step-000002", ".config.old"):
        (tmp_path / "grpo" / name).mkdir(parents=True)
        (tmp_path / "grpo" / name / "model").write_text(name)
    for name in (".results.json.a1b2_3d4.part", ".mine.part", "film.part"):
        (tmp_path / name).write_text("half")
    (tmp_path / "another run").mkdir()
    (tmp_path / "another run" / ".results.json.a1b2_3d4.part").write_text("at work")
    clear_half_written(tmp_path)
    assert any((tmp_path / "another run").iterdir())
    assert {path.name for path in tmp_path.iterdir()} == {"another run", "grpo", ".mine.part", "film.part"}
    assert {path.name for path in (tmp_path / "grpo").iterdir()} == {"best", "step-000002", ".config.old"}
    assert (tmp_path / "grpo" / "best" / "model").read_text() == ".best.old"
    assert (tmp_path / "grpo" / "step-000002" / "model").read_text() == "step-000002"


def test_equal_weights_are_one_file_and_those_that_were_not_evaluated_go(tmp_path: Path) -> None:
    weights = {
        "sft/best": b"a",
        "sft/final": b"a",
        "grpo/best": b"a",
        "grpo/final": b"b",
        "grpo/checkpoints/step-1": b"b",
    }
    for folder, content in weights.items():
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "model.safetensors").write_bytes(content)
    for _ in range(2):  # a second time changes nothing
        keep_evaluated(tmp_path)
        files = {
            file.relative_to(tmp_path).parent.as_posix(): file.stat() for file in tmp_path.rglob("*") if file.is_file()
        }
        assert set(files) == {"sft/best", "sft/final", "grpo/best"}
        assert len({stat.st_ino for stat in files.values()}) == 1
