"""`gradus watch`: follow a run in a browser."""

from __future__ import annotations

import typer


def command(
    runs: list[str] = typer.Argument(..., help="Run folders, as PATH or NAME=PATH; several are drawn over each other."),
    host: str = typer.Option("127.0.0.1", "--host", help="Address to listen on; only this machine by default."),
    port: int = typer.Option(8765, "--port", min=0, max=65535, help="Port; 0 takes a free one."),
) -> None:
    """Follow runs on a local page: curves, alerts, newest episodes, time left. It only reads; stop it with Ctrl-C."""
    from gradus import commands

    commands.watch(runs, host=host, port=port, tell=typer.echo)
