"""Environments for OpenEnv clients, and the page that follows runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradus.commands.environments import load_environment
from gradus.commands.given import as_list
from gradus.core import EnvironmentSpec

if TYPE_CHECKING:
    from gradus.interop.openenv.package import PackageResult


def serve_environment(
    environment: str | EnvironmentSpec | type,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    sessions: int = 256,
    threads: bool = False,
    tell: Callable[[str], None] = print,
) -> None:
    """Serve an environment to OpenEnv clients until Ctrl-C; ``tell`` gets the address."""
    from gradus.interop.guard import hosts_for
    from gradus.interop.openenv.server import create_app, server_config
    from gradus.interop.serving.listening import listen, serve_until_stopped, url

    spec = load_environment(environment)
    with listen(host, port) as listener:
        hosts = hosts_for(host, listener.getsockname()[0])
        app = create_app(spec, sessions=sessions, threads=threads, hosts=hosts)
        listener.listen()  # from here on clients wait instead of being refused
        tell(f"{spec.name} for up to {sessions} sessions at {url(listener, host, scheme='ws')}  (Ctrl-C stops it)")
        serve_until_stopped(server_config(app, host=host, port=port), listener)


def package_environment(environment: str, folder: str | Path, *, sessions: int = 64) -> PackageResult:
    """Write an environment of Gradus or of an installed package as a package that ``openenv validate`` accepts."""
    from gradus.interop.openenv.package import write_package

    return write_package(environment, folder, sessions=sessions)


def watch(
    runs: Sequence[str | Path], *, host: str = "127.0.0.1", port: int = 8765, tell: Callable[[str], None] = print
) -> None:
    """Follow run folders (``PATH`` or ``NAME=PATH``) on a local page until Ctrl-C. ``tell`` gets its address and what is not there yet."""
    import uvicorn

    from gradus.interop.guard import hosts_for
    from gradus.interop.serving.listening import listen, serve_until_stopped, url
    from gradus.runs.comparison import by_name
    from gradus.runs.watch import watch_app

    named = by_name(map(str, as_list("runs", [runs] if isinstance(runs, Path) else runs, example="['runs/a']")))
    with listen(host, port) as listener:
        app = watch_app(named, hosts=hosts_for(host, listener.getsockname()[0]))
        listener.listen()  # from here on clients wait instead of being refused
        tell(f"watching {', '.join(named)} on {url(listener, host)}")
        for path in named.values():
            if not path.exists() or not any(path.iterdir()):
                tell(
                    f"{path} is {'empty' if path.exists() else 'not there yet'}; it is shown as soon as a run begins in it"
                )
        serve_until_stopped(uvicorn.Config(app, log_level="warning"), listener)
