"""`gradus watch`: follow a run in a browser."""

from __future__ import annotations

from pathlib import Path

import typer

__all__ = ["command"]


def command(
    runs: list[str] = typer.Argument(..., help="Run folders, as PATH or NAME=PATH; several are drawn over each other."),
    host: str = typer.Option("127.0.0.1", "--host", help="Address to listen on; only this machine by default."),
    port: int = typer.Option(8765, "--port", help="Port."),
) -> None:
    """Follow runs on a local page: curves, alerts, newest episodes, time left. It only reads; stop it with Ctrl-C."""
    import uvicorn

    from gradus.pipeline.watch import watch_app

    named = {
        text.partition("=")[0] if "=" in text else Path(text).resolve().name: Path(text.partition("=")[2] or text)
        for text in runs
    }
    typer.echo(f"watching {', '.join(named)} on http://{host}:{port}")
    uvicorn.run(watch_app(named, host=host), host=host, port=port, log_level="warning")
