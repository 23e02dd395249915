"""An audit in the formats that other programs read: JUnit for test reports, SARIF for code scanning, annotations of hosted CI."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from xml.etree import ElementTree

from gradus.auditing.records import AuditCheck
from gradus.auditing.result import AuditResult
from gradus.core.findings import Status
from gradus.core.values import JsonDict

_LEVELS: dict[Status, str] = {"fail": "error", "open": "warning"}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_CONTROLS = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # that XML 1.0 cannot hold


def _findings(result: AuditResult) -> list[AuditCheck]:
    """The checks that fail or are open."""
    return [check for check in result.checks if check.status in _LEVELS]


def _place(result: AuditResult, check: AuditCheck) -> tuple[str, int]:
    """File and line of what a check names, or else of the grader; empty if it has no file."""
    line = check.measured.get("line")
    if line:
        return line["file"], line["line"]
    return result.place


def junit(result: AuditResult) -> str:
    """A test suite with a case for each check: failed, skipped if it is open or does not arise, or passed."""
    counts = Counter(check.status for check in result.checks)
    skipped = counts["open"] + counts["note"]
    suite = ElementTree.Element(
        "testsuite",
        name=f"gradus audit {result.grader}",
        tests=str(len(result.checks)),
        failures=str(counts["fail"]),
        skipped=str(skipped),
    )
    for check in result.checks:
        case = ElementTree.SubElement(suite, "testcase", classname=result.grader, name=check.subject)
        # Readers show the message in one line, and the text beneath it.
        text = _CONTROLS.sub("?", check.evidence)
        if check.status == "fail":
            ElementTree.SubElement(case, "failure", message=text[:300]).text = text
        elif check.status in ("open", "note"):
            ElementTree.SubElement(case, "skipped", message=text[:300])
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def sarif(result: AuditResult) -> str:
    """A run of SARIF 2.1.0 with a result for each check that fails or is open."""
    rows: list[JsonDict] = []
    for check in _findings(result):
        row: JsonDict = {
            "ruleId": check.subject,
            "level": _LEVELS[check.status],
            "message": {"text": check.evidence},
        }
        file, line = _place(result, check)
        if file:  # SARIF takes a result without a place, and no empty one
            place = {"artifactLocation": {"uri": file}, "region": {"startLine": line}}
            row["locations"] = [{"physicalLocation": place}]
        rows.append(row)
    rules = [{"id": check.subject} for check in result.checks]
    driver = {"name": "gradus audit", "informationUri": "https://pypi.org/project/gradus-rl/", "rules": rules}
    run = {"tool": {"driver": driver}, "results": rows}
    document = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=1) + "\n"


def workflow_lines(result: AuditResult) -> Sequence[str]:
    """Lines by which hosted CI shows each finding at its file and line, as workflow commands of GitHub."""
    lines: list[str] = []
    for check in _findings(result):
        file, line = _place(result, check)
        where = f" file={file},line={line}," if file else " "
        # The percent sign first: it begins the escapes of the others.
        text = check.evidence.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
        lines.append(f"::{_LEVELS[check.status]}{where}title={check.subject}::{text}")
    return lines
