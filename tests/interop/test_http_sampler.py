"""A policy that samples over HTTP, against ``gradus serve`` and against servers that cannot do it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import uvicorn
from fakes import lamps
from short_runs import lamps_nano, lines, taught_lamps
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gradus.core import ConfigError, ContextLengthError, EnvironmentSpec, StopReason
from gradus.interop.serving.app import Access, make_app
from gradus.policies.local.conversation import room_behind
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.vllm.http_sampler import HttpSampler
from gradus.rollouts import roll_out
from gradus.training.config import GrpoConfig
from gradus.training.data.microbatches import microbatches
from gradus.training.data.sequences import episode_samples
from gradus.training.engine.forward import score_tokens
from gradus.training.engine.loss_step import TrainingError
from gradus.training.engine.tree_support import tree_attention
from gradus.training.grpo import train_grpo
from gradus.training.run.options import GrpoOptions

TOKEN = "a-token-of-the-test"
SAMPLING = SamplingConfig(temperature=1.3, max_new_tokens=5)


@pytest.fixture(scope="module")
def spec() -> EnvironmentSpec:
    return lamps()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lamps_nano(tmp_path_factory.mktemp("served") / "nano", context=160)


@pytest.fixture(scope="module")
def served(folder: Path, serve: Callable[..., Any]) -> Iterator[tuple[str, LoadedModel]]:
    loaded = load_model(folder)
    app = make_app(loaded, name="nano", rows=8, access=Access(token=TOKEN, weights=folder.parent))
    with serve(uvicorn.Config(app, log_level="warning")) as address:
        yield f"http://{address}/v1", loaded


async def list_models(_: Request) -> Response:
    return JSONResponse({"object": "list", "data": [{"id": "nano", "object": "model", "created": 0, "owned_by": "me"}]})


MODELS = Route("/v1/models", list_models)


def sampler(address: str, loaded: LoadedModel, **changes: Any) -> HttpSampler:
    options: dict[str, Any] = {"base_url": address, "renderer": loaded.renderer, "sampling": SAMPLING, "retries": 0}
    options["api_key"] = TOKEN
    return HttpSampler(**{**options, **changes})


def gaps(loaded: LoadedModel, episodes: list[Any]) -> torch.Tensor:
    """Trainer's minus sampler's log-prob of every sampled token."""
    sequences = [sequence for one in episodes for sequence in episode_samples(one)]
    differences: list[torch.Tensor] = []
    with torch.no_grad(), tree_attention(loaded.model):
        for batch in microbatches(sequences, budget=4096):
            scores = score_tokens(loaded.model, batch, SAMPLING)
            sampled = [torch.as_tensor(sequences[index].logprobs) for index in batch.sequences]
            differences.append(scores.logprobs.double() - torch.cat(sampled))
    return torch.cat(differences)


def test_what_the_server_sampled_is_what_the_trainer_scores(
    served: tuple[str, LoadedModel], spec: EnvironmentSpec
) -> None:
    address, loaded = served
    policy = sampler(address, loaded)
    tasks = [spec.train_task(index) for index in range(3)]
    rollouts = roll_out(spec, policy, tasks, group_size=4)
    again = roll_out(spec, policy, tasks, group_size=4)
    policy.close()
    assert {episode.stop for episode in rollouts.episodes} <= {StopReason.TERMINATED, StopReason.TOKEN_LIMIT}
    ratios = gaps(loaded, rollouts.episodes).exp()
    assert len(ratios) > 100
    assert float((ratios - 1).abs().max()) < 1e-4
    texts = [[turn.action for turn in episode.turns] for episode in rollouts.episodes]
    assert texts == [[turn.action for turn in episode.turns] for episode in again.episodes]  # keyed seeds
    assert len({tuple(text) for text in texts}) > 6  # and members differ


def test_a_row_that_does_not_fit_fails_alone(served: tuple[str, LoadedModel], spec: EnvironmentSpec) -> None:
    address, loaded = served
    long = replace(spec, make=lambda: Talkative(spec.make()))
    policy = sampler(address, loaded)
    episodes = roll_out(long, policy, [spec.train_task(index) for index in range(2)]).episodes
    assert all(episode.stop is StopReason.TOKEN_LIMIT for episode in episodes)
    assert all(episode.failure and episode.failure.type == "ContextLengthError" for episode in episodes)


class Talkative:
    """An environment whose second observation is longer than the context."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def step(self, action: str) -> Any:
        return replace(self.inner.step(action), text="red " * 300, terminated=False)


def test_new_weights_are_read_again(served: tuple[str, LoadedModel], spec: EnvironmentSpec, folder: Path) -> None:
    address, loaded = served
    policy = sampler(address, loaded)
    trained = load_model(folder)
    before = {name: value.clone() for name, value in trained.model.state_dict().items()}
    with torch.no_grad():
        for parameter in trained.model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    tasks = [spec.train_task(0)]
    stale = gaps(trained, roll_out(spec, policy, tasks, group_size=4).episodes)
    assert float(stale.abs().max()) > 1e-2  # the server is behind
    trained.model.save_pretrained(folder)
    policy.reload()
    fresh = gaps(trained, roll_out(spec, policy, tasks, group_size=4).episodes)
    assert float(fresh.abs().max()) < 1e-4
    trained.model.load_state_dict(before)
    trained.model.save_pretrained(folder)
    policy.reload()


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ('{"index": 0, "text": "red", "logprobs": null}', r"no token ids.*remote:MODEL"),
        ('{"token_ids": [3], "logprobs": {"token_logprobs": [-Infinity]}}', "one finite log-prob for each"),
    ],
)
def test_a_server_that_gives_nothing_to_train_on_is_refused(
    folder: Path, serve: Callable[..., Any], choice: str, told: str
) -> None:
    async def answer(request: Request) -> Response:
        return Response(f'{{"choices": [{choice}]}}', media_type="application/json")

    app = Starlette(routes=[MODELS, Route("/v1/completions", answer, methods=["POST"])])
    with serve(uvicorn.Config(app, log_level="warning")) as address, pytest.raises(ConfigError, match=told):
        sampler(f"http://{address}/v1", load_model(folder))


def test_wrong_addresses_and_settings_are_said(served: tuple[str, LoadedModel]) -> None:
    address, loaded = served
    with pytest.raises(ConfigError, match="does not list models"):
        sampler("http://127.0.0.1:1/v1", loaded)
    with pytest.raises(ConfigError, match="grammar"):
        sampler(address, loaded, sampling=SamplingConfig(grammar=True))


def grpo(**changes: Any) -> GrpoConfig:
    options: dict[str, Any] = {
        "groups": 4,
        "group_size": 4,
        "max_steps": 4,
        "lr": 3e-3,
        "sampling": SAMPLING,
        "validation_every": 0,
        "checkpoint_every": 100,
        "max_logp_diff": 1e-4,
    }
    if "correction" in changes:
        del options["max_logp_diff"]
    return GrpoConfig(**{**options, **changes})


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return taught_lamps(tmp_path_factory.mktemp("talker")) / "final"


def on_a_late_server(
    folder: Path, spec: EnvironmentSpec, run: Path, serve: Callable[..., Any], config: GrpoConfig
) -> list[dict[str, Any]]:
    """Train while the server always has the weights of two steps ago; returns the step records."""
    loaded = load_model(folder)
    waiting: list[dict[str, torch.Tensor]] = []
    with serve(uvicorn.Config(make_app(loaded, name="nano", rows=16), log_level="warning")) as address:
        policy = sampler(f"http://{address}/v1", loaded)

        def late(now: LoadedModel, step: int) -> None:
            waiting.append({name: value.clone() for name, value in now.model.state_dict().items()})
            if len(waiting) > 2:
                loaded.model.load_state_dict(waiting.pop(0))

        train_grpo(
            load_model(folder), spec, config, run, options=GrpoOptions(live=False, sampler=policy, push_weights=late)
        )
    return lines(run)


def test_a_server_two_steps_behind_is_corrected_and_logged(
    talker: Path, spec: EnvironmentSpec, tmp_path: Path, serve: Callable[..., Any]
) -> None:
    config = grpo(max_steps=5, groups=8, group_size=8, correction="truncate")
    records = [one for one in on_a_late_server(talker, spec, tmp_path / "run", serve, config) if one["trained_tokens"]]
    late = [one for one in records if one["step"] > 2]
    assert late
    assert records[0]["mismatch_ratio_max"] == pytest.approx(1.0, abs=1e-4)  # the first step is not late
    assert max(one["mismatch_ratio_max"] for one in late) > 1.01
    assert max(one["mismatch_kl"] for one in late) > 1e-5
    assert max(one["logp_diff_max"] for one in late) > 1e-2
    assert all(one["ratio_max"] == pytest.approx(1.0, abs=1e-5) for one in records)  # to the weights of the update


def test_a_late_server_without_a_correction_stops_the_run(
    talker: Path, spec: EnvironmentSpec, tmp_path: Path, serve: Callable[..., Any]
) -> None:
    loaded = load_model(talker)
    with serve(uvicorn.Config(make_app(loaded, name="nano", rows=16), log_level="warning")) as address:
        policy = sampler(f"http://{address}/v1", loaded)
        with pytest.raises(TrainingError, match="set correction = 'truncate'"):
            train_grpo(str(talker), spec, grpo(), tmp_path / "run", options=GrpoOptions(live=False, sampler=policy))


def test_an_answer_near_the_end_of_the_context_is_shorter_and_one_behind_it_fails_alone(
    served: tuple[str, LoadedModel],
) -> None:
    address, loaded = served
    assert loaded.context == 160
    policy = sampler(address, loaded, sampling=SamplingConfig(max_new_tokens=40))
    prompt = [*loaded.renderer.first("", "hello")]
    assert room_behind(len(prompt), 40, policy.context, "server") == 40
    room = room_behind(150, 40, policy.context, "server")
    assert room == 10
    assert policy.complete([*prompt, *[prompt[-1]] * (150 - len(prompt))], room, 0)["token_ids"]
    with pytest.raises(ContextLengthError, match="the server's context holds 160"):
        room_behind(160, 40, policy.context, "server")
    policy.close()


def test_what_a_servers_own_defaults_would_change_is_always_sent(folder: Path, serve: Callable[..., Any]) -> None:
    """vLLM takes what is not sent from the model's generation_config.json."""
    bodies: list[dict[str, Any]] = []

    async def record(request: Request) -> JSONResponse:
        bodies.append(await request.json())
        return JSONResponse({"choices": [{"token_ids": [3], "logprobs": {"token_logprobs": [-0.5]}}]})

    loaded = load_model(folder)
    app = Starlette(routes=[MODELS, Route("/v1/completions", record, methods=["POST"])])
    with serve(uvicorn.Config(app, log_level="warning")) as address:
        sampler(f"http://{address}/v1", loaded).close()
    neutral = {
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
    assert {name: bodies[0].get(name) for name in neutral} == neutral
    assert bodies[0]["stop_token_ids"] == sorted(loaded.renderer.stop_ids)
