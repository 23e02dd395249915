"""The live monitor agrees with the diagnosis of the stored run, and ends in one line."""

import json

import pytest
from streams import healthy, spoiled

from gradus.core import StorageError
from gradus.core.metrics import read_metrics
from gradus.evidence.health import Monitor, advice, diagnose, report, status
from gradus.runs.stages.doctor import diagnosis_of


def _clipped(record, i):
    return {"clip_fraction": 0.4}


def _live(records):
    monitor = Monitor()
    return [alert for record in records for alert in monitor([record])]


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("clip storm", _clipped),
        ("reward falls", lambda r, i: {"reward_mean": r["reward_mean"] * max(0.1, 1 - 0.03 * i)}),
        ("sampler mismatch", lambda r, i: {"mismatch_fraction": 0.4}),
        ("truncation", lambda r, i: {"truncated_episodes": 0.5, "invalid_actions": 0.5, "episodes": 8}),
        ("format ignored", lambda r, i: {"invalid_actions": 0.25 * (i % 2), "episodes": 8}),
    ],
)
def test_alerts_are_those_of_the_stored_run_with_the_same_remedy(rule, change):
    records = spoiled(0, change, steps=100)
    diagnoses, live = {each.rule: each for each in diagnose(records)}, _live(records)
    assert {alert["rule"] for alert in live} == set(diagnoses)
    told, alerts = diagnoses[rule], [alert for alert in live if alert["rule"] == rule]
    assert (alerts[0]["step"], alerts[-1]["step"], len(alerts)) == (told.first_step, told.last_step, told.steps)
    assert (alerts[-1]["severity"], alerts[-1]["remedy"]) == (told.severity, told.remedy)


def test_a_monitor_that_begins_in_the_middle_agrees_with_one_that_was_there_from_the_start():
    records = spoiled(0, _clipped, steps=90)
    early, late = Monitor(), Monitor()
    for i in range(1, 80):
        early(records[:i])
    assert late(records[:80]) == early(records[:80])


def test_the_status_is_the_worst_of_the_diagnoses():
    calm, storm = diagnose(healthy(0, 40)), diagnose(spoiled(0, _clipped))
    worst = diagnose(spoiled(0, lambda r, i: {"logp_diff_max": 0.5}))
    assert [status(each) for each in (calm, storm, worst)] == ["healthy", "warn", "stop"]


def test_advice_is_one_line_about_the_worst_thing():
    def both(record, i):
        return {"clip_fraction": 0.4, "logp_diff_max": 0.5}

    diagnoses = diagnose(spoiled(0, both))
    line = advice(diagnoses)
    assert line.startswith("Stop: logp diff, still going on.")
    assert "1 more above" in line
    assert "\n" not in line
    assert advice([]) == "Healthy: nothing to do."
    quick = healthy(0, 2)
    too_short = "Too short to judge: nothing was found in 2 steps of GRPO; most rules look at more."
    assert report(diagnose(quick), quick)["summary"] == too_short
    longer = healthy(0, 6)
    assert report(diagnose(longer), longer)["summary"] == "Healthy: nothing to do."


def _write(path, records, tail=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + tail)


def test_a_run_folder_a_stage_or_a_file_can_be_read(tmp_path):
    warm_start = [{"kind": "sft", "step": 1, "loss": 2.0}]
    _write(tmp_path / "run" / "sft" / "metrics.jsonl", warm_start)
    _write(tmp_path / "run" / "grpo" / "metrics.jsonl", healthy(0, 3), tail='{"kind": "st')
    assert [record["kind"] for record in read_metrics(tmp_path / "run")] == ["sft", "step", "step", "step"]
    assert len(read_metrics(tmp_path / "run" / "grpo")) == 3
    assert read_metrics(tmp_path / "run" / "sft" / "metrics.jsonl") == warm_start


def test_a_distillation_is_diagnosed_too(tmp_path):
    """A folder of ``gradus distill`` held no metrics for the doctor, and a loss that was not a number went by unseen in a whole run."""
    lost = [{"kind": "distill", "step": step, "loss": None, "tokens": 8} for step in (1, 2)]
    _write(tmp_path / "run" / "distill" / "metrics.jsonl", lost)
    assert [diagnosis["rule"] for diagnosis in diagnosis_of(tmp_path / "run")["diagnoses"]] == ["not a number"]
    _write(tmp_path / "run" / "grpo" / "metrics.jsonl", healthy(0, 3))
    assert diagnosis_of(tmp_path / "run")["status"] == "stop"


def test_a_folder_that_is_no_run_and_a_broken_line_are_told(tmp_path):
    with pytest.raises(StorageError, match="no metrics of a run in"):
        read_metrics(tmp_path)
    _write(tmp_path / "metrics.jsonl", [], tail='not json\n{"kind": "step", "step": 2}\n')
    with pytest.raises(StorageError, match="line 1 is not JSON"):
        read_metrics(tmp_path)


def test_the_command_reads_sft_and_grpo_so_overfitting_is_told(tmp_path):
    losses = [1.0, 0.5, 0.6, 0.62, 0.65]
    sft = [{"kind": "sft", "step": step, "loss": 0.5, "validation_loss": loss} for step, loss in enumerate(losses)]
    _write(tmp_path / "sft" / "metrics.jsonl", sft)
    _write(tmp_path / "grpo" / "metrics.jsonl", healthy(0, 12))
    document = json.loads(json.dumps(diagnosis_of(tmp_path)))
    assert document["status"] == "warn"
    assert document["schema"] == 2
    assert [each["rule"] for each in document["diagnoses"]] == ["overfitting"]


def test_falling_on_the_same_held_out_tasks_is_told():
    noise = [0.01 * (i % 3) for i in range(20)]
    first = {"kind": "validation", "step": 0, "decoding": "greedy", "rewards": [0.6 + x for x in noise]}
    later = {**first, "step": 3, "rewards": [0.5 - x for x in noise]}
    assert [each.rule for each in diagnose([first, later])] == ["worse on held-out tasks"]
    assert diagnose([later, {**first, "step": 6}]) == []


def test_shrinking_to_one_short_answer_is_told_unless_the_true_reward_rises():
    def run(gain):
        return [
            {**record, "action_tokens_mean": 40.0 - 1.2 * i, "distinct_actions": 0.9 - 0.028 * i,
             "true_reward_mean": 1.0 + gain * i + 0.05 * (i % 3)}
            for i, record in enumerate(healthy(0, 30))
        ]  # fmt: skip

    assert "one short answer" in [each.rule for each in diagnose(run(0.0))]
    assert "one short answer" not in [each.rule for each in diagnose(run(0.2))]
