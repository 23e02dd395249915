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
    from gradus.policies.local.loading import LoadedModel


@command("export")
def export(
    source: Annotated[
        str | Path,
        WORD,
        Parameter(name="source", help="A run folder (its best checkpoint) or a model folder."),
    ],
    *,
    out: Annotated[str | Path, writes("Folder to write; must be empty or not there.")] = Path("model"),
    merge: Annotated[bool, Parameter(negative="--no-merge", help="Merge adapters into the weights.")] = True,
    dtype: Annotated[str, Parameter(help="float32, bfloat16, float16, or auto: that of the base model.")] = "auto",
    gguf: Annotated[
        str | None,
        Parameter(
            metavar="FORMAT", help="Write a GGUF file (f16, q8_0 or q4_0) and a Modelfile for llama.cpp and Ollama."
        ),
    ] = None,
    overwrite: Overwrite = False,
    push: Annotated[
        str | None,
        Parameter(metavar="OWNER/NAME", help="Upload to the Hugging Face Hub, with a card."),
    ] = None,
    public: Annotated[bool, Parameter(help="With --push: everybody may see it.")] = False,
    dry_run: Annotated[
        bool, Parameter(help="With --push: write exactly what would be uploaded to --out, and stop.")
    ] = False,
) -> Path | None:
    """Write a model as a plain folder, or upload it to a hub.

    Plain transformers loads the folder, which has tokenizer, generation config and a model card with the evaluation table. Returns the folder;
    None for an upload.
    """
    from gradus.policies.local.export import export_model
    from gradus.policies.local.folders import run_of
    from gradus.runs.policies import existing_model

    if push is not None:
        return _pushed(Path(source), push, public=public, copy=Path(out) if dry_run else None)
    model = existing_model(os.fspath(source))
    results = run_of(source, model) / "results.json"
    document = read_document(results, Results) if results.is_file() else None
    result = export_model(model, out, results=document, merge=merge, dtype=dtype, overwrite=overwrite, gguf=gguf)
    merged = "" if result.gap is None else f", merged (largest gap {result.gap:.1e} nats)"
    print(f"{result.path}: {result.parameters:,} parameters in {result.dtype}{merged}")
    if not quiet():
        print(f"use it: {_use_of(result.path)}")
    return result.path


def _use_of(model: Path) -> str:
    """What to type with an exported model."""
    from gradus.policies.local.folders import is_nano

    path = shlex.quote(str(model))
    if (model / "Modelfile").is_file():
        return f"ollama create {shlex.quote(model.name)} -f {path}/Modelfile   or   llama-server -m {path}/*.gguf"
    load = f"transformers.pipeline('text-generation', {str(model)!r})"
    return load if is_nano(str(model)) else f"gradus chat {path}   or   {load}"


def _pushed(source: Path, repository: str, *, public: bool, copy: Path | None) -> None:
    """Uploads a model with a card, privately unless ``public``; or writes the same files into ``copy``. Says each file."""
    from gradus.interop.push import plan_push, upload, write_plan

    plan = plan_push(source, repository, private=not public)
    address = upload(plan) if copy is None else None
    size = sum(map(plan.size, plan.files))
    print(f"{repository} ({'public' if public else 'private'}), {len(plan.files)} files, {size:,} bytes:")
    for path, file in plan.files.items():
        print(f"  {plan.size(path):>14,}  {path}{f'  <- {file}' if isinstance(file, Path) else ''}")
    if copy is None:
        print(f"uploaded to {address}")
        return
    for path, file in plan.files.items():
        if isinstance(file, str):
            print(f"\n--- {path} ---\n{file}")
    print("dry run: nothing was uploaded")
    next_command("export", source, "--push", repository, *(["--public"] if public else []))
    print(f"the same files: {write_plan(plan, copy)}")


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


@command("serve")
def serve(
    source: Annotated[
        str | Path | EnvironmentSpec | type,
        WORD,
        Parameter(name="source", help="A run folder, a model folder or a hub name; with --env an environment."),
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
    name: Annotated[str | None, Parameter(help="The model's name for clients.")] = None,
    constrain: Annotated[
        bool, Parameter(help="An answer of which a schema is asked follows it (needs the extra constrain).")
    ] = False,
    out: Annotated[str | Path, Parameter(help="With --train: folder of the checkpoints.")] = Path("runs/tinker"),
    seed: Seed = 0,
) -> None:
    """Serve a model over an OpenAI-compatible API. --train serves Tinker's training API, --env an environment to OpenEnv's clients.

    Until Ctrl-C. Keys of --train are separated by commas. Raises ConfigError if a model is served to other machines without a key.
    """
    from gradus.interop.servers import hosts_for, listen, serve_until_stopped, server_config, url

    keys = [key for key in os.environ.get("GRADUS_SERVE_KEY", "").split(",") if key]
    with listen(host, port) as listener:
        hosts = hosts_for(host, listener.getsockname()[0])
        if env:
            from gradus.interop.openenv import server as openenv

            spec = load_environment(source)
            app = openenv.create_app(spec, sessions=sessions, hosts=hosts)
            place = url(listener, host, scheme="ws")  # its clients keep a connection for an episode
            note(f"{spec.name} for up to {sessions} sessions at {place}; Ctrl-C stops")
            return serve_until_stopped(openenv.server_config(app), listener)
        assert isinstance(source, str | Path)  # an environment is served with env
        # Without a list of hosts anybody in the network may ask.
        if hosts is None and not (keys if train else token):
            way = "set GRADUS_SERVE_KEY" if train else "set VLLM_API_KEY or --token"
            raise ConfigError(
                f"{host} can be reached from other machines, so clients need a key; {way}, or leave --host out"
            )
        name = name or Path(source).name or str(source)
        if train:
            from gradus.interop.tinker.app import training_app
            from gradus.interop.tinker.checkpoints import CheckpointStore
            from gradus.interop.tinker.engine import AdapterEngine
            from gradus.interop.tinker.sdk import check_sdk
            from gradus.interop.tinker.service import TrainingService

            check_sdk()
            engine = AdapterEngine(_loaded(source), rows=rows)
            service = TrainingService(engine, CheckpointStore(Path(out)), name=name, seed=seed)
            app = training_app(service, keys=keys, hosts=hosts)
            note(f"training of {name} at {url(listener, host)}; checkpoints in {out}; Ctrl-C stops")
            return serve_until_stopped(server_config(app), listener)
        from gradus.interop.serving import app as serving
        from gradus.policies.local.settings import free_sampling

        access = serving.Access(hosts=hosts, token=token, weights=weights)
        loaded = _loaded(source)
        sampling = free_sampling(loaded.settings)
        sampling = sampling.model_copy(update={"constrain": constrain or sampling.constrain})
        app = serving.make_app(loaded, name=name, sampling=sampling, rows=rows, seed=seed, access=access)
        note(f"{name} at {url(listener, host, path='/v1')}; Ctrl-C stops")
        return serving.serve(app, listener)


def _loaded(model: str | Path) -> LoadedModel:
    """The model of a run's or a model's folder, or of a name on the hub, in the precision that it was trained in."""
    from gradus.policies.local.folders import trained_precision
    from gradus.policies.local.loading import load_model
    from gradus.runs.policies import model_source

    source = model_source(os.fspath(model))
    return load_model(source, **trained_precision(source))
