"""Clients' sessions, models and samplers, and what each request of the Tinker API does with them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gradus.core import child_seed
from gradus.core.values import Json
from gradus.interop.serving.requests import ApiError
from gradus.interop.tinker.adapters import AdapterShape, TrainedAdapter, Weights
from gradus.interop.tinker.checkpoints import CheckpointStore, SavedAdapter
from gradus.interop.tinker.engine import AdapterEngine
from gradus.interop.tinker.jobs import EngineJob, JobQueue
from gradus.interop.tinker.losses import check_datum, served_loss
from gradus.interop.tinker.sdk import check_client
from gradus.interop.tinker.settings import adam_settings, adapter_shape, sample_order
from gradus.interop.tinker.wire import ForwardRequest, SampleResult

_MOST_SESSIONS = 256
_MOST_MODELS = 16
_MOST_SAMPLERS = 1024
_MOST_SNAPSHOTS = 16  # unnamed samplers of one model; the oldest gives way
_SILENT = 120.0  # seconds without a sign of life after which a session gives way to another; clients send one every ten


@dataclass(eq=False, kw_only=True)
class ServedSession:
    """One client program."""

    owner: str
    # When it was last heard of, on the monotonic clock.
    seen: float = field(default_factory=time.monotonic)


@dataclass(eq=False, kw_only=True)
class ServedModel:
    """An adapter that a client trains."""

    id: str
    session: str
    owner: str
    shape: AdapterShape
    # The engine's thread makes it, in the model's first job.
    adapter: TrainedAdapter | None = None

    @property
    def trained(self) -> TrainedAdapter:
        """The adapter. Raises ValueError if it could not be made."""
        if self.adapter is None:
            raise ValueError(f"{self.id} could not be made; create another")
        return self.adapter


@dataclass(eq=False, kw_only=True)
class ServedSampler:
    """Weights that a client samples from: a snapshot of a model, a checkpoint, or neither: the base."""

    session: str
    owner: str
    # Its number in the session, which its samples draw from.
    number: int
    # The model, and the snapshot of it, which the engine's thread takes.
    model: ServedModel | None = None
    snapshot: Weights | None = None
    # The checkpoint.
    card: SavedAdapter | None = None

    def weights(self, store: CheckpointStore) -> tuple[AdapterShape | None, Weights]:
        """What is sampled from. Raises ValueError for a snapshot that was not taken."""
        if self.card is not None:
            return self.card.shape, store.load(self.card)[0]
        if self.model is None:
            return None, {}
        if self.snapshot is None:
            raise ValueError(f"the snapshot of {self.model.id} was not taken; wait for its request")
        return self.model.shape, self.snapshot


class TrainingService:
    """What is served: ``name`` is the base model's; ``seed`` draws whatever a client gives no seed for.

    Methods are called from the event loop, with the caller's ``owner``; what takes time is a job for the engine. All raise ApiError.
    """

    def __init__(self, engine: AdapterEngine, store: CheckpointStore, *, name: str, seed: int = 0) -> None:
        self.engine = engine
        self.jobs = JobQueue()
        self.store = store
        self.name = name
        self._seed = seed
        self._sessions: dict[str, ServedSession] = {}
        self._models: dict[str, ServedModel] = {}
        self._samplers: dict[str, ServedSampler] = {}

    def capabilities(self) -> Json:
        """The one model of this server."""
        context = self.engine.loaded.context
        model = {"model_name": self.name, "max_context_length": context, "trainable": True, "sampleable": True}
        return {"supported_models": [model]}

    def create_session(self, owner: str, request: Any) -> Json:
        """Begins a client program's session."""
        check_client(request.sdk_version)
        self._make_room(self._sessions, _MOST_SESSIONS, "sessions")
        session = str(uuid.uuid4())
        self._sessions[session] = ServedSession(owner=owner)
        return {"type": "create_session", "session_id": session}

    def heartbeat(self, owner: str, request: Any) -> Json:
        """Keeps a session."""
        self._session(owner, request.session_id)
        return {"type": "session_heartbeat"}

    # -- models -------------------------------------------------------------------------------------------------------

    def create_model(self, owner: str, request: Any) -> Json:
        """Makes an adapter on the base model. The same number in a session again is the same model."""
        self._check_base(request.base_model)
        shape = adapter_shape(request)
        seed = request.lora_config.seed
        if seed is None:
            seed = child_seed(self._seed, "adapter", request.model_seq_id)
        model = self._add_model(owner, request, shape)

        def work() -> Json:
            model.adapter = self.engine.new_adapter(shape, seed)
            return {"type": "create_model", "model_id": model.id}

        return self._submit(f"{model.id}:create", owner, work)

    def get_info(self, owner: str, request: Any) -> Json:
        """Describes a model."""
        model = self._model(owner, request.model_id)
        return {
            "type": "get_info",
            "model_data": {"model_name": self.name, "tokenizer_id": self.engine.loaded.path},
            "model_id": model.id,
            "model_name": self.name,
            "is_lora": True,
            "lora_rank": model.shape.rank,
        }

    def unload_model(self, owner: str, request: Any) -> Json:
        """Forgets a model; its checkpoints stay."""
        model = self._model(owner, request.model_id)
        self._drop_model(model.id)
        return self._submit(f"{model.id}:unload", owner, lambda: {"type": "unload_model", "model_id": model.id})

    def forward(self, owner: str, request: ForwardRequest) -> Json:
        """Scores a batch and, unless it is forward only, adds its gradient."""

        def prepare(model: ServedModel) -> Callable[[], Any]:
            loss = served_loss(request.loss, request.settings)
            if not request.data:
                raise ApiError("the batch is empty; send a datum at least")
            for datum in request.data:
                check_datum(loss, datum, self.engine.vocabulary, self.engine.loaded.context)
            return lambda: self.engine.forward(model.trained, request.data, loss, backward=request.backward)

        return self._in_turn(owner, request, prepare)

    def optim_step(self, owner: str, request: Any) -> Json:
        """Lets Adam move the weights by the gradients since the last step."""

        def prepare(model: ServedModel) -> Callable[[], Json]:
            settings, clip = adam_settings(request)
            return lambda: {"type": "optim_step", "metrics": {"grad_norm": model.trained.step(settings, clip)}}

        return self._in_turn(owner, request, prepare)

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def save_weights(self, owner: str, request: Any) -> Json:
        """Saves weights and Adam's state under a name. The result comes when both are on the disk."""

        def prepare(model: ServedModel) -> Callable[[], Json]:
            card = self._card(model, "weights", request)
            overwrites = getattr(request, "overwrite", False)  # not every version of the SDK has it

            def work() -> Json:
                # Looked at in the job's turn: an earlier one may have saved under the same name.
                if not overwrites and self.store.check_path(card.path).exists():
                    raise ValueError(f"{card.path} is there already; choose another name, or set overwrite")
                return self._save(model, card, model.trained.moments())

            return work

        return self._in_turn(owner, request, prepare)

    def save_weights_for_sampler(self, owner: str, request: Any) -> Json:
        """Saves weights under a name, or keeps a snapshot of them for a new sampler."""

        def prepare(model: ServedModel) -> Callable[[], Json]:
            if request.path:
                card = self._card(model, "sampler_weights", request)
                return lambda: self._save(model, card, None)
            number = request.sampling_session_seq_id or 0
            fresh = ServedSampler(session=model.session, owner=owner, number=number, model=model)
            sampler_id, sampler = self._add_sampler(fresh)

            def keep() -> Json:
                sampler.snapshot = model.trained.snapshot()
                return {"type": "save_weights_for_sampler", "sampling_session_id": sampler_id}

            return keep

        return self._in_turn(owner, request, prepare)

    def load_weights(self, owner: str, request: Any) -> Json:
        """Loads a checkpoint into a model, or into a new one, with Adam's state if ``request.optimizer`` is set."""
        card = self.store.card(request.path, owner)
        self._check_base(getattr(request, "base_model", None) or card.base_model)

        def prepare(model: ServedModel) -> Callable[[], Json]:
            if card.shape != model.shape:
                raise ApiError(f"{card.path} is of {card.shape}, the model of {model.shape}; create one of that shape")

            def work() -> Json:
                weights, moments = self.store.load(card)
                if request.optimizer and moments is None:
                    raise ValueError(f"{card.path} holds no state of an optimizer; load its weights alone")
                # A model that begins here has no adapter yet; what it is drawn with is overwritten.
                model.adapter = model.adapter or self.engine.new_adapter(model.shape, 0)
                model.adapter.restore(weights, moments if request.optimizer and moments else {})
                return {"type": "load_weights", "path": card.path, "model_id": model.id}

            return work

        # Later versions of the SDK make a model by its first load.
        if getattr(request, "session_id", None) is None:
            return self._in_turn(owner, request, prepare)
        model = self._add_model(owner, request, card.shape)
        return self._submit(f"{model.id}:create", owner, prepare(model))

    def weights_info(self, owner: str, path: str) -> Json:
        """Describes a checkpoint as far as a client must know it to load it."""
        card = self.store.card(path, owner)
        shape = asdict(card.shape)
        rank = shape.pop("rank")
        return {"base_model": card.base_model, "is_lora": True, "lora_rank": rank, **shape}

    def checkpoints(self, owner: str, model: str | None = None) -> Json:
        """Lists a client's checkpoints, all or those of one model."""
        start = f"tinker://{model}/" if model else ""
        cards = [card for card in self.store.cards(owner) if card.path.startswith(start)]
        return {"checkpoints": [card.listed() for card in cards]}

    def _card(self, model: ServedModel, kind: str, request: Any) -> SavedAdapter:
        now = time.time()
        name = request.path or int(now * 1000)  # without a name, one that no other has
        path = f"tinker://{model.id}/{kind}/{name}"
        self.store.check_path(path)
        return SavedAdapter(
            path=path,
            owner=model.owner,
            base_model=self.name,
            shape=model.shape,
            created=now,
            expires=None if request.ttl_seconds is None else now + request.ttl_seconds,
        )

    def _save(self, model: ServedModel, card: SavedAdapter, moments: Mapping[str, Any] | None) -> Json:
        describe = self.engine.slot.peft_config(model.shape).save_pretrained
        self.store.save(card, model.trained.snapshot(), moments, describe)
        return {"path": card.path}

    # -- sampling -----------------------------------------------------------------------------------------------------

    def create_sampling_session(self, owner: str, request: Any) -> Json:
        """Makes a sampler of a checkpoint or of the base."""
        self._session(owner, request.session_id)
        card = None if request.model_path is None else self.store.card(request.model_path, owner)
        self._check_base(request.base_model or (card.base_model if card else ""))
        number = request.sampling_session_seq_id
        fresh = ServedSampler(session=request.session_id, owner=owner, number=number, card=card)
        sampler_id, _ = self._add_sampler(fresh)
        return {"type": "create_sampling_session", "sampling_session_id": sampler_id}

    def sampler(self, owner: str, sampler_id: str) -> Json:
        """Describes a sampler."""
        card = self._sampler(owner, sampler_id).card
        return {"sampler_id": sampler_id, "base_model": self.name, "model_path": card and card.path}

    def sample(self, owner: str, request: Any) -> Json:
        """Samples from a sampler. The same number again is the same request."""
        number = request.seq_id or 0
        sampler = self._sampler(owner, request.sampling_session_id or "")
        seed = child_seed(self._seed, "sample", sampler.number, number)
        order = sample_order(request, self.engine, seed)
        request_id = f"{request.sampling_session_id}:{number}"

        def work() -> SampleResult:
            return self.engine.sample(*sampler.weights(self.store), order)

        names = [f"{request_id}:{index}" for index in range(order.count)]
        return {**self._submit(request_id, owner, work), "sample_sequence_ids": names}

    # -- sessions and what belongs to them ----------------------------------------------------------------------------

    def _check_base(self, name: str) -> None:
        if name not in (self.name, self.engine.loaded.path):
            raise ApiError(f"this server has the model {self.name!r}, not {name[:80]!r}", status=404)

    def _session(self, owner: str, session: str) -> None:
        """Notes a sign of life of a session. Raises ApiError, 404, if this client has no such session."""
        record = self._sessions.get(session)
        if record is None or record.owner != owner:
            raise ApiError(
                "you have no such session; it ended, or the server began anew: make a new client", status=404
            )
        record.seen = time.monotonic()

    def _model(self, owner: str, model_id: str) -> ServedModel:
        model = self._models.get(model_id)
        if model is None or model.owner != owner:
            raise ApiError(f"you have no model {model_id[:80]!r}; load a checkpoint into a new one", status=404)
        self._session(owner, model.session)
        return model

    def _sampler(self, owner: str, sampler_id: str) -> ServedSampler:
        sampler = self._samplers.get(sampler_id)
        if sampler is None or sampler.owner != owner:
            kept = f"of those without a name the newest {_MOST_SNAPSHOTS} of a model are kept"
            raise ApiError(f"you have no sampler {sampler_id[:80]!r}; {kept}", status=404)
        self._session(owner, sampler.session)
        return sampler

    def _add_model(self, owner: str, request: Any, shape: AdapterShape) -> ServedModel:
        self._session(owner, request.session_id)
        model_id = f"{request.session_id}:train:{request.model_seq_id or 0}"
        # A client that had no answer sends its request again.
        if model_id in self._models:
            return self._models[model_id]
        if not self.engine.slot.supports(shape):
            raise ApiError(f"the model has no layers for {shape}")
        self._make_room(self._models, _MOST_MODELS, "models")
        model = ServedModel(id=model_id, session=request.session_id, owner=owner, shape=shape)
        self._models[model_id] = model
        self.jobs.open_line(model_id)
        return model

    def _add_sampler(self, sampler: ServedSampler) -> tuple[str, ServedSampler]:
        sampler_id = f"{sampler.session}:sample:{sampler.number}"
        if sampler_id in self._samplers:
            return sampler_id, self._samplers[sampler_id]
        if sampler.model is not None:
            # Those of a checkpoint or of the base weigh nothing; a snapshot is a copy of the weights.
            snapshots = [key for key, other in self._samplers.items() if other.model is sampler.model]
            if len(snapshots) >= _MOST_SNAPSHOTS:
                del self._samplers[snapshots[0]]
        self._make_room(self._samplers, _MOST_SAMPLERS, "samplers")
        self._samplers[sampler_id] = sampler
        return sampler_id, sampler

    def _make_room(self, things: Mapping[str, Any], most: int, kind: str) -> None:
        """Drops the session that was silent longest if there are too many things. Raises ApiError if none was silent."""
        if len(things) < most:
            return
        session = min(self._sessions, key=lambda name: self._sessions[name].seen)
        silence = time.monotonic() - self._sessions[session].seen
        if silence < _SILENT:
            raise ApiError(
                f"this server holds {most} {kind} already; end a client, and try again {_SILENT:.0f} s later"
            )
        del self._sessions[session]
        # Copied: models and samplers are taken out on the way.
        for model_id, model in list(self._models.items()):
            if model.session == session:
                self._drop_model(model_id)
        for sampler_id, sampler in list(self._samplers.items()):
            if sampler.session == session:
                del self._samplers[sampler_id]

    def _drop_model(self, model_id: str) -> None:
        del self._models[model_id]
        self.jobs.close_line(model_id)

    def _submit(self, request_id: str, owner: str, work: Callable[[], Any]) -> Json:
        self.jobs.submit(request_id, EngineJob(owner=owner, work=work))
        return {"request_id": request_id}

    def _in_turn(self, owner: str, request: Any, prepare: Callable[[ServedModel], Callable[[], Any]]) -> Json:
        """Queues what ``prepare`` makes of a model's request. The turn of a request that it refuses passes."""
        model = self._model(owner, request.model_id or "")
        try:
            job = EngineJob(owner=owner, work=prepare(model))
        except ApiError:
            self.jobs.skip(model.id, request.seq_id)
            raise
        return {"request_id": self.jobs.submit_in_line(model.id, request.seq_id, job), "model_id": model.id}
