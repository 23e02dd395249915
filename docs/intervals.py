"""Keep an interval of a table on one line: a hook of mkdocs, which docs/site.css goes with."""

from __future__ import annotations

import re
from typing import Any

CELL = re.compile(r"<td[^>]*>.*?</td>", re.DOTALL)
INTERVAL = re.compile(r"(?:[+\-−]?\d[\d.]* )?\[[+\-−]?[\d.]+, [+\-−]?[\d.]+\]")


def on_page_content(html: str, **_: Any) -> str:
    """Returns the page with every interval of a cell marked."""
    return CELL.sub(lambda cell: INTERVAL.sub(r'<span class="interval">\g<0></span>', cell.group()), html)
