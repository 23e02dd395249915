"""`gradus package-env`: an environment as an OpenEnv package."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer

from gradus.core.printing import quiet


def command(
    environment: str = typer.Argument(
        ..., help="Environment of Gradus or of an installed package, as in `gradus envs`."
    ),
    folder: Path = typer.Argument(..., help="Folder to write; must be empty or not there."),
    sessions: int = typer.Option(64, "--sessions", min=1, help="Episodes that its server runs at once."),
) -> None:
    """Write an environment as a package that `openenv validate` accepts and `openenv push` uploads."""
    from gradus import commands

    written = commands.package_environment(environment, folder, sessions=sessions)
    typer.echo(f"wrote {len(written.files)} files to {written.folder}")
    if not written.locked:
        typer.echo("uv was not found, so uv.lock has no pins yet; `uv lock` there completes it", err=True)
    if not quiet():
        server, package = (shlex.quote(str(path)) for path in (written.folder / "server" / "app.py", written.folder))
        typer.echo(f"try it: python {server}    check it: openenv validate {package}")
