"""Trained models: as a plain folder, on a hub, in a conversation, behind an OpenAI-compatible server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradus.commands.given import checked_sampling, known_options, parameters, path_text
from gradus.core import ConfigError
from gradus.core.documents import Results, read_document

if TYPE_CHECKING:
    from gradus.interop.push import PushPlan
    from gradus.policies.local.export import ExportResult
    from gradus.policies.local.loading import LoadedModel


def export(
    run: str | Path,
    out: str | Path,
    *,
    temperature: float | None = None,
    max_new_tokens: int | None = None,
    **options: Any,
) -> ExportResult:
    """Write the best checkpoint of a run, or a model folder, so that plain transformers loads it.

    ``options``: ``merge`` adapters (True), ``dtype`` ("auto"), ``overwrite`` (False).
    """
    from gradus.policies.local.export import export_model
    from gradus.policies.local.folders import run_of
    from gradus.policies.local.settings import ModelSettings, default_sampling, read_settings
    from gradus.runs.policies import existing_model

    known_options(options, [*parameters(export), "merge", "dtype", "overwrite"], "commands.export")
    checked_sampling({"temperature": temperature, "max_new_tokens": max_new_tokens})
    source = existing_model(path_text("run", run))
    stored = default_sampling(read_settings(source) or ModelSettings())
    changed = temperature is not None or max_new_tokens is not None
    sampling = stored.changed(temperature=temperature, max_new_tokens=max_new_tokens) if changed else None
    results = run_of(run, source) / "results.json"
    document = read_document(results, Results) if results.is_file() else None
    return export_model(source, out, sampling=sampling, results=document, **options)


def push(
    source: str | Path, repository: str, *, public: bool = False, dry_run: bool = False, endpoint: str | None = None
) -> tuple[PushPlan, str | None]:
    """Upload a model, the best of a run, or a file of episodes with a card; returns what it is and the address (None: dry run)."""
    from gradus.interop.push import plan_push, upload

    plan = plan_push(source, repository, private=not public)
    return plan, None if dry_run else upload(plan, endpoint=endpoint)


def chat(
    model: str | Path,
    *,
    ask: Callable[[], str | None],
    show: Callable[[str], None],
    system: str | None = None,
    temperature: float | None = None,
    max_new_tokens: int | None = None,
    keep_history: bool | None = None,
    seed: int = 0,
) -> list[dict[str, str]]:
    """Ask a model until ``ask`` gives None; ``show`` gets its answers in pieces. Returns the conversation."""
    from gradus.interop.serving.chat import chat_loop
    from gradus.policies.local.settings import free_sampling

    loaded = _loaded(model, keep_history)
    return chat_loop(
        loaded,
        ask=ask,
        show=show,
        system_prompt=(loaded.settings.system_prompt or None) if system is None else system,
        sampling=free_sampling(loaded.settings).changed(temperature=temperature, max_new_tokens=max_new_tokens),
        seed=seed,
    )


def can_chat(model: str | Path) -> bool:
    """Whether a model's folder, or a run's, holds one that a person can talk to. A nano model knows its environment's words only."""
    from gradus.policies.local.folders import is_nano

    return not is_nano(path_text("model", model))


def serve(
    model: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    engine: str = "gradus",
    rows: int = 32,
    keep_history: bool | None = None,
    weights: Path | None = None,
    token: str | None = None,
    seed: int = 0,
    more: Sequence[str] = (),
    tell: Callable[[str], None] = print,
) -> None:
    """Serve a model until Ctrl-C. ``engine``: ``gradus``, or ``vllm``, whose own server is started with the same model and with the options
    ``more``.

    ``tell`` gets the address. ``keep_history`` and ``weights`` are for the engine ``gradus`` alone.
    """
    from gradus.interop.guard import hosts_for
    from gradus.interop.serving.app import Access, make_app
    from gradus.interop.serving.app import serve as serve_app
    from gradus.interop.serving.listening import listen, url

    name = Path(model).name or str(model)
    if engine == "vllm":
        from gradus.interop.serving.vllm_server import serve_with_vllm

        if keep_history is not None or weights is not None:
            raise ConfigError("--keep-history and --weights are for the engine gradus; leave them out with vllm")
        return serve_with_vllm(
            _source(model), name=name, host=host, port=port, rows=rows, token=token, seed=seed, more=more
        )
    if engine != "gradus":
        raise ConfigError(f"expected the engine gradus or vllm, got {engine!r}")
    if more:
        raise ConfigError(f"{' '.join(more)} is for --engine vllm; the engine gradus takes no further options")
    with listen(host, port) as listener:
        access = Access(hosts=hosts_for(host, listener.getsockname()[0]), token=token, weights=weights)
        loaded = _loaded(model, keep_history)
        listener.listen()  # from here on clients wait instead of being refused
        tell(f"{name} at {url(listener, host, path='/v1')}; Ctrl-C stops")
        return serve_app(make_app(loaded, name=name, rows=rows, seed=seed, access=access), listener)


def _source(model: str | Path) -> str:
    """A run's or a model's folder, or a name on the hub. Raises ConfigError for a mistyped folder."""
    from gradus.policies.local.folders import check_model_source, find_model, tell_first_seed

    name = path_text("model", model)
    folder = find_model(name)
    if folder is None:
        return check_model_source(name)
    tell_first_seed(name, folder)
    return str(folder)


def _loaded(model: str | Path, keep_history: bool | None) -> LoadedModel:
    from gradus.policies.local.folders import trained_precision
    from gradus.policies.local.loading import load_model

    source = _source(model)
    return load_model(source, **trained_precision(source), keep_history=keep_history)
