"""Connects training to other processes: trackers of its metrics, and a server that samples for it."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel

from gradus.core import Policy
from gradus.core.files import write_folder
from gradus.policies.local.export import write_merged
from gradus.policies.local.loading import LoadedModel
from gradus.policies.vllm.http_sampler import HttpSampler, served_model
from gradus.rollouts import MAX_CONCURRENT
from gradus.training.config import GrpoConfig
from gradus.training.distributed.processes import barrier, world
from gradus.training.engine.fsdp import full_state_dict
from gradus.training.engine.loss_step import prepare_model
from gradus.training.run.options import PushWeights
from gradus.training.run.trackers import Trackers, open_trackers

_SECONDS, _SECONDS_A_TOKEN = 300.0, 0.25  # that an answer may take: long answers of a busy server take many minutes


def track(names: tuple[str, ...], folder: Path, config: BaseModel) -> Trackers:
    """The trackers of a training stage, writing into its folder; none in processes that write nothing."""
    return open_trackers(names if world().main else (), folder, name=folder.name, config=config.model_dump(mode="json"))


def served_sampler(
    model: str | LoadedModel, config: GrpoConfig, folder: Path
) -> tuple[str | LoadedModel, Policy | None, PushWeights | None]:
    """The model to train, the policy that samples in its place, and what brings that new weights; as given, None and None for local.

    ``http`` and ``vllm`` are one dialect, see :class:`~gradus.policies.vllm.http_sampler.HttpSampler`. A server that wants a key gets
    VLLM_API_KEY. Raises ConfigError if it cannot be reached or gives no token ids and log-probs.
    """
    if config.sampler == "local":
        return model, None, None
    loaded = prepare_model(model, config)
    assert config.sampler_url is not None  # the settings see to it
    key = os.environ.get("VLLM_API_KEY")
    policy = HttpSampler(
        served_model(config.sampler_url, api_key=key),
        base_url=config.sampler_url,
        renderer=loaded.renderer,
        sampling=config.sampling,
        api_key=key,
        concurrency=config.batch_size or MAX_CONCURRENT,
        timeout=max(_SECONDS, _SECONDS_A_TOKEN * config.sampling.max_new_tokens),
        name="grpo",
    )
    return loaded, policy, weights_to_server(policy, folder / "sampler")


def weights_to_server(policy: HttpSampler, folder: Path) -> PushWeights:
    """Write the weights to ``folder`` and let the server read them.

    The server must see the same files. Process 0 alone does it; the others wait.
    """

    def push_weights(loaded: LoadedModel, step: int) -> None:
        state = full_state_dict(loaded.model)

        def fill(aside: Path) -> None:
            write_merged(aside, loaded.model, state)
            loaded.tokenizer.save_pretrained(aside)

        if world().main:
            write_folder(folder, fill)
            policy.reload(folder)
        barrier()

    return push_weights
