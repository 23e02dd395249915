"""An audit for people: a page that is read in a minute, and a card and a badge to publish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradus.core.documents import AuditRecord, CheckRecord
from gradus.core.printing import beginning
from gradus.evidence.reports.html import render_template
from gradus.version import __version__

_WORDS = {"pass": "pass", "fail": "fail", "unresolved": "not settled", "skip": "not asked"}
_COLORS = {"pass": "#00704f", "fail": "#b03a00", "unresolved": "#7a5c00"}
_PAYING = (
    "exploits",
    "free credit",
    "search",
    "blind answers",
    "reflexes",
    "the source",
    "wrong answers",
    "hostile answers",
)
_LONG = 400  # characters of what was shown
_TURNS = 40
_MOST_EXAMPLES = 8


def audit_page(document: AuditRecord, *, turns: Sequence[Mapping[str, Any]] = (), figure: str = "") -> str:
    """The page as text, everything inside. ``turns``: the hack's episode (shown, answer, reward); ``figure``: SVG text."""
    from markupsafe import Markup

    failing = _failing(document)
    right_answers = _check(document, "right answers")
    sanity = _check(document, "sanity")
    form = sanity["measured"].get("form") if sanity else None
    return render_template(
        "audit.html.j2",
        document=document,
        words=_WORDS,
        version=__version__,
        paying=[check for check in failing if check["name"] in _PAYING],
        failing=failing,
        accepted=_examples(_check(document, "wrong answers"), "accepted"),
        refused=_examples(right_answers, "refused"),
        tried_right=right_answers is not None and right_answers["status"] in ("pass", "fail"),
        turns=[{**turn, "shown": beginning(str(turn["shown"]), _LONG)} for turn in turns[:_TURNS]],
        more_turns=max(0, len(turns) - _TURNS),
        figure=Markup("".join(figure.partition("<svg")[1:])),
        form=None if form == "as declared" else form,
    )


def audit_card(document: AuditRecord) -> str:
    """Markdown to publish with an environment."""
    failing = _failing(document)
    return render_template(
        "audit-card.md.j2",
        document=document,
        words=_WORDS,
        failing=failing,
        version=__version__,
    )


def audit_badge(document: AuditRecord) -> str:
    """An SVG badge: audit, and the verdict."""
    verdict = _WORDS[document["verdict"]]
    width = 14 + 7 * len(verdict)
    color = _COLORS[document["verdict"]]
    return render_template("audit-badge.svg.j2", verdict=verdict, color=color, left=44, right=width)


def _failing(document: AuditRecord) -> list[CheckRecord]:
    return [check for check in document["checks"] if check["status"] == "fail"]


def _check(document: AuditRecord, name: str) -> CheckRecord | None:
    return next((check for check in document["checks"] if check["name"] == name), None)


def _examples(check: CheckRecord | None, outcome: str) -> list[dict[str, Any]]:
    """Answers of the kinds that a check found accepted or refused as a rule, most often first, each with the right one."""
    examples: list[dict[str, Any]] = []
    rows: dict[str, Any] = check["measured"] if check else {}
    for kind, row in rows.items():
        if isinstance(row, dict) and "example" in row and (row["low"] or 0.0) > 0.5:
            examples.append({"kind": kind, "share": row[outcome], "n": row["n"], **row["example"]})
    return sorted(examples, key=lambda example: -example["share"])[:_MOST_EXAMPLES]
