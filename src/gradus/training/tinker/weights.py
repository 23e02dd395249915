"""Trained weights on a Tinker server: opened, measured, saved and loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradus.core import StorageError
from gradus.core.documents import read_document
from gradus.core.files import write_folder, write_json
from gradus.core.frozen_record import frozen_record
from gradus.policies.local.loading import LoadedTokenizer
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.tinker.policy import TinkerPolicy, TokenCounts
from gradus.policies.tinker.served import WeightsAddress, served_policy
from gradus.training.config import GrpoConfig
from gradus.training.tinker.reduction import Reduction, measure_reduction
from gradus.training.tinker.remote import RemoteModel
from gradus.training.tinker.requests import TrainingRequests
from gradus.training.trainer_config import LoraConfig, TrainerConfig

_FILE = "server.json"  # of a checkpoint: where its weights and its optimizer are
_KEPT = 30 * 24 * 3600  # seconds that a server keeps the state of a checkpoint


@frozen_record
class ServedTraining:
    """A model on a server that is going to be trained: where it is, its tokenizer and settings, and where its tokens are counted."""

    model: WeightsAddress
    words: LoadedTokenizer
    counts: TokenCounts


class ServedWeights:
    """Trained weights on a server, with their optimizer. A checkpoint names where the server has them.

    The server is measured when they are opened: the adapter is moved for it and put back. ``source``: what training begins with.
    """

    def __init__(self, source: ServedTraining, config: TrainerConfig) -> None:
        self.source, self._config = source, config
        self._saved = 0
        self.open()

    def open(self) -> None:
        """Begins training of a new adapter, with the weights of the source."""
        model = self.source.model
        # A saved state goes on with adapters of its own rank, whatever stage wrote it.
        self.rank = model.rank or (self._config.lora or LoraConfig()).rank
        service, base = model.service(), model.base()
        client = model.training_client(self.rank, self._config.seed)
        self.requests = TrainingRequests(service=service, client=client)
        if model.state is not None:
            self.restore(model.state, optimizer=False)
        if base not in service.measured:
            start = self.save("start", seconds=_KEPT)
            service.measured[base] = measure_reduction(self.requests, len(self.source.words.tokenizer))
            self.restore(start, optimizer=False)  # its moments were 0
        self.remote = RemoteModel(requests=self.requests, reduction=service.measured[base], counts=self.source.counts)

    def reopen(self) -> None:
        """Begins anew in a new session, after the server has lost this one."""
        self.requests.service.forget_session()
        self.open()

    def sampling_client(self) -> Any:
        """A client that samples from the weights as they are."""
        create = self.requests.client.save_weights_and_get_sampling_client
        return self.requests.service.made("sample from the trained weights", create)

    def save(self, name: str, *, seconds: int | None = None) -> str:
        """Saves weights and optimizer on the server; returns the path there. ``seconds``: how long they are kept; for good by default."""
        return str(self._done("save", self.requests.client.save_state, self._name(name), ttl_seconds=seconds).path)

    def restore(self, path: str, *, optimizer: bool = True) -> None:
        """Puts weights (and ``optimizer``) back as they were saved."""
        client = self.requests.client
        self._done("load", client.load_state_with_optimizer if optimizer else client.load_state, path)

    def export(self, folder: Path, words: LoadedTokenizer) -> None:
        """Saves the weights on the server, to sample from and to train on, and writes a model folder that names them."""
        sampler = self._done("save", self.requests.client.save_weights_for_sampler, self._name(folder.name)).path
        saved = self._address(self.save(folder.name), str(sampler))
        write_folder(folder, lambda aside: saved.write(aside, words))

    def collect(self) -> Callable[[Path], None]:
        """Saves both on the server; returns what writes down where, as a checkpoint has it."""
        saved = self._address(self.save("checkpoint", seconds=_KEPT), self.source.model.sampler)
        return lambda folder: write_json(folder / _FILE, saved.model_dump())

    def load(self, folder: Path) -> None:
        """Lets the server put back what a checkpoint names. Raises StorageError for one of a model in this process."""
        if not (folder / _FILE).is_file():
            raise StorageError("it is of a model that was trained in this process; go on with trainer = 'local'")
        saved = WeightsAddress.model_validate(read_document(folder / _FILE, dict[str, Any]))
        if saved.state is None:
            raise StorageError(f"{_FILE} names no state")
        self.restore(saved.state)

    def _address(self, state: str, sampler: str | None) -> WeightsAddress:
        return self.source.model.model_copy(update={"sampler": sampler, "state": state, "rank": self.rank})

    def _name(self, what: str) -> str:
        """A name that the server has not had from this adapter."""
        self._saved += 1
        return f"{what}-{self._saved:04d}"

    def _done(self, verb: str, send: Callable[..., Any], name: str, **options: Any) -> Any:
        """Sends a request about saved weights, and waits for its result."""
        return self.requests.done(f"{verb} the weights {name}", send, name, **options)


def measure_server(source: ServedTraining, config: GrpoConfig) -> Reduction:
    """Measures a server, before anything is spent. Raises ConfigError if it lacks what these settings need."""
    weights = ServedWeights(source, config)
    if config.kl_coef:
        require_prompt_logprobs(source)
    return weights.remote.reduction


def require_prompt_logprobs(source: ServedTraining) -> TinkerPolicy:
    """Returns the model that KL is measured to. Raises ConfigError if the server gives no log-probs of a prompt."""
    address = source.model.model_copy(update={"state": None})
    base = served_policy(address, source.words, SamplingConfig(), name="base", counts=source.counts)
    base.prompt_logprobs([source.words.renderer.first("", "hello")])
    return base
