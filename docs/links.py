"""Finds dead links in the built site: a file, or a place in a page, that a link, a picture or a script names and that does not exist."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    """The links of a page, and the names of its places."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.links.append(value)
            if value and name in ("id", "name"):
                self.places.add(value)


def dead_links(site: Path) -> Iterator[str]:
    """Yields a line for each dead link of the HTML files of a folder. Links to other hosts are not followed."""
    pages = {file: _Page(file.read_text(encoding="utf-8")) for file in sorted(site.resolve().rglob("*.html"))}
    for file, page in pages.items():
        if file.name == "404.html":  # its links begin at the root of the host
            continue
        for link in page.links:
            if _is_dead(link, file, pages):
                yield f"{file.relative_to(site.resolve())}: dead link {link}"


def _is_dead(link: str, file: Path, pages: dict[Path, _Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return False
    target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return True
    return bool(parts.fragment) and target in pages and unquote(parts.fragment) not in pages[target].places
