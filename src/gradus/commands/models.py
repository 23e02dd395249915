"""Trained models: as a plain folder, on a hub, in a conversation, behind an OpenAI-compatible server."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gradus.commands.entries import command
from gradus.commands.environments import load_environment
from gradus.commands.options import (
    AT_LEAST_ONE,
    WORD,
    Host,
    MaxNewTokens,
    Overwrite,
    Port,
    RunOrModel,
    Seed,
    Temperature,
    writes,
)
from gradus.commands.output import next_command, note
from gradus.core import ConfigError, EnvironmentSpec
from gradus.core.documents import Results, read_document
from gradus.core.printing import quiet

if TYPE_CHECKING:
    from gradus.interop.push import PushPlan
    from gradus.policies.local.export import ExportResult
    from gradus.policies.local.loading import LoadedModel


def export(
    run: str | Path,
    out: str | Path = Path("model"),
    *,
    merge: bool = True,
    dtype: str = "auto",
    overwrite: bool = False,
    gguf: str | None = None,
) -> ExportResult:
    """Write model, tokenizer, generation config and a model card with the evaluation table.

    Plain transformers loads the folder. ``run``: a run folder (its best checkpoint) or a model folder. ``merge``: adapters into the weights.
    ``gguf``: f16, q8_0 or q4_0; a GGUF file and a Modelfile for llama.cpp and Ollama in place of the model.
    """
    from gradus.policies.local.export import export_model
    from gradus.policies.local.folders import run_of
    from gradus.runs.policies import existing_model

    source = existing_model(os.fspath(run))
    results = run_of(run, source) / "results.json"
    document = read_document(results, Results) if results.is_file() else None
    return export_model(source, out, results=document, merge=merge, dtype=dtype, overwrite=overwrite, gguf=gguf)


def push(
    source: str | Path, repository: str, *, public: bool = False, dry_run: bool = False
) -> tuple[PushPlan, str | None]:
    """Upload a model with a card to the Hugging Face Hub, privately unless ``public``.

    Returns the plan, and the address (None: dry run).
    """
    from gradus.interop.push import plan_push, upload

    plan = plan_push(source, repository, private=not public)
    return plan, None if dry_run else upload(plan)


@command("export")
def export_command(
    source: Annotated[
        str,
        WORD,
        Parameter(help="A run folder (its best checkpoint) or a model folder."),
    ],
    *,
    out: Annotated[Path, writes("Folder to write; must be empty or not there.")] = Path("model"),
    merge: Annotated[bool, Parameter(negative="--no-merge", help="Merge adapters into the weights.")] = True,
    dtype: Annotated[str, Parameter(help="float32, bfloat16, float16, or auto: that of the base model.")] = "auto",
    gguf: Annotated[
        str | None,
        Parameter(
            metavar="FORMAT", help="Write a GGUF file (f16, q8_0 or q4_0) and a Modelfile for llama.cpp and Ollama."
        ),
    ] = None,
    overwrite: Overwrite = False,
    push_to: Annotated[
        str | None,
        Parameter(name="--push", metavar="OWNER/NAME", help="Upload to the Hugging Face Hub, with a card."),
    ] = None,
    public: Annotated[bool, Parameter(help="With --push: everybody may see it.")] = False,
    dry_run: Annotated[
        bool, Parameter(help="With --push: write exactly what would be uploaded to --out, and stop.")
    ] = False,
) -> None:
    """Write a model as a plain folder, or upload it to a hub."""
    if push_to is not None:
        plan, address = push(source, push_to, public=public, dry_run=dry_run)
        _tell_push(Path(source), push_to, plan, address)
        if dry_run:
            from gradus.interop.push import write_plan

            print(f"the same files: {write_plan(plan, out)}")
    else:
        _tell_export(export(source, out, merge=merge, dtype=dtype, overwrite=overwrite, gguf=gguf))


def _tell_export(result: ExportResult) -> None:
    from gradus.policies.local.folders import is_nano

    merged = "" if result.gap is None else f", merged (largest gap {result.gap:.1e} nats)"
    print(f"{result.path}: {result.parameters:,} parameters in {result.dtype}{merged}")
    if quiet():
        return
    path = str(result.path)
    if (result.path / "Modelfile").is_file():
        print(
            f"use it: ollama create {shlex.quote(result.path.name)} -f {shlex.quote(path)}/Modelfile   or   llama-server -m {shlex.quote(path)}/*.gguf"
        )
    else:
        chat = "" if is_nano(path) else f"gradus chat {shlex.quote(path)}   or   "
        print(f"use it: {chat}transformers.pipeline('text-generation', {path!r})")


def _tell_push(source: Path, repository: str, plan: PushPlan, address: str | None) -> None:
    visibility = "private" if plan.private else "public"
    size = sum(map(plan.size, plan.files))
    print(f"{plan.repository} ({visibility}), {len(plan.files)} files, {size:,} bytes:")
    for path, file in plan.files.items():
        print(f"  {plan.size(path):>14,}  {path}{f'  <- {file}' if isinstance(file, Path) else ''}")
    if address is not None:
        print(f"uploaded to {address}")
        return
    for path, file in plan.files.items():
        if isinstance(file, str):
            print(f"\n--- {path} ---\n{file}")
    print("dry run: nothing was uploaded")
    next_command("export", source, "--push", repository, *([] if plan.private else ["--public"]))


def _ask_in_terminal() -> str | None:
    """Reads a person's line; an empty one, or the end of the input, is None."""
    try:
        return input("you> ").strip() or None
    except EOFError:
        print()
        return None


def _show_piece(piece: str) -> None:
    from gradus.core.printing import printable

    print(printable(piece), end="", flush=True)


@command("chat")
def chat(
    model: RunOrModel,
    *,
    system: Annotated[
        str | None,
        Parameter(
            metavar="TEXT",
            help="System prompt. Without it: as the model was trained; an empty one sends no system message.",
        ),
    ] = None,
    temperature: Temperature = None,
    max_new_tokens: MaxNewTokens = None,
    seed: Seed = 0,
) -> list[dict[str, str]]:
    """Chat with a checkpoint; an empty line ends it.

    Returns the conversation.
    """
    from gradus.interop.serving.text import chat_loop
    from gradus.policies.local.settings import free_sampling

    loaded = _loaded(model)
    print("an empty line ends it, /new begins anew")
    return chat_loop(
        loaded,
        ask=_ask_in_terminal,
        show=_show_piece,
        system_prompt=(loaded.settings.system_prompt or None) if system is None else system,
        sampling=free_sampling(loaded.settings).changed(temperature=temperature, max_new_tokens=max_new_tokens),
        seed=seed,
    )


def serve(
    model: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    rows: int = 32,
    weights: Path | None = None,
    token: str | None = None,
    seed: int = 0,
) -> None:
    """Serve chat completions, responses, and completions with token ids and log-probs, until Ctrl-C."""
    from gradus.interop.servers import hosts_for, listen, url
    from gradus.interop.serving.app import Access, make_app
    from gradus.interop.serving.app import serve as serve_app

    name = Path(model).name or str(model)
    with listen(host, port) as listener:
        hosts = hosts_for(host, listener.getsockname()[0])
        if hosts is None and not token:
            raise ConfigError(
                f"{host} can be reached from other machines, so clients need a token; set VLLM_API_KEY or --token, or leave --host out"
            )
        access = Access(hosts=hosts, token=token, weights=weights)
        loaded = _loaded(model)
        note(f"{name} at {url(listener, host, path='/v1')}; Ctrl-C stops")
        return serve_app(make_app(loaded, name=name, rows=rows, seed=seed, access=access), listener)


def serve_training(
    model: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    rows: int = 32,
    name: str | None = None,
    out: str | Path = Path("runs/tinker"),
    seed: int = 0,
) -> None:
    """Serve the Tinker training API over a model, until Ctrl-C: adapters are trained, sampled from, and saved below ``out``.

    Keys of clients come from GRADUS_SERVE_KEY, separated by commas. Raises ConfigError without one if ``host`` is more than this machine.
    """
    from gradus.interop.servers import hosts_for, listen, serve_until_stopped, server_config, url
    from gradus.interop.tinker.app import training_app
    from gradus.interop.tinker.checkpoints import CheckpointStore
    from gradus.interop.tinker.engine import AdapterEngine
    from gradus.interop.tinker.sdk import check_sdk
    from gradus.interop.tinker.service import TrainingService

    check_sdk()
    keys = [key for key in os.environ.get("GRADUS_SERVE_KEY", "").split(",") if key]
    with listen(host, port) as listener:
        hosts = hosts_for(host, listener.getsockname()[0])
        if hosts is None and not keys:
            raise ConfigError(
                f"{host} is open to other machines; set GRADUS_SERVE_KEY to the key that clients must send"
            )
        engine = AdapterEngine(_loaded(model), rows=rows)
        service = TrainingService(engine, CheckpointStore(Path(out)), name=name or Path(model).name, seed=seed)
        app = training_app(service, keys=keys, hosts=hosts)
        note(f"training of {service.name} at {url(listener, host)}; checkpoints in {out}; Ctrl-C stops")
        serve_until_stopped(server_config(app, ws="none"), listener)


def _loaded(model: str | Path) -> LoadedModel:
    """A run's or a model's folder, or a name on the hub. Raises ConfigError for a mistyped folder."""
    from gradus.policies.local.folders import check_model_source, find_model, tell_first_seed, trained_precision
    from gradus.policies.local.loading import load_model

    name = os.fspath(model)
    folder = find_model(name)
    if folder is not None:
        tell_first_seed(name, folder)
    source = check_model_source(name) if folder is None else str(folder)
    return load_model(source, **trained_precision(source))


def serve_env(
    environment: str | EnvironmentSpec | type, *, host: str = "127.0.0.1", port: int = 8000, sessions: int = 256
) -> None:
    """Serve an environment to OpenEnv clients, over WebSocket and HTTP, until Ctrl-C."""
    from gradus.interop.openenv.server import create_app, server_config
    from gradus.interop.servers import hosts_for, listen, serve_until_stopped, url

    spec = load_environment(environment)
    with listen(host, port) as listener:
        hosts = hosts_for(host, listener.getsockname()[0])
        app = create_app(spec, sessions=sessions, hosts=hosts)
        print(f"{spec.name} for up to {sessions} sessions at {url(listener, host, scheme='ws')}  (Ctrl-C stops it)")
        serve_until_stopped(server_config(app, host=host, port=port), listener)


@command("serve")
def serve_command(
    source: Annotated[
        str,
        WORD,
        Parameter(help="A run folder, a model folder or a hub name; with --env an environment."),
    ],
    *,
    env: Annotated[bool, Parameter(help="Serve an environment to OpenEnv's clients.")] = False,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    rows: Annotated[
        int,
        AT_LEAST_ONE,
        Parameter(help="Requests that are computed at once; each takes the memory of the longest beside it."),
    ] = 32,
    sessions: Annotated[int, AT_LEAST_ONE, Parameter(help="With --env: episodes that may run at once.")] = 256,
    weights: Annotated[
        Path | None,
        Parameter(help="Let clients with the token load weights from below this folder; off without it."),
    ] = None,
    token: Annotated[
        str | None,
        Parameter(env_var="VLLM_API_KEY", help="API key that clients must send; better set in the environment."),
    ] = None,
    train: Annotated[bool, Parameter(help="Serve the Tinker training API; the key is GRADUS_SERVE_KEY.")] = False,
    name: Annotated[str | None, Parameter(help="With --train: the model's name for clients.")] = None,
    out: Annotated[Path, Parameter(help="With --train: folder of the checkpoints.")] = Path("runs/tinker"),
    seed: Seed = 0,
) -> None:
    """Serve a model over an OpenAI-compatible API. --train serves Tinker's training API, --env an environment to OpenEnv's clients."""
    if train:
        return serve_training(source, host=host, port=port, rows=rows, name=name, out=out, seed=seed)
    if env:
        return serve_env(source, host=host, port=port, sessions=sessions)
    return serve(source, host=host, port=port, rows=rows, weights=weights, token=token, seed=seed)
