"""The report in a real browser: it draws without an error and fits a phone's width."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gradus.evidence.reports import render_report
from gradus.evidence.reports.run_files import RunRecord

CHROMIUM = next(
    (match for name in ("chromium", "chromium-browser", "google-chrome") if (match := shutil.which(name))), None
)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--enable-logging=stderr",
    "--virtual-time-budget=8000",
    "--dump-dom",
]
WIDTHS = (390, 1280)
LONG = "a_name_without_a_place_to_break" * 4
LISTEN = "<script>window.problems=[];addEventListener('error',(event)=>problems.push(event.message));</script>"
# Frames have any width one asks for; a window has a least one. What each frame looks like is written where the DOM dump shows it.
PROBE = """<!doctype html><body data-seen=""><script>
const pages = %s;
const frames = %s.map((width) => Object.assign(document.createElement("iframe"), {width, height: 900, srcdoc: pages}));
document.body.append(...frames);
setTimeout(() => {
  const seen = frames.map((frame) => {
    const page = frame.contentDocument, root = page.documentElement;
    const slider = page.getElementById("pick-turn");
    const before = page.querySelector(".turn pre").textContent;
    slider.value = 5;
    slider.dispatchEvent(new Event("input"));
    return {
      width: root.clientWidth, over: root.scrollWidth - root.clientWidth, problems: frame.contentWindow.problems,
      charts: page.querySelectorAll(".stage svg").length, empty: [...page.querySelectorAll(".stage")].filter((host) => !host.childElementCount).length,
      moved: before !== page.querySelector(".turn pre").textContent,
      found: (() => {
        const text = page.getElementById("find-text");
        const all = page.querySelectorAll(".results tbody tr").length;
        text.value = "no policy ever said this";
        text.dispatchEvent(new Event("input"));
        const none = page.querySelectorAll(".results tbody tr").length;
        text.value = "";
        text.dispatchEvent(new Event("input"));
        const links = [...page.querySelectorAll(".results tbody a")];
        const rewards = [...page.querySelectorAll(".results tbody td:nth-child(2)")].map((cell) => Number(cell.textContent.replace("−", "-")));
        links.at(-1).click();
        const told = page.querySelector("#browser > p").textContent;
        links.at(-2).click();
        return { all, none, sorted: rewards.every((value, at) => at === 0 || value <= rewards[at - 1]), told: told.includes("gradus show evaluation/eval/episodes.jsonl.gz -k 0"), opened: links.at(-2).textContent.startsWith(page.getElementById("pick-policy").value) };
      })(),
      saves: page.querySelectorAll("button.save").length, terms: page.querySelectorAll(".term").length,
    };
  });
  document.body.dataset.seen = JSON.stringify(seen);
  frames.forEach((frame) => frame.remove());
}, 1500);
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs a chromium on the PATH")
def test_it_draws_without_errors_at_every_width(played: Any, tmp_path: Path) -> None:
    elsewhere = {
        "condition": "ood",
        "seed": 9,
        "policy": "random",
        "stop": "terminated",
        "reward": -9.0,
        "components": {},
    }
    long = {"heuristic+constant": LONG, "held-out": f"{LONG}s"}  # names of any length

    def renamed(value: Any) -> Any:
        text = json.dumps(value)
        for old, new in long.items():
            text = text.replace(old, new)
        return json.loads(text)

    payload = renamed({**played.episodes, "listed": [elsewhere]})
    record = RunRecord(
        name="evaluation",
        path="evaluation",
        results=renamed(played.results),
        about=renamed(played.about),
        episodes=payload,
    )
    source = render_report(record).replace("<head>", f"<head>{LISTEN}", 1)
    probe = tmp_path / "probe.html"
    probe.write_text(PROBE % (json.dumps(source).replace("<", "\\u003c"), list(WIDTHS)), encoding="utf-8")
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", probe.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    match = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert match is not None, done.stderr[-2000:]
    seen = json.loads(html.unescape(match.group(1)))
    assert "CONSOLE" not in done.stderr, done.stderr
    assert len(seen) == len(WIDTHS)
    for frame in seen:
        assert frame["problems"] == []
        assert frame["over"] <= 0
        assert frame["charts"] > 10
        assert frame["empty"] == 0
        assert frame["moved"]
        assert frame["found"] == {"all": 9, "none": 0, "sorted": True, "told": True, "opened": True}
        assert frame["saves"] > 10
        assert frame["terms"] > 5
