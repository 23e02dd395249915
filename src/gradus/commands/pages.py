"""`gradus docs`: a page of the documentation in the terminal, offline."""

from __future__ import annotations

from typing import Annotated

import typer

from gradus.commands.signature import command


@command("docs")
def docs(
    topic: Annotated[
        str | None, typer.Argument(help="A page, as in `gradus docs training`; all are listed without it.")
    ] = None,
) -> None:
    """Show a page of the documentation in the terminal. It needs no network."""
    import difflib
    import re
    import sysconfig
    from contextlib import nullcontext
    from pathlib import Path

    from rich.markdown import Markdown
    from rich.text import Text

    from gradus.core import ConfigError
    from gradus.core.terminal import Terminal

    beside = Path(__file__).resolve().parents[3] / "docs"  # a checkout
    places = (
        beside,
        Path(__file__).resolve().parents[2] / "share/gradus/docs",  # pip install --target
        Path(sysconfig.get_path("data")) / "share/gradus/docs",
    )
    folder = next((place for place in places if (place / "concepts.md").is_file()), None)
    if folder is None:
        raise ConfigError("the documentation was not installed with this package; read it in the repository")
    site = folder.parent / "mkdocs.yml"  # the order of the site, where that file is there too
    order = re.findall(r": (\S+\.md)$", site.read_text(encoding="utf-8"), re.MULTILINE) if site.is_file() else []
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.md"))}
    names = [*(name for name in order if name in paths), *(name for name in paths if name not in order)]
    pages = {name.removesuffix(".md").lower(): paths[name] for name in names}
    console = Terminal()
    if topic is None:
        for name, path in pages.items():
            title = path.read_text(encoding="utf-8").partition("# ")[2].partition("\n")[0]
            console.print(Text.assemble((name, "bold"), f"  {title}"))
        console.print("next: gradus docs index", style="dim")
        return
    wanted = topic.lower().removesuffix(".md").replace("-", "_")
    if wanted not in pages:
        close = difflib.get_close_matches(wanted, pages, n=1)
        hint = f"did you mean {close[0]}?" if close else "`gradus docs` lists them"
        raise ConfigError(f"no page {topic!r}: {hint}")
    with console.pager(styles=True) if console.is_terminal else nullcontext():
        console.print(Markdown(pages[wanted].read_text(encoding="utf-8")))
