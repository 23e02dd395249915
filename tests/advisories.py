"""Asks pip-audit about the pinned packages; ends with 1 if one is vulnerable, and says how many could be looked at.

``python -m tests.advisories``, which is part of ``make check``. pip-audit itself ends with 0 and "no known vulnerabilities" if it found no package.
"""

import json
import subprocess
import sys
from typing import Any

COMMAND = [
    "--requirement",
    "constraints.txt",
    "--no-deps",
    "--disable-pip",
    "--progress-spinner",
    "off",
    "--format",
    "json",
]
SECONDS = 120


def verdict(report: str, problem: str) -> tuple[int, str]:
    """The exit code and the sentence for what pip-audit printed: its report, and what it wrote on standard error."""
    try:
        packages: list[dict[str, Any]] = json.loads(report)["dependencies"]
    except (ValueError, KeyError):
        return 0, f"NOT CHECKED for known vulnerabilities: {problem.strip()[-300:] or 'pip-audit gave no report'}"
    checked = [package for package in packages if "vulns" in package]
    vulnerable = [f"{each['name']} {each['version']}: {each['vulns'][0]['id']}" for each in checked if each["vulns"]]
    if vulnerable:
        return 1, f"{len(vulnerable)} vulnerable packages: {'; '.join(vulnerable)}"
    if not checked:
        return 0, f"NOT CHECKED for known vulnerabilities: none of {len(packages)} packages could be looked up"
    return 0, f"no known vulnerability in {len(checked)} of {len(packages)} packages; the others could not be looked up"


def main() -> int:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip_audit", *COMMAND], capture_output=True, text=True, timeout=SECONDS
        )
        code, words = verdict(done.stdout, done.stderr)
    except subprocess.TimeoutExpired:
        code, words = verdict("", f"no answer within {SECONDS} s")
    print(words, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
