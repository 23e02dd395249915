"""Clients' sessions, models and samplers, and what each request of the Tinker API does with them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gradus.core import child_seed
from gradus.core.values import Json
from gradus.interop.serving.requests import ApiError
from gradus.interop.tinker.adapters import AdapterShape, TrainedAdapter, Weights
from gradus.interop.tinker.checkpoints import CheckpointStore, SavedAdapter
from gradus.interop.tinker.engine import AdapterEngine, SampleOrder
from gradus.interop.tinker.jobs import EngineJob, JobQueue
from gradus.interop.tinker.losses import check_datum, check_ids, served_loss
from gradus.interop.tinker.wire import ForwardRequest, SampleResult, token_ids
from gradus.policies.local.sampling import SamplingConfig

_MOST_SESSIONS, _MOST_MODELS, _MOST_SAMPLERS = 256, 16, 1024
_MOST_SNAPSHOTS = 16  # unnamed samplers of one model; the oldest gives way
_LARGEST_RANK, _MOST_SAMPLES, _MOST_LIKELIEST = 256, 1024, 128
_SILENT = 120.0  # seconds without a sign of life after which a session gives way to another; clients send one every ten
_IDLE_FIELDS = ("topk_sample_logprobs", "target_prompt_logprobs", "prompt_alt_tokens_k", "record_stability_info")


@dataclass(eq=False, kw_only=True)
class ClientSession:
    """One client program. ``seen``: when it was last heard of, on the monotonic clock."""

    owner: str
    seen: float = field(default_factory=time.monotonic)


@dataclass(eq=False, kw_only=True)
class ServedModel:
    """An adapter that a client trains; the engine's thread makes ``adapter`` in the model's first job."""

    id: str
    session: str
    owner: str
    shape: AdapterShape
    adapter: TrainedAdapter | None = None

    @property
    def trained(self) -> TrainedAdapter:
        """The adapter. Raises ValueError if it could not be made."""
        if self.adapter is None:
            raise ValueError(f"{self.id} could not be made; create another")
        return self.adapter


@dataclass(eq=False, kw_only=True)
class ServedSampler:
    """Weights that a client samples from: a snapshot, a checkpoint, or neither: the base. ``number``: which of its session's it is."""

    session: str
    owner: str
    number: int
    model: str | None = None
    snapshot: tuple[AdapterShape, Weights] | None = None
    card: SavedAdapter | None = None


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
        self._sessions: dict[str, ClientSession] = {}
        self._models: dict[str, ServedModel] = {}
        self._samplers: dict[str, ServedSampler] = {}

    # -- sessions -----------------------------------------------------------------------------------------------------

    def create_session(self, owner: str, request: Any) -> Json:
        """Begins a client program's session."""
        self._make_room(self._sessions, _MOST_SESSIONS, "sessions")
        session = str(uuid.uuid4())
        self._sessions[session] = ClientSession(owner=owner)
        return {"type": "create_session", "session_id": session}

    def heartbeat(self, owner: str, request: Any) -> Json:
        """Keeps a session."""
        self._session(owner, request.session_id)
        return {"type": "session_heartbeat"}

    def finish_session(self, owner: str, session: str) -> Json:
        """Frees what a session holds, but for its checkpoints."""
        self._session(owner, session)
        self._drop_session(session)
        return {}

    # -- models -------------------------------------------------------------------------------------------------------

    def create_model(self, owner: str, request: Any) -> Json:
        """Makes an adapter on the base model. The same number in a session again is the same model."""
        self._check_base(request.base_model)
        _check_optimizer(request)
        config = request.lora_config
        if config is None:
            raise ApiError("this server trains LoRA adapters; set lora_config")
        shape = AdapterShape(
            rank=config.rank,
            train_attn=config.train_attn,
            train_mlp=config.train_mlp,
            train_unembed=config.train_unembed,
        )
        seed = config.seed
        if seed is None:
            seed = child_seed(self._seed, "adapter", request.model_seq_id)
        model = self._add_model(owner, request.session_id, request.model_seq_id, shape)

        def work() -> Json:
            model.adapter = self.engine.new_adapter(shape, seed)
            return {"type": "create_model", "model_id": model.id}

        return self._submit(owner, f"{model.id}:create", work, model_id=model.id)

    def get_info(self, owner: str, request: Any) -> Json:
        """Describes a model."""
        model = self._model(owner, request.model_id)
        data = {"arch": None, "model_name": self.name, "tokenizer_id": self.engine.loaded.path}
        head = {"type": "get_info", "model_data": data, "model_id": model.id, "model_name": self.name}
        return {**head, "is_lora": True, "lora_rank": model.shape.rank}

    def unload_model(self, owner: str, request: Any) -> Json:
        """Forgets a model; its checkpoints stay."""
        model = self._model(owner, request.model_id)
        self._drop_model(model.id)
        result = {"type": "unload_model", "model_id": model.id}
        return self._submit(owner, f"{model.id}:unload", lambda: result, model_id=model.id)

    def forward(self, owner: str, request: ForwardRequest) -> Json:
        """Scores a batch and, unless it is forward only, adds its gradient."""
        model = self._model(owner, request.model_id)
        with _Turn(self.jobs, model.id, request.seq_id):
            loss = served_loss(request.loss, request.settings)
            if not request.data:
                raise ApiError("the batch is empty; send a datum at least")
            for datum in request.data:
                check_datum(loss, datum, self.engine.vocabulary, self.engine.loaded.context)
        backward = request.backward

        def work() -> Any:
            return self.engine.forward(model.trained, request.data, loss, backward=backward)

        return self._submit_turn(model, request.seq_id, work)

    def optim_step(self, owner: str, request: Any) -> Json:
        """Lets Adam move the weights by the gradients since the last step."""
        model = self._model(owner, request.model_id)
        with _Turn(self.jobs, model.id, request.seq_id):
            # The SDK renamed the field.
            params = getattr(request, "optim_params", None) or request.adam_params
            settings = _adam_settings(params)

        def work() -> Json:
            norm = model.trained.step(settings, params.grad_clip_norm)
            return {"type": "optim_step", "metrics": {"grad_norm": norm}}

        return self._submit_turn(model, request.seq_id, work)

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def save_weights(self, owner: str, request: Any) -> Json:
        """Saves weights and Adam's state under a name. The result comes when both are on the disk."""
        model = self._model(owner, request.model_id)
        with _Turn(self.jobs, model.id, request.seq_id):
            card = self._card(model, "weights", request)
        overwrite = getattr(request, "overwrite", False)

        def work() -> Json:
            if not overwrite and self.store.check_path(card.path).exists():
                raise ValueError(f"{card.path} is there already; choose another name, or set overwrite")
            adapter = model.trained
            self.store.save(card, adapter.snapshot(), adapter.moments(), self._describe(model.shape))
            return {"type": "save_weights", "path": card.path}

        return self._submit_turn(model, request.seq_id, work)

    def save_weights_for_sampler(self, owner: str, request: Any) -> Json:
        """Saves weights under a name, or keeps a snapshot of them for a new sampler."""
        model = self._model(owner, request.model_id)
        with _Turn(self.jobs, model.id, request.seq_id):
            card = self._card(model, "sampler_weights", request) if request.path else None
        if card is not None:

            def save() -> Json:
                self.store.save(card, model.trained.snapshot(), None, self._describe(model.shape))
                return {"type": "save_weights_for_sampler", "path": card.path}

            return self._submit_turn(model, request.seq_id, save)
        number = request.sampling_session_seq_id or 0
        sampler = ServedSampler(session=model.session, owner=owner, number=number, model=model.id)
        sampler_id = f"{model.session}:sample:{number}"

        def keep() -> Json:
            sampler.snapshot = (model.shape, model.trained.snapshot())
            return {"type": "save_weights_for_sampler", "path": None, "sampling_session_id": sampler_id}

        answer = self._submit_turn(model, request.seq_id, keep)
        self._add_sampler(sampler_id, sampler)
        return answer

    def load_weights(self, owner: str, request: Any) -> Json:
        """Loads a checkpoint into a model, or into a new one, with Adam's state if ``request.optimizer`` is set."""
        card = self.store.card(request.path, owner)
        self._check_base(getattr(request, "base_model", None) or card.base_model)
        creates = getattr(request, "session_id", None) is not None
        if creates:
            model = self._add_model(owner, request.session_id, request.model_seq_id or 0, card.shape)
        else:
            model = self._model(owner, request.model_id or "")
        with _Turn(self.jobs, model.id, request.seq_id):
            if card.shape != model.shape:
                raise ApiError(f"{card.path} is of {card.shape}, the model of {model.shape}; create one of that shape")

        def work() -> Json:
            weights, moments = self.store.load(card)
            if request.optimizer and not moments:
                raise ValueError(
                    f"{card.path} was saved for sampling, without the optimizer's state; load its weights alone"
                )
            if model.adapter is None:
                model.adapter = self.engine.new_adapter(model.shape, 0)
            model.adapter.restore(weights, moments if request.optimizer else {})
            return {"type": "load_weights", "path": card.path, "model_id": model.id}

        if creates:
            return self._submit(owner, f"{model.id}:create", work, model_id=model.id)
        return self._submit_turn(model, request.seq_id, work)

    def weights_info(self, owner: str, path: str) -> Json:
        """Describes a checkpoint as far as a client must know it to load it."""
        card = self.store.card(path, owner)
        shape = card.shape
        layers = {"train_attn": shape.train_attn, "train_mlp": shape.train_mlp, "train_unembed": shape.train_unembed}
        return {"base_model": card.base_model, "is_lora": True, "lora_rank": shape.rank, **layers}

    def checkpoints(self, owner: str, model: str | None = None) -> Json:
        """Lists a client's checkpoints, all or those of one model."""
        cards = self.store.cards(owner)
        begin = f"tinker://{model}/" if model else ""
        return {"checkpoints": [card.listed() for card in cards if card.path.startswith(begin)]}

    def _card(self, model: ServedModel, kind: str, request: Any) -> SavedAdapter:
        now = time.time()
        path = f"tinker://{model.id}/{kind}/{request.path or f'{int(now * 1000)}'}"
        self.store.check_path(path)
        return SavedAdapter(
            path=path,
            owner=model.owner,
            base_model=self.name,
            shape=model.shape,
            created=now,
            expires=None if request.ttl_seconds is None else now + request.ttl_seconds,
            user_metadata=getattr(request, "user_metadata", None),
        )

    def _describe(self, shape: AdapterShape) -> Callable[..., Any]:
        return self.engine.slot.peft_config(shape).save_pretrained

    # -- sampling -----------------------------------------------------------------------------------------------------

    def create_sampling_session(self, owner: str, request: Any) -> Json:
        """Makes a sampler of a checkpoint or of the base."""
        self._session(owner, request.session_id)
        number = request.sampling_session_seq_id
        sampler = ServedSampler(session=request.session_id, owner=owner, number=number)
        sampler.card = self._sampled_card(owner, request)
        sampler_id = f"{request.session_id}:sample:{number}"
        self._add_sampler(sampler_id, sampler)
        return {"type": "create_sampling_session", "sampling_session_id": sampler_id}

    def sampler(self, owner: str, sampler_id: str) -> Json:
        """Describes a sampler."""
        card = self._sampler(owner, sampler_id).card
        return {"sampler_id": sampler_id, "base_model": self.name, "model_path": card and card.path}

    def sample(self, owner: str, request: Any) -> Json:
        """Samples from a sampler, or from the checkpoint or base that the request names."""
        if request.sampling_session_id is not None:
            sampler = self._sampler(owner, request.sampling_session_id)
            request_id = f"{request.sampling_session_id}:{request.seq_id or 0}"
        else:
            sampler = ServedSampler(session="", owner=owner, number=0, card=self._sampled_card(owner, request))
            request_id = f"sample:{uuid.uuid4()}"
        order = self._order(request, child_seed(self._seed, "sample", sampler.number, request.seq_id or 0))

        def work() -> SampleResult:
            return self.engine.sample(*self._weights_of(sampler), order)

        names = [f"{request_id}:{index}" for index in range(order.count)]
        return {**self._submit(owner, request_id, work), "sample_sequence_ids": names}

    def _weights_of(self, sampler: ServedSampler) -> tuple[AdapterShape | None, Weights]:
        """What a sampler samples from. Raises ValueError for a snapshot that was not taken."""
        if sampler.card is not None:
            return sampler.card.shape, self.store.load(sampler.card)[0]
        if sampler.snapshot is None and sampler.model is not None:
            raise ValueError(f"the snapshot of {sampler.model} was not taken; wait for its request")
        return sampler.snapshot or (None, {})

    def _sampled_card(self, owner: str, request: Any) -> SavedAdapter | None:
        if request.model_path is not None:
            return self.store.card(request.model_path, owner)
        self._check_base(request.base_model or "")
        return None

    def _order(self, request: Any, seed: int) -> SampleOrder:
        """Reads a request to sample. Raises ApiError for what the model, or this server, cannot do."""
        idle = [name for name in _IDLE_FIELDS if getattr(request, name, None)]
        if idle:
            raise ApiError(
                f"this server does not serve {', '.join(idle)}; leave it out (stable_reinforce needs it: set another loss_fn)"
            )
        prompt = token_ids(request.prompt)
        context = self.engine.loaded.context or len(prompt) + 2**16
        params = request.sampling_params
        budget = params.max_tokens or context - len(prompt)
        if not prompt or budget < 1 or len(prompt) + budget > context:
            raise ApiError(f"a prompt of {len(prompt)} tokens and max_tokens {budget} do not fit 1 to {context} tokens")
        if not 1 <= request.num_samples <= _MOST_SAMPLES or not 0 <= request.topk_prompt_logprobs <= _MOST_LIKELIEST:
            raise ApiError(f"num_samples is 1 to {_MOST_SAMPLES}, topk_prompt_logprobs 0 to {_MOST_LIKELIEST}")
        check_ids(prompt, self.engine.vocabulary)
        stops, texts = _stops(params.stop, self.engine.loaded.renderer.stop_ids)
        scored = getattr(request, "prompt_logprobs_last_n", None) or len(prompt)
        wants_scores = request.prompt_logprobs or request.topk_prompt_logprobs
        return SampleOrder(
            prompt=prompt,
            count=request.num_samples,
            budget=budget,
            sampling=_sampling(params, budget),
            stops=stops,
            stop_texts=texts,
            seed=seed if params.seed is None else params.seed,
            prompt_logprobs=scored if wants_scores else 0,
            likeliest=request.topk_prompt_logprobs,
        )

    # -- what is there ------------------------------------------------------------------------------------------------

    def capabilities(self) -> Json:
        """The one model of this server."""
        context = self.engine.loaded.context
        model = {"model_name": self.name, "max_context_length": context, "trainable": True, "sampleable": True}
        return {"supported_models": [model]}

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
            raise ApiError(
                f"you have no sampler {sampler_id[:80]!r}; of those without a name the newest {_MOST_SNAPSHOTS} of a model are kept",
                status=404,
            )
        self._session(owner, sampler.session)
        return sampler

    def _add_model(self, owner: str, session: str, number: int, shape: AdapterShape) -> ServedModel:
        self._session(owner, session)
        model_id = f"{session}:train:{number}"
        if model_id in self._models:
            return self._models[model_id]
        if not 1 <= shape.rank <= _LARGEST_RANK or not self.engine.slot.supports(shape):
            raise ApiError(f"an adapter has a rank of 1 to {_LARGEST_RANK} and layers to be on, got {shape}")
        self._make_room(self._models, _MOST_MODELS, "models")
        model = ServedModel(id=model_id, session=session, owner=owner, shape=shape)
        self._models[model_id] = model
        self.jobs.open_line(model_id, 1)
        return model

    def _add_sampler(self, sampler_id: str, sampler: ServedSampler) -> None:
        mine = [key for key, other in self._samplers.items() if sampler.model and other.model == sampler.model]
        if sampler_id not in self._samplers and len(mine) >= _MOST_SNAPSHOTS:
            del self._samplers[mine[0]]
        self._make_room(self._samplers, _MOST_SAMPLERS, "samplers")
        self._samplers.setdefault(sampler_id, sampler)

    def _make_room(self, things: Mapping[str, Any], most: int, kind: str) -> None:
        """Drops the session that was silent longest if there are too many things. Raises ApiError, 429, if none was silent."""
        if len(things) < most:
            return
        session, record = min(self._sessions.items(), key=lambda item: item[1].seen)
        if time.monotonic() - record.seen < _SILENT:
            raise ApiError(f"this server holds {most} {kind} already; end a client, or ask again later", status=429)
        self._drop_session(session)

    def _drop_session(self, session: str) -> None:
        del self._sessions[session]
        for model in [model for model in self._models.values() if model.session == session]:
            self._drop_model(model.id)
        for key in [key for key, sampler in self._samplers.items() if sampler.session == session]:
            del self._samplers[key]

    def _drop_model(self, model_id: str) -> None:
        del self._models[model_id]
        self.jobs.close_line(model_id)

    def _submit(self, owner: str, request_id: str, work: Callable[[], Any], *, model_id: str | None = None) -> Json:
        self.jobs.submit(request_id, EngineJob(owner=owner, work=work))
        return {"request_id": request_id, "model_id": model_id}

    def _submit_turn(self, model: ServedModel, number: int | None, work: Callable[[], Any]) -> Json:
        request_id = self.jobs.submit_in_line(model.id, number, work, model.owner)
        return {"request_id": request_id, "model_id": model.id}


@dataclass(frozen=True)
class _Turn:
    """Lets the turn of a request pass if it is refused inside."""

    jobs: JobQueue
    line: str
    number: int | None

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            self.jobs.skip(self.line, self.number)


def _check_optimizer(request: Any) -> None:
    kind = getattr(getattr(request, "optimizer_config", None), "type", "adamw")
    if kind != "adamw":
        raise ApiError(f"this server has the optimizer adamw, not {str(kind)[:40]!r}")


def _adam_settings(params: Any) -> dict[str, Any]:
    """A step's settings as torch names them. Raises ApiError for other optimizers, and for numbers that Adam cannot take."""
    if not hasattr(params, "beta2"):
        raise ApiError("this server has the optimizer adamw; send adam_params")
    betas = (params.beta1, params.beta2)
    others = (params.learning_rate, params.eps, params.weight_decay, params.grad_clip_norm)
    in_range = all(0 <= beta < 1 for beta in betas) and all(0 <= value < float("inf") for value in others)
    if not in_range:
        raise ApiError("adam_params: betas are from 0 to below 1, the other numbers finite and not below 0")
    return {"lr": params.learning_rate, "betas": betas, "eps": params.eps, "weight_decay": params.weight_decay}


def _stops(stop: Any, usual: frozenset[int]) -> tuple[frozenset[int], list[str]]:
    """What ends an answer: ids, and texts. Without ``stop`` the model's ``usual`` ids do."""
    if stop is None:
        return usual, []
    given = [stop] if isinstance(stop, str) else list(stop)
    texts = [one for one in given if isinstance(one, str)]
    if any(not text for text in texts) or len(given) > 64:
        raise ApiError("stop takes up to 64 token ids or texts, none of them empty")
    return frozenset(one for one in given if isinstance(one, int)), texts


def _sampling(params: Any, budget: int) -> SamplingConfig:
    """How tokens are drawn; a temperature of 0 takes the likeliest."""
    if params.temperature == 0:
        return SamplingConfig(greedy=True, max_new_tokens=budget)
    try:
        return SamplingConfig(
            temperature=params.temperature,
            top_k=max(0, params.top_k),
            top_p=params.top_p,
            max_new_tokens=budget,
        )
    except ValueError as error:
        raise ApiError(f"sampling_params: {str(error).splitlines()[-2].strip()}") from None
