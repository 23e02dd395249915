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
    import uvicorn

    from gradus import environments
    from gradus.interop.guard import hosts_for
    from gradus.interop.openenv.server import create_app, server_config
    from gradus.interop.serving.listening import listen, url

    spec = environments.load(environment)
    with listen(host, port) as listener:
        config = server_config(
            create_app(spec, sessions=sessions, threads=threads, hosts=hosts_for(host)), host=host, port=port
        )
        listener.listen()  # from here on clients wait instead of being refused
        typer.echo(
            f"{spec.name} for up to {sessions} sessions at {url(listener, host, scheme='ws')}  (Ctrl-C stops it)"
        )
        uvicorn.Server(config).run(sockets=[listener])
