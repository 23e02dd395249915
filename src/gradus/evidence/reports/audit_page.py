"""An audit for people: a page that is read in a minute, a card and a badge to publish, and what changed since another audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradus.core.printing import beginning
from gradus.evidence.reports.html import render_template
from gradus.version import __version__

Json = Mapping[str, Any]
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
_KNOWN = ("pass", "fail")  # of a check that found out what it asked


def audit_page(document: Json, *, turns: Sequence[Json] = (), figure: str = "") -> str:
    """The page as text, everything inside. ``turns``: the hack's episode (shown, answer, reward); ``figure``: SVG text."""
    from markupsafe import Markup

    shown = [{**turn, "shown": beginning(str(turn["shown"]), _LONG)} for turn in turns[:_TURNS]]
    return render_template(
        "audit.html.j2",
        document=document,
        words=_WORDS,
        version=__version__,
        paying=[each for each in document["checks"] if _pays(each)],
        failing=[each for each in document["checks"] if each["status"] == "fail"],
        accepted=_examples(document, "wrong answers", "accepted"),
        refused=_examples(document, "right answers", "refused"),
        tried_right=any(each["name"] == "right answers" and each["status"] in _KNOWN for each in document["checks"]),
        open=document.get("review") or (),
        turns=shown,
        more_turns=max(0, len(turns) - len(shown)),
        figure=Markup(figure[figure.find("<svg") :] if "<svg" in figure else ""),
        form=_form(document),
    )


def audit_card(document: Json) -> str:
    """Markdown to publish with an environment."""
    rows = [f"| {each['name']} | {_WORDS[each['status']]} | {_cell(each['evidence'])} |" for each in document["checks"]]
    exploit, hack = document.get("exploit"), document.get("hack")
    pays = [f"- This completion earns {exploit['reward']:g}: `{_code(exploit['completion'])}`"] if exploit else []
    pays += [f"- {hack['kind']}: `{_code(hack['plan'])}`"] if hack else []
    changes = [f"- {each['name']}: {each['remedy']}" for each in document["checks"] if each.get("remedy")]
    parts = [
        f"# Audit of {document['environment']}, grader {document['grader']}",
        f"**{_WORDS[document['verdict']]}.** {document['summary']}",
        "\n".join(["| check | status | evidence |", "|---|---|---|", *rows]),
        *(["\n".join(["## What pays without the work", "", *pays])] if pays else []),
        *(["\n".join(["## What to change", "", *changes])] if changes else []),
        f"{document['episodes']} tasks of {document['condition']}, seed {document['seed']}; Gradus {__version__}, `gradus audit`.",
    ]
    return "\n\n".join(parts) + "\n"


def audit_badge(document: Json) -> str:
    """An SVG badge: audit, and the verdict."""
    verdict = _WORDS[document["verdict"]]
    left, right = 44, 14 + 7 * len(verdict)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" aria-label="audit: {verdict}">'
        f'<rect width="{left + right}" height="20" rx="3" fill="{_COLORS[document["verdict"]]}"/>'
        f'<path d="M3 0h{left - 3}v20H3a3 3 0 0 1-3-3V3a3 3 0 0 1 3-3z" fill="#37424a"/>'
        '<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        f'<text x="{left / 2:g}" y="14">audit</text><text x="{left + right / 2:g}" y="14">{verdict}</text></g></svg>\n'
    )


def _pays(check: Json) -> bool:
    return check["status"] == "fail" and check["name"] in _PAYING


def _examples(document: Json, check: str, what: str) -> list[dict[str, Any]]:
    """Answers of the kinds that a check found accepted or refused as a rule, most often first, each with the right one."""
    rows = next((each["measured"] for each in document["checks"] if each["name"] == check), {})
    shown = [
        {"kind": name, "share": row[what], "n": row["n"], **row["example"]}
        for name, row in rows.items()
        if isinstance(row, Mapping) and row.get("example") and (row.get("low") or 0.0) > 0.5
    ]
    return sorted(shown, key=lambda row: -row["share"])[:8]


def _form(document: Json) -> str | None:
    """The form that gold earns in, if it is another one than the tasks ask for."""
    measured = next((each["measured"] for each in document["checks"] if each["name"] == "sanity"), {})
    form = measured.get("form")
    return None if form in (None, "as declared") else str(form)


def _code(text: str) -> str:
    return beginning(text, _LONG).replace("\n", "\\n").replace("`", "'")


def _cell(text: str) -> str:
    return beginning(text, _LONG).replace("|", "\\|").replace("\n", " ")
