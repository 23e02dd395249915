"""The page, the card and the badge of an audit, and what changed since another."""

import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from gradus.evidence.reports import audit_badge, audit_card, audit_page
from tests.fakes import audit_document

_INTERVAL = {"mean": 0.2, "low": 0.1, "high": 0.3}


def _document(**changes):
    bold = {"n": 16, "refused": 1.0, "low": 0.8, "example": {"answer": "**7**", "gold": "7"}}
    spaces = {"n": 16, "refused": 0.0, "low": 0.0}
    blind = {"evidence": "<script>x</script> | y", "measured": {}, "remedy": "Compare."}
    right = {"evidence": "strict about: bold", "measured": {"bold": bold, "spaces": spaces}}
    checks = [
        {"name": "blind answers", "status": "fail", **blind},
        {"name": "right answers", "status": "pass", **right},
    ]
    exploit = {"completion": "<b>x</b> & `y`", "reward": 1.0}
    return audit_document(**{"checks": checks, "exploit": exploit, **changes})


class _Text(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.parts: list[str] = []
        self.feed(page)

    def handle_data(self, data):
        self.parts.append(data)


def test_the_page_says_what_pays_what_is_refused_and_what_to_change():
    hack = {"kind": "bad start", "plan": "neglect then feed", "reflex": "feeder", "shape": "two stretches", "seed": 7}
    hack |= {"reward": _INTERVAL, "true_reward": _INTERVAL, "unearned": _INTERVAL}
    turns = [{"shown": "day <1>" + "y" * 900, "answer": "5 neglect", "reward": -0.25}] * 50
    page = audit_page(_document(hack=hack), turns=turns)
    text = " ".join(_Text(page).parts)
    words = ("<b>x</b> & `y`", "Bad start", "neglect then feed", "day <1>", "10 further turns", "**7**", "100 % of 16")
    for told in (*words, "Compare."):
        assert told in text, told
    assert "<b>x</b>" not in page  # what an answer says is text, not markup
    assert "y" * 500 not in page


def test_wrong_answers_that_are_accepted_and_the_form_stand_in_the_page():
    example = {"operator": "denied", "answer": "not <7>", "gold": "<7>"}
    wrong = {"denied": {"n": 24, "accepted": 1.0, "low": 0.86, "settled": True, "example": example}}
    checks = [
        {"name": "sanity", "status": "pass", "evidence": "gold", "measured": {"form": "bare"}},
        {"name": "wrong answers", "status": "fail", "evidence": "denied: ...", "measured": wrong, "remedy": "Compare."},
    ]
    review = [{"operator": "other case", "answer": "SEVEN", "gold": "seven"}]
    text = " ".join(_Text(audit_page(_document(checks=checks, review=review))).parts)
    for told in ("100 % of 24", "not <7>", "gold bare earns more", "For a person to judge", "SEVEN"):
        assert told in text, told
    checks[0]["measured"]["form"] = "as declared"
    text = " ".join(_Text(audit_page(_document(checks=checks))).parts)
    assert "earns more" not in text
    assert "For a person" not in text


@pytest.mark.parametrize("verdict", ["pass", "fail", "unresolved"])
def test_card_and_badge_say_the_verdict(verdict):
    assert ET.fromstring(audit_badge(verdict)).get("aria-label") == f"audit: {verdict}"
    card = audit_card(_document(verdict=verdict))
    assert f"**{verdict}.**" in card
    assert "<script>" not in card
    assert "&lt;script&gt;x&lt;/script&gt; \\| y |" in card
    assert "`<b>x</b> & 'y'`" in card
    assert "- blind answers: Compare." in card
