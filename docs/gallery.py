"""Make the gallery of the site: reports and audits of three runs.

`python docs/gallery.py` takes the runs that are in runs/, makes the missing ones by the commands below (some minutes), and writes their
pages into docs/gallery/. `--picture` draws docs/figures/report.png from the first report with Chromium. Nothing that these pages show is loaded from elsewhere.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
GRADUS = (sys.executable, "-m", "gradus")
RUNS = {  # name on the site -> (folder of the whole run, the command that makes it or its -quick one)
    "published": ("runs/sums", (*GRADUS, "run", "examples/published/sums.toml", "--model", "SMOLLM2")),
    "shop": ("runs/shop", (*GRADUS, "run", "shop", "--quick", "--set", "audit.enabled=true")),
    "hack": ("runs/hack/loose", (sys.executable, "examples/reward_hack.py")),
}


def main() -> None:
    """Write the pages; a run that is missing is made first."""
    if "--picture" in sys.argv:
        picture()
        return
    (DOCS / "gallery").mkdir(exist_ok=True)
    for name, (folder, command) in RUNS.items():
        run = _finished(folder)
        if run is None:
            _make(command)
            run = _finished(folder)
        if run is None:
            raise SystemExit(f"no report in {folder} after {' '.join(command)}")
        for page in ("report", "audit"):
            text = (run / f"{page}.html").read_text(encoding="utf-8").replace(str(Path.home()), "~")
            (DOCS / "gallery" / f"{name}-{page}.html").write_text(text, encoding="utf-8")
            print(f"docs/gallery/{name}-{page}.html, of {run.relative_to(ROOT)}", flush=True)


def picture() -> None:
    """Draws the first screen of the report of the published model."""
    browser = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    if browser is None:
        raise SystemExit("a picture needs Chromium in PATH, as in apt install chromium")
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=1.5")
    size = ("--window-size=1000,560", "--virtual-time-budget=4000")
    page = (DOCS / "gallery/published-report.html").as_uri()
    screenshot = f"--screenshot={DOCS / 'figures/report.png'}"
    subprocess.run([browser, *flags, *size, screenshot, page], check=True, capture_output=True)


def _finished(folder: str) -> Path | None:
    """The folder of a run, or of its quick one, if it has a report."""
    return next((run for run in (ROOT / folder, ROOT / f"{folder}-quick") if (run / "report.html").is_file()), None)


def _make(command: tuple[str, ...]) -> None:
    if "SMOLLM2" in command:
        fetched = subprocess.run(
            [sys.executable, "examples/published/smollm2.py"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        command = (*command[:-1], fetched.stdout.strip())
    print("$", *command, flush=True)
    subprocess.run(command, cwd=ROOT, env={"OMP_NUM_THREADS": "1", **os.environ}, check=True)


if __name__ == "__main__":
    main()
