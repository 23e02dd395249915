"""A model folder whose weights a Tinker server holds: tokenizer and settings are here, ``tinker.json`` says where the weights are."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from gradus.core.documents import read_document
from gradus.core.files import write_json
from gradus.policies.local.folders import ADDRESS
from gradus.policies.local.loading import LoadedTokenizer
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.local.settings import write_settings
from gradus.policies.tinker.policy import TinkerPolicy, TokenCounts
from gradus.policies.tinker.service import TinkerService


class WeightsAddress(BaseModel):
    """Where weights are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # The server's address.
    url: str
    # Folder or hub name that the tokenizer comes from.
    words: str
    # The server's paths of weights to sample from and to train on; None for the base model.
    sampler: str | None = None
    state: str | None = None
    # Rank of their adapters; None if nothing was trained.
    rank: int | None = None

    def service(self) -> TinkerService:
        """The server. All that use it in this process share one session."""
        return _service(self.url)

    def base(self) -> str:
        """The server's name of the base model. Raises ConfigError if it has none of that name."""
        return self.service().find_model(self.words)

    def sampling_client(self) -> Any:
        """The server's client that samples from these weights; the same for all that ask. Raises ConfigError if it has them no more."""
        service = self.service()
        base = self.base()
        key = self.sampler or base
        if key not in service.samplers:
            weights = {"base_model": base} if self.sampler is None else {"model_path": self.sampler}
            client = service.made(f"sample from {key}", service.client.create_sampling_client, **weights)
            # SkyRL samples from saved weights only as long as their model is in training.
            if self.state is not None and not service.can_sample(client):
                client = self._load_state()
            service.samplers[key] = client
        return service.samplers[key]

    def training_client(self, rank: int, seed: int | None = None) -> Any:
        """Makes adapters on the base model; returns the client that trains them. They are on the layers that adapters in this process are on."""
        service = self.service()
        base = self.base()
        options: dict[str, Any] = {"base_model": base, "rank": rank, "seed": seed, "train_unembed": False}
        create = service.client.create_lora_training_client
        return service.made(f"train the model {base} with adapters of rank {rank}", create, **options)

    def _load_state(self) -> Any:
        """Loads the saved state into a new adapter; returns the client that samples from it."""
        service = self.service()
        request = f"sample from {self.state}"
        assert self.rank is not None  # whoever has a state was trained
        training = self.training_client(self.rank)
        service.result(training.load_state(self.state), request)
        return service.made(request, training.save_weights_and_get_sampling_client)

    def write(self, folder: Path, words: LoadedTokenizer) -> None:
        """Writes a folder that every command that samples takes for a model."""
        words.tokenizer.save_pretrained(folder)
        write_settings(folder, words.settings)
        write_json(folder / ADDRESS, self.model_dump())


def address_of(folder: str | Path) -> WeightsAddress | None:
    """The model that a server holds for a folder; None for any other folder or name."""
    file = Path(folder) / ADDRESS
    if not file.is_file():
        return None
    return WeightsAddress.model_validate(read_document(file, dict[str, Any]))


def served_policy(
    model: WeightsAddress,
    words: LoadedTokenizer,
    sampling: SamplingConfig,
    *,
    name: str,
    counts: TokenCounts | None = None,
) -> TinkerPolicy:
    """A policy that samples from these weights. Raises ConfigError if the server cannot be asked or has them no more."""
    return TinkerPolicy(model.service(), model.sampling_client(), words, sampling, name=name, counts=counts)


@cache
def _service(url: str) -> TinkerService:
    return TinkerService(url)
