"""The pages: links, the commands they show, and the reference that is made from the code."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_pages_show_what_exists_and_the_reference_is_that_of_the_code() -> None:
    done = subprocess.run([sys.executable, "docs/build.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, (
        f"run docs/reference.py if a page of the reference is out of date:\n{done.stdout}{done.stderr}"
    )
