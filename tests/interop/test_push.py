"""What ``gradus export --push`` would upload and what really arrives: huggingface_hub talks to a small Hub on this machine."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import yaml
from command_line import gradus
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from tiny_qwen2 import make_tiny_qwen2

from gradus import load_environment, roll_out
from gradus.core import ConfigError, GradusError
from gradus.interop.push import plan_push, upload
from gradus.policies.local.export import export_model
from gradus.rollouts import write_episodes
from tests.fakes import policy_figures, results_document

NONE = {"mean": None, "low": None, "high": None}
RESULTS = results_document(
    "adder", {"grpo - sft": {"reward": {**NONE, "mean": 0.1}, "true_reward": NONE}}, grader="sum"
)
RESULTS["conditions"]["main"]["policies"]["grpo"] = policy_figures(
    reward={"mean": 0.5, "low": 0.4, "high": 0.6}, true_reward=1.0
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder as a run leaves it, with what must not be uploaded."""
    folder = tmp_path / "run"
    best = folder / "grpo" / "best"
    best.mkdir(parents=True)
    (best / "config.json").write_text('{"model_type": "qwen2"}')
    (best / "model.safetensors").write_bytes(bytes(range(256)) * 8)
    (best / "README.md").write_text("written by somebody else")
    (best / ".cache.part").write_text("half")
    (best / "weights.part").write_text("half")
    (folder / "grpo" / "checkpoints").mkdir()
    (folder / "grpo" / "checkpoints" / "optimizer.pt").write_text("large")
    (folder / "results.json").write_text(json.dumps(RESULTS))
    return folder


class LittleHub:
    """The calls of the Hub that an upload needs; keeps what it was sent."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.created: list[dict[str, Any]] = []
        self.app = Starlette(
            routes=[
                Route("/api/repos/create", self.create, methods=["POST"]),
                Route("/api/validate-yaml", self.check, methods=["POST"]),
                Route("/api/{kind}/{owner}/{name}/preupload/main", self.ask, methods=["POST"]),
                Route("/api/{kind}/{owner}/{name}/commit/main", self.commit, methods=["POST"]),
            ]
        )

    async def create(self, request: Request) -> JSONResponse:
        if request.headers.get("authorization") != "Bearer hf_right":
            return JSONResponse({"error": "Invalid credentials"}, status_code=401)
        self.created.append(await request.json())
        return JSONResponse({"url": f"{request.base_url}me/it"})

    async def check(self, request: Request) -> JSONResponse:
        content = (await request.json())["content"]
        assert isinstance(yaml.safe_load(content.split("---")[1]), dict)
        return JSONResponse({"errors": [], "warnings": []})

    async def ask(self, request: Request) -> JSONResponse:
        wanted = (await request.json())["files"]
        return JSONResponse({"files": [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in wanted]})

    async def commit(self, request: Request) -> JSONResponse:
        for line in (await request.body()).decode().splitlines():
            entry = json.loads(line)
            if entry["key"] == "file":
                self.files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
        return JSONResponse({"success": True, "commitOid": "0" * 40, "commitUrl": f"{request.base_url}me/it/commit/0"})


def test_a_model_that_was_pushed_before_has_each_file_once(run: Path) -> None:
    """Its figures and results are in the model's own folder, and were planned twice."""
    model = run / "grpo" / "best"
    (model / "figures").mkdir()
    (model / "figures" / "reward.png").write_bytes(b"png")
    (run / "results.json").rename(model / "results.json")
    paths = list(plan_push(model, "me/model").files)
    assert {"figures/reward.png", "results.json"} <= set(paths)
    assert len(paths) == len(set(paths))


def test_what_the_plan_says_is_what_arrives(run: Path, serve: Callable[..., Any]) -> None:
    plan = plan_push(run, "me/it")
    hub = LittleHub()
    with serve(uvicorn.Config(hub.app, log_level="error")) as address:
        upload(plan, endpoint=f"http://{address}", token="hf_right")
        with pytest.raises(GradusError, match="log in"):
            upload(plan, endpoint=f"http://{address}", token="hf_wrong")
    assert set(hub.files) == set(plan.files)
    assert set(hub.files) == {"README.md", "config.json", "model.safetensors", "results.json"}
    assert hub.files["model.safetensors"] == bytes(range(256)) * 8
    assert sum(len(content) for content in hub.files.values()) == sum(map(plan.size, plan.files))
    (created,) = hub.created
    assert created["name"] == "it"
    assert created.get("private") is True or created.get("visibility") == "private"


def test_the_models_card_has_the_figures_of_the_run(run: Path) -> None:
    card = plan_push(run, "me/it").files["README.md"]
    assert isinstance(card, str)
    head = yaml.safe_load(card.split("---")[1])
    assert head["library_name"] == "transformers"
    assert "| grpo | 0.500 [0.400,\xa00.600] | 1.000 |" in card
    assert "| grpo - sft | 0.100 |" in card
    assert "somebody else" not in card


def test_figures_and_hyperparameters_go_with_the_model(run: Path) -> None:
    (run / "figures").mkdir()
    (run / "figures" / "scores.png").write_bytes(b"\x89PNG")
    (run / "recipe.toml").write_text("[grpo]\nlr = 0.001\n")
    files = plan_push(run, "me/it").files
    card = str(files["README.md"])
    assert files["figures/scores.png"] == run / "figures" / "scores.png"
    assert "![scores](figures/scores.png)" in card
    assert "lr = 0.001" in card
    (run / "recipe.toml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(GradusError, match=r"recipe\.toml"):
        plan_push(run, "me/it")


def test_a_model_folder_alone_says_that_it_was_not_evaluated(run: Path) -> None:
    plan = plan_push(run / "grpo" / "best", "me/it", private=False)
    assert set(plan.files) == {"README.md", "config.json", "model.safetensors"}
    assert not plan.private
    assert "not evaluated" in str(plan.files["README.md"])


def test_a_dry_run_shows_everything_writes_it_and_sends_nothing(tmp_path: Path, run: Path) -> None:
    out = tmp_path / "published"
    shown = gradus("export", run, "--push", "me/it", "--dry-run", "--out", out)
    plan = plan_push(run, "me/it")
    for path in plan.files:
        assert path in shown.output
        assert f"{plan.size(path):,}" in shown.output
    assert "nothing was uploaded" in shown.output
    assert "library_name" in shown.output
    written = {path.relative_to(out).as_posix(): path for path in out.rglob("*") if path.is_file()}
    assert written.keys() == plan.files.keys()
    assert all(written[path].stat().st_size == plan.size(path) for path in plan.files)
    with pytest.raises(ConfigError, match="not empty"):
        gradus("export", run, "--push", "me/it", "--dry-run", "--out", out)


def test_the_card_has_the_claim_of_a_run_and_the_lessons_are_a_data_set(
    tmp_path: Path, run: Path, serve: Callable[..., Any]
) -> None:
    costs = {"schema": 2, "stages": [{"stage": "grpo", "seconds": 60.0, "cost": 0.5}], "total": 0.5}
    gain = {"pair": "grpo - sft", "mean": 0.2, "low": 0.1, "high": 0.3}
    (run / "costs.json").write_text(json.dumps({**costs, "gain_per_dollar": gain}))
    (run / "recipe.toml").write_text('environment = "adder"\n')
    seen = {**RESULTS, "graders": {"other": {"conditions": RESULTS["conditions"]}}}
    (run / "results.json").write_text(json.dumps(seen))
    episodes = roll_out(load_environment("arithmetic"), "teacher", episodes=2).episodes
    write_episodes(run / "teach" / "episodes.jsonl.gz", episodes, environment="arithmetic", note="teacher teacher")
    plan = plan_push(run, "me/it")
    card = str(plan.files["README.md"])
    assert "grader `sum`" in card
    assert "grader `other`" in card
    assert "| grpo | 60 | $0.50 |" in card
    assert "grpo - sft, reward for each dollar: 0.200" in card
    assert "gradus run recipe.toml" in card
    assert "2 episodes of `arithmetic`" in str(plan.files["dataset/README.md"])
    hub = LittleHub()
    with serve(uvicorn.Config(hub.app, log_level="error")) as address:
        upload(plan, endpoint=f"http://{address}", token="hf_right")
    assert [(each["name"], each.get("type")) for each in hub.created] == [("it", "model"), ("it-episodes", "dataset")]
    assert {"train.jsonl.gz", "costs.json", "recipe.toml"} <= hub.files.keys()


def test_what_cannot_be_pushed_is_said(tmp_path: Path, run: Path) -> None:
    with pytest.raises(ConfigError, match="owner/name"):
        plan_push(run, "it")
    with pytest.raises(ConfigError, match="expected a model folder"):
        plan_push(tmp_path, "me/it")
    with pytest.raises(GradusError, match="could not be reached"):
        upload(plan_push(run, "me/it"), endpoint="http://127.0.0.1:1", token="hf_right")


def test_a_stage_of_a_run_is_pushed_by_its_model_and_not_whole(run: Path) -> None:
    (run / "grpo" / "config.json").write_text('{"steps": 40}')  # the run's own settings
    paths = list(plan_push(run / "grpo", "owner/name").files)
    assert "model.safetensors" in paths
    assert not [path for path in paths if "checkpoints" in path or "/" in path]


def test_a_run_of_several_seeds_is_pushed_with_the_figures_of_the_seed_whose_weights_go(run: Path) -> None:
    """The mean of all seeds stood beside the weights of the first."""
    several = run.parent / "several"
    several.mkdir()
    run.rename(several / "seed-3")
    of_seed = json.loads((several / "seed-3" / "results.json").read_text())
    (several / "seed-3" / "results.json").write_text(json.dumps({**of_seed, "seeds": [3], "quick": True}))
    of_all = json.loads(json.dumps({**of_seed, "seeds": [3, 4]}).replace("0.5", "0.7"))
    (several / "results.json").write_text(json.dumps(of_all))
    files = plan_push(several, "me/it").files
    card = str(files["README.md"])
    assert "| grpo | 0.500" in card
    assert "training seed 3;" in card
    assert "Its figures prove nothing" in card
    assert files["results.json"] == several / "seed-3" / "results.json"


def test_an_exports_card_keeps_its_proof_when_it_is_pushed(tmp_path: Path) -> None:
    """A card was written anew that said that the model had not been evaluated."""
    export_model(make_tiny_qwen2(tmp_path / "model"), tmp_path / "out", results=RESULTS)
    card = str(plan_push(tmp_path / "out", "me/it").files["README.md"])
    assert "| grpo | 0.500 [0.400,\xa00.600] | 1.000 |" in card
    assert "# me/it\n" in card
    assert 'model="me/it"' in card
    assert '"out"' not in card
