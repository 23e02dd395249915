"""The logs of other trainers: TRL 1.16 wrote one, with a reward that is the same for all, and tinker-cookbook 0.6's rl_loop the other."""

from pathlib import Path

import pytest

from gradus.commands import doctor
from gradus.core import StorageError
from gradus.evidence.health.foreign_logs import foreign_records

DATA = Path(__file__).parents[2] / "data"
TRL, COOKBOOK = DATA / "trl_trainer_state.json", DATA / "cookbook_metrics.jsonl"


def test_a_constant_reward_is_seen_in_a_log_of_trl() -> None:
    report = doctor(TRL)
    assert report.status == "stop"
    assert {each["rule"]: each["severity"] for each in report.document["diagnoses"]}["zero-variance groups"] == "stop"
    assert report.document["source"] == "TRL"
    missing = report.document["not_measured"]
    assert missing["KL explosion"] == ["kl"]
    assert "zero-variance groups" not in missing
    assert "truncation" not in missing


def test_a_log_of_the_cookbook_has_the_figures_that_it_holds() -> None:
    source, records = foreign_records(COOKBOOK)
    assert source.name == "tinker-cookbook"
    assert [record["step"] for record in records] == list(range(20))
    assert records[0] == {"kind": "step", "step": 0, "reward_mean": 0.0625, "grad_norm": 28.10462188720703, "lr": 0.01}
    report = doctor(COOKBOOK)
    assert report.status == "healthy"
    assert "zero_variance_groups" in report.document["not_measured"]["zero-variance groups"]


def test_a_checkpoint_folder_of_trl_is_found(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_bytes(TRL.read_bytes())
    assert doctor(tmp_path).document["source"] == "TRL"


def test_a_file_of_nobody_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text('{"log_history": 3}')
    with pytest.raises(StorageError, match="log_history"):
        doctor(tmp_path)
    other = tmp_path / "metrics.jsonl"
    other.write_text('{"loss": 1}\n')
    with pytest.raises(StorageError, match="no metrics"):
        doctor(other)
