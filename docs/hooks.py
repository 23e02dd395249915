"""Hooks of mkdocs: a file of the repository that a page names gets a page of its own, and an interval of a table stays on one line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
CELL = re.compile(r"<td[^>]*>.*?</td>", re.DOTALL)
INTERVAL = re.compile(r"(?:[+\-−]?\d[\d.]* )?\[[+\-−]?[\d.]+, [+\-−]?[\d.]+\]")
OUTSIDE = re.compile(r"\]\(((?:\.\./)+)([\w./]+)((?:#[\w-]+)?)\)")
_LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".sbatch": "sh"}


def on_files(files: Files, *, config: Any) -> Files:
    """Adds a page for each file outside docs/ that a page links to, so that the site needs no other host."""
    for page in list(files.documentation_pages()):
        for _, path, _ in OUTSIDE.findall(page.content_string):
            file = ROOT / path
            name = _page_of(path)
            if file.is_file() and files.get_file_from_path(name) is None:
                files.append(File.generated(config, name, content=_page_text(file, path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Returns the page with its links to files outside docs/ pointing to their pages."""
    return OUTSIDE.sub(lambda link: _link(link, page.file.src_uri.count("/")), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Returns the page with every interval of a cell marked, which docs/site.css keeps on one line."""
    return CELL.sub(lambda cell: INTERVAL.sub(r'<span class="interval">\g<0></span>', cell.group()), html)


def _link(link: re.Match[str], depth: int) -> str:
    ups, path, anchor = link.groups()
    # One step up more than the page is deep leaves docs/.
    if ups.count("../") != depth + 1 or not (ROOT / path).is_file():
        return link.group()
    return f"]({'../' * depth}{_page_of(path)}{anchor})"


def _page_of(path: str) -> str:
    return f"source/{path}" if path.endswith(".md") else f"source/{path}.md"


def _page_text(file: Path, path: str) -> str:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        # The page is one folder deeper, in docs/source/, and its links into docs/ leave that.
        ups = "../" * (path.count("/") + 1)
        return re.sub(r"\]\((?:\.\./)+docs/", f"]({ups}", text)
    return f"# {path}\n\n````{_LANGUAGES.get(file.suffix, 'text')}\n{text}````\n"
