"""`gradus serve-env`: an environment for every OpenEnv client."""

from __future__ import annotations

import typer

__all__ = ["command"]


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
    import socket

    import uvicorn

    from gradus import environments
    from gradus.core import ConfigError
    from gradus.interop.openenv_server import create_app, server_config

    spec = environments.load(environment)
    config = server_config(create_app(spec, sessions=sessions, threads=threads), host=host, port=port)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen at {host}:{port} ({error.strerror}); choose another --port or --host"
        ) from error
    typer.echo(
        f"{spec.name} for up to {sessions} sessions at ws://{host}:{listener.getsockname()[1]}  (Ctrl-C stops it)"
    )
    with listener:
        uvicorn.Server(config).run(sockets=[listener])
