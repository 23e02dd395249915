"""Looks the pinned packages up among published security advisories.

    python -m tests.hostile.advisories

ends with 1 if one of them has an advisory, and with one line and 0 where the advisories cannot be reached.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PINS = Path(__file__).parents[2] / "constraints.txt"
SECONDS = 120


def advisories(report: dict[str, Any]) -> tuple[list[str], int]:
    """A line for each advisory in what pip-audit wrote as JSON, and how many packages it could look up."""
    known = [each for each in report["dependencies"] if "skip_reason" not in each]
    lines = [
        f"{each['name']} {each['version']}: {advisory['id']}, mended in {', '.join(advisory['fix_versions']) or 'no version yet'}"
        for each in known
        for advisory in each["vulns"]
    ]
    return lines, len(known)


def main() -> None:
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(PINS), "--no-deps", "--disable-pip"]
    try:
        ended = subprocess.run(
            [*command, "--format", "json", "--progress-spinner", "off"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        lines, known = advisories(json.loads(ended.stdout))
    except (subprocess.TimeoutExpired, ValueError) as error:
        print(f"advisories: skipped, they could not be looked up ({type(error).__name__})")
        return
    if not known:
        print("advisories: skipped, the package index here knows none")
        return
    print("\n".join([f"advisories: {known} packages looked up, {len(lines)} advisories", *lines]))
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
