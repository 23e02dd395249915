"""`gradus serve-env`: an environment for every OpenEnv client."""

from __future__ import annotations

import typer


def command(
    environment: str = typer.Argument(..., help="Environment, as in `gradus envs`."),
    host: str = typer.Option("127.0.0.1", "--host", help="Address to listen at; 0.0.0.0 lets other machines in."),
    port: int = typer.Option(8000, "--port", min=0, max=65535, help="Port; 0 takes a free one."),
    sessions: int = typer.Option(256, "--sessions", min=1, help="Episodes that may run at once."),
    threads: bool = typer.Option(
        False, "--threads", help="Step in threads, for environments that wait or compute long."
    ),
) -> None:
    """Serve an environment to OpenEnv clients, over WebSocket and HTTP."""
    from gradus import commands

    commands.serve_environment(environment, host=host, port=port, sessions=sessions, threads=threads, tell=typer.echo)
