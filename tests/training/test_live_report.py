"""The page of a run that goes on: how far it is, its last answers with rewards, its curves, its health."""

from pathlib import Path

import pytest
from short_runs import Stopped, grpo_config, stop_after, train
from starlette.testclient import TestClient

from gradus.interop.live import live_app


def test_the_page_of_a_run_that_goes_on(lamps_model: Path, tmp_path: Path) -> None:
    client = TestClient(live_app(tmp_path), base_url="http://127.0.0.1")
    assert "has not taken a step" in client.get("/").text
    config = grpo_config(max_steps=9, store_every=1, checkpoint_every=1)
    with pytest.raises(Stopped):
        train(lamps_model, tmp_path / "grpo", config, on_step=stop_after(3))
    page = client.get("/").text
    assert "Step 3, at most 9" in page
    assert 'http-equiv="refresh"' in page
    assert "Last answers (step-000003)" in page
    assert "too short to judge" in page
    assert "<b>healthy</b>" not in page
    assert '"curves"' in page
    (tmp_path / "grpo" / "config.json").unlink()  # what cannot be read now is said, and looked at again
    refused = client.get("/")
    assert refused.status_code == 503
    assert "config.json" in refused.text


def test_another_host_than_this_machine_is_refused(tmp_path: Path) -> None:
    assert TestClient(live_app(tmp_path), base_url="http://elsewhere.example").get("/").status_code == 403
