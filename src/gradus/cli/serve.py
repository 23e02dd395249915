"""`gradus serve`: a model behind an OpenAI-compatible API."""

from __future__ import annotations

from pathlib import Path

import typer

from gradus.commands.options import KEEP_HISTORY


def command(
    model: str = typer.Argument(..., help="A run folder, a model folder or a hub name."),
    more: list[str] = typer.Argument(
        None,
        metavar="[-- OPTION ...]",
        help="After --: options of vllm serve, as in -- --gpu-memory-utilization 0.5.",
        show_default=False,
    ),
    host: str = typer.Option("127.0.0.1", "--host", help="Address to listen on."),
    port: int = typer.Option(8000, "--port", min=0, max=65535, help="Port to listen on; 0 takes a free one."),
    engine: str = typer.Option("gradus", "--engine", help="gradus, or vllm: its own server, if it is installed."),
    rows: int = typer.Option(
        32,
        "--rows",
        min=1,
        help="Requests that are computed at once; more wait. Each takes the memory of the longest that is under way with it.",
    ),
    keep_history: bool | None = KEEP_HISTORY,
    weights: Path | None = typer.Option(
        None, "--weights", help="Let clients with the token load weights from below this folder; off without it."
    ),
    token: str | None = typer.Option(
        None,
        "--token",
        envvar="VLLM_API_KEY",
        help="What clients must send as their API key; better set in the environment.",
    ),
    seed: int = typer.Option(0, "--seed", help="Seed of sampling if a request names none."),
) -> None:
    """Serve chat completions and completions, streaming or not, with token ids and log-probs."""
    from gradus import commands

    commands.serve(
        model,
        host=host,
        port=port,
        engine=engine,
        rows=rows,
        keep_history=keep_history,
        weights=weights,
        token=token,
        seed=seed,
        more=more or (),
        tell=lambda line: typer.echo(line, err=True),
    )
