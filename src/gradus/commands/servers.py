"""Environments for OpenEnv clients, and as packages of verifiers."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradus.commands.environments import load_environment
from gradus.commands.options import Host, Line, Port
from gradus.commands.signature import command
from gradus.core import ConfigError, EnvironmentSpec
from gradus.core.printing import quiet

if TYPE_CHECKING:
    from gradus.interop.packages.writing import PackageResult


@command("serve-env")
def serve_env(
    environment: Annotated[
        str | EnvironmentSpec | type, typer.Argument(help="Environment, as in `gradus envs`."), Line(kind=str)
    ],
    *,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    sessions: Annotated[int, typer.Option(min=1, help="Episodes that may run at once.")] = 256,
    tell: Callable[[str], None] = typer.echo,
) -> None:
    """Serve an environment to OpenEnv clients, over WebSocket and HTTP, until Ctrl-C.

    ``tell`` gets the address.
    """
    from gradus.interop.openenv.server import create_app, server_config
    from gradus.interop.servers import hosts_for, listen, serve_until_stopped, url

    spec = load_environment(environment)
    with listen(host, port) as listener:
        hosts = hosts_for(host, listener.getsockname()[0])
        app = create_app(spec, sessions=sessions, hosts=hosts)
        tell(f"{spec.name} for up to {sessions} sessions at {url(listener, host, scheme='ws')}  (Ctrl-C stops it)")
        serve_until_stopped(server_config(app, host=host, port=port), listener)


def _after_package(result: PackageResult) -> None:
    typer.echo(f"wrote {len(result.files)} files to {result.folder}")
    if not quiet():
        package = shlex.quote(str(result.folder))
        typer.echo(f"where verifiers is: pip install {package}    try it: vf-eval {result.module} -n 4")


@command("package-env", _after_package)
def package_env(
    environment: Annotated[
        str, typer.Argument(help="Environment of Gradus or of an installed package, as in `gradus envs`.")
    ],
    folder: Annotated[str | Path, typer.Argument(help="Folder to write; must be empty or not there."), Line(kind=Path)],
    *,
    library: Annotated[str, typer.Option("--as", help="verifiers: a taskset.")] = "verifiers",
) -> PackageResult:
    """Write an environment with its grader as a package of verifiers 0.4: a taskset, for trainers on many machines that read those.

    OpenEnv's clients need no package: `gradus serve-env` serves them.
    """
    from gradus.interop.packages.writing import write_package

    if library != "verifiers":
        raise ConfigError(f"a package is for verifiers, got --as {library}; gradus serve-env serves OpenEnv's clients")
    return write_package(environment, folder)
