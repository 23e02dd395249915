"""The report as a file: whole, offline, honest about what it lacks."""

import gzip
import json
import re
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradus.core import Group
from gradus.evidence.evaluation import evaluate
from gradus.evidence.reports import prepare_report, render_report, shown_episodes, write_eval_report, write_report
from gradus.evidence.reports.run_files import RunRecord
from gradus.runs.stages.evaluation import write_evaluation_report
from tests.fakes import audit_document, policy_figures, results_document

HOSTILE = '</script><script>alert("x")</script><img src=x onerror=alert(1)> & <b>'


def data_of(page: str) -> dict[str, Any]:
    stored = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    packed = re.search(r'<script type="text/plain" id="packed">(.*?)</script>', page, re.DOTALL)
    episodes = json.loads(gzip.decompress(b64decode(packed.group(1)))) if packed else {}
    return {**json.loads(stored.group(1)), **episodes}


@pytest.fixture(scope="module")
def page(played: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "eval.html"
    write_eval_report(played.results, played.episodes, path, about=played.about)
    return path.read_text(encoding="utf-8")


def test_it_loads_nothing(page: str) -> None:
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.findall(r"""(?:src|href|action|data|poster)\s*=\s*["'](?!#|data:,)[^"']*""", markup)
    assert not re.findall(r"@import|url\(|<iframe|<object|<embed", markup)
    assert not re.findall(r"\b(?:fetch|XMLHttpRequest|import)\s*\(", page)
    assert "https://" not in page
    assert set(re.findall(r"http://[^\"'\s]+", page)) <= {"http://www.w3.org/2000/svg"}


def test_its_data_are_the_results_and_the_episodes(played: Any, page: str) -> None:
    data = data_of(page)
    assert data["episodes"] == json.loads(json.dumps(played.episodes["entries"]))
    chart = data["scores"]["measures"][0]["conditions"][0]
    means = {row["name"]: row["mean"] for row in chart["rows"]}
    stored = played.results["conditions"]["in-distribution"]["policies"]
    assert means == {name: pytest.approx(policy["reward"]["mean"]) for name, policy in stored.items()}
    assert [row["mean"] for row in chart["rows"]] == sorted(means.values(), reverse=True)


def test_every_policy_condition_and_grader_is_in_its_tables(played: Any, page: str) -> None:
    for name in ("random", "heuristic", "heuristic+constant"):
        assert f'<th scope="row">{name}</th>' in page
    for title in ("Reward by condition, v3", "Reward by condition, v2", "Differences, held-out"):
        assert title in page


def test_hostile_text_stays_text(played: Any, tmp_path: Path) -> None:
    episode = played.groups[0].episodes[0]
    turn = replace(episode.turns[0], action=HOSTILE, observation=HOSTILE, spans=())
    marked = replace(episode, turns=(turn, *episode.turns[1:]), system_prompt=HOSTILE, policy=HOSTILE)
    payload = shown_episodes(played.spec, [Group(task=episode.task, episodes=(marked,))])
    results = json.loads(json.dumps(played.results).replace("heuristic", json.dumps(HOSTILE)[1:-1]))
    path = write_eval_report(results, payload, tmp_path / "hostile.html")
    text = path.read_text(encoding="utf-8")
    assert "<img" not in text
    assert text.count("</script>") == 3
    assert data_of(text)["episodes"][0]["members"][0]["turns"][0]["action"] == HOSTILE


def test_a_run_that_has_just_begun_gives_a_report_of_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"stages": {}, "summaries": {}}), encoding="utf-8")
    text = write_report(tmp_path).read_text(encoding="utf-8")
    assert "Nothing was evaluated yet." in text
    for name in ("results.json", "sft/metrics.jsonl", "grpo/metrics.jsonl", "audit.json", "doctor.json", "costs.json"):
        assert f"({name}): not stored" in text


def test_broken_files_are_named_and_the_rest_is_shown(played: Any, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps(played.results), encoding="utf-8")
    (tmp_path / "audit.json").write_text('{"verdict": "pa', encoding="utf-8")
    (tmp_path / "costs.json").write_text("[]", encoding="utf-8")
    (tmp_path / "grpo").mkdir()
    (tmp_path / "grpo" / "metrics.jsonl").write_text('{"kind": "step", "step": "x"}\n', encoding="utf-8")
    evaluated = [each for group in played.groups for each in group.episodes]
    prepare_report(tmp_path, played.spec, shown_episodes(played.spec, played.groups[:1], evaluated=evaluated))
    text = write_report(tmp_path).read_text(encoding="utf-8")
    assert "audit.json cannot be read" in text
    assert "costs.json is not what Gradus writes there: at the whole" in text
    assert "grpo/metrics.jsonl record 1 is not what Gradus writes there: at step" in text
    assert len(data_of(text)["episodes"]) == 1
    listed = data_of(text)["listed"]  # and every other episode by its figures
    assert [row["policy"] for row in listed] == [each.policy for each in evaluated]
    assert [row["reward"] for row in listed] == [pytest.approx(each.reward.value, abs=1e-3) for each in evaluated]


def test_the_same_run_gives_the_same_bytes(played: Any, tmp_path: Path) -> None:
    first = write_eval_report(played.results, played.episodes, tmp_path / "a.html").read_bytes()
    assert write_eval_report(played.results, played.episodes, tmp_path / "b.html").read_bytes() == first


def test_costs_health_and_audit_are_shown_as_stored(played: Any, tmp_path: Path) -> None:
    stages = [
        {"stage": "teach", "seconds": 200.0, "episodes": 1500, "cost": 1.25},
        {"stage": "grpo", "seconds": 3400.0, "tokens": 12_000},
    ]
    (tmp_path / "costs.json").write_text(json.dumps({"schema": 2, "stages": stages}), encoding="utf-8")
    diagnosis = {
        "rule": "zero-variance groups",
        "severity": "warn",
        "evidence": "0.62 of the groups",
        "remedy": "a larger G",
    }
    health = {"schema": 2, "status": "warn", "summary": "one warning", "diagnoses": [diagnosis]}
    (tmp_path / "doctor.json").write_text(json.dumps(health), encoding="utf-8")
    checks = [{"name": "separation", "status": "fail", "evidence": "random 0.250 > heuristic 0.240", "measured": {}}]
    (tmp_path / "audit.json").write_text(json.dumps(audit_document(checks=checks)), encoding="utf-8")
    text = write_report(tmp_path).read_text(encoding="utf-8")
    for words in (
        "3 min 20 s",
        "1,500 episodes",
        "$1.25",
        "12,000",
        "1 h 00 min",
        "zero-variance groups",
        "0.62 of the groups",
    ):
        assert words in text
    assert "random 0.250 &gt; heuristic 0.240" in text


def test_the_page_of_an_evaluation_lists_all_its_episodes(played: Any, tmp_path: Path) -> None:
    """The search knew only those whose turns are in the page."""
    evaluation = evaluate(played.spec, {"random": played.spec.policy("random")}, conditions=["held-out"], episodes=5)
    page = write_evaluation_report(played.spec, evaluation, tmp_path / "eval.html").read_text(encoding="utf-8")
    assert len(data_of(page)["listed"]) == 5
    assert 'data-run=""' in page  # so that it names no file of a run


def test_four_tiles_say_what_matters_under_the_headline() -> None:
    change = {"reward": {"mean": 0.05, "low": 0.03, "high": 0.07}}
    results = results_document("rhythm", {"grpo - sft": change})
    condition = results["conditions"]["main"]
    rewards = {"sft": None, "grpo": 0.8, "bayes": 0.93}
    condition["policies"] = {name: policy_figures(reward=reward) for name, reward in rewards.items()}
    for pair in condition["pairs"].values():
        pair["reward"] |= {"episodes": 40}
    record = RunRecord(
        name="run",
        results=results,
        recipe='[teach]\npolicy = "bayes"',
        audit=audit_document(checks=[{"name": "blind answers", "status": "fail", "evidence": ""}]),
        doctor={"status": "healthy", "summary": "Healthy: nothing to do.", "diagnoses": []},
    )
    tile = r'<li class="(\w+)"><a href="#\w+"><small>([^<]*)</small><b>([^<]*)</b>'
    assert re.findall(tile, render_report(record)) == [
        ("shown", "gain of GRPO", "+0.05"),
        ("open", "distance to the teacher", "−0.13"),
        ("refuted", "audit", "fail"),
        ("shown", "health", "healthy"),
    ]
    assert re.findall(tile, render_report(RunRecord(name="empty"))) == []
