"""An audit for people: a page that is read in a minute, and a card and a badge to publish."""

from __future__ import annotations

from collections.abc import Sequence

from gradus.core.documents import AuditRecord
from gradus.core.printing import beginning
from gradus.core.values import Json
from gradus.evidence.reports.html import render_template
from gradus.version import __version__

_WORDS = {"pass": "pass", "fail": "fail", "unresolved": "unresolved", "skip": "not asked"}
_COLORS = {"pass": "#00704f", "fail": "#b03a00", "unresolved": "#7a5c00"}
_LONG = 400  # characters of what was shown
_TURNS = 40


def audit_page(document: AuditRecord, *, turns: Sequence[Json] = (), figure: str = "") -> str:
    """The page as text, everything inside. ``turns``: the hack's episode (shown, answer, reward); ``figure``: SVG text."""
    from markupsafe import Markup

    return render_template(
        "audit.html.j2",
        document=document,
        words=_WORDS,
        version=__version__,
        checks={check["name"]: check for check in document["checks"]},
        turns=[{**turn, "shown": beginning(str(turn["shown"]), _LONG)} for turn in turns[:_TURNS]],
        more_turns=max(0, len(turns) - _TURNS),
        figure=Markup("".join(figure.partition("<svg")[1:])),
    )


def audit_card(document: AuditRecord) -> str:
    """Markdown to publish with an environment."""
    return render_template("audit-card.md.j2", document=document, words=_WORDS, version=__version__)


def audit_badge(verdict: str) -> str:
    """An SVG badge: audit, and the verdict (``pass``, ``fail`` or ``unresolved``)."""
    word = _WORDS[verdict]
    return render_template(
        "audit-badge.svg.j2", verdict=word, color=_COLORS[verdict], left=44, right=14 + 7 * len(word)
    )
