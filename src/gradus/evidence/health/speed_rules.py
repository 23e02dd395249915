"""A rule about speed: training that has become much slower than the same run was before."""

from __future__ import annotations

import numpy as np

from gradus.evidence.health.finding import Finding
from gradus.evidence.health.history import Array, History

_SLOW = 1 / 3
_SECONDS, _STEPS = 60.0, 5  # that a stretch has at least; a burst of other work is shorter
_LOOK = 1000  # steps back
_SHARE = 0.05  # of the time, below which a part of a step is not named
_PARTS = ("policy", "environment", "reward", "train")


def slow_training(history: History) -> Finding | None:
    """The newest minute of steps has less than a third of the speed of the fastest minute before, by each measure of the work.

    Medians over the steps of a stretch leave out single long ones, such as the first, which compiles and warms up. What happens between
    steps, such as validation, is not part of their seconds. Longer answers lower the tokens per second, because tokens are sampled
    more slowly than they are read, and shorter ones lower the sampled tokens per second: both must have fallen.
    """
    seconds = history.column("seconds.total" if _in_parts(history) else "seconds", _LOOK)
    stretches = _stretches(seconds)
    if len(stretches) < 2:
        return None
    work = np.stack([history.column(name, _LOOK) / seconds for name in ("tokens", "action_tokens")])
    speeds = np.array([np.median(work[:, each], axis=1) for each in stretches])  # (stretches, 2), newest first
    known = ~np.isnan(speeds[0])
    if not known.any():
        return None
    ratios = np.nan_to_num((speeds[0, known] / speeds[1:, known]).max(axis=1), nan=np.inf)
    if ratios.min() >= _SLOW:
        return None
    fastest = 1 + int(np.argmin(ratios))
    now, then = stretches[0], stretches[fastest]
    steps = [record.get("step") for record in history.records[-len(seconds) :][then]]
    evidence = (
        f"{speeds[0, 0]:,.0f} tokens per second over the last {now.stop - now.start} steps, "
        f"{speeds[fastest, 0]:,.0f} in steps {steps[0]} to {steps[-1]}{_slower_parts(history, now, then)}"
    )
    return Finding(severity="warn", evidence=evidence)


def _in_parts(history: History) -> bool:
    """Whether the seconds of a step are those of its parts, as in GRPO."""
    return not isinstance(history.last.get("seconds"), int | float)


def _stretches(seconds: Array) -> list[slice]:
    """Consecutive stretches of at least a minute and five steps, the newest first; steps without seconds count as none."""
    stretches: list[slice] = []
    end, lasted = len(seconds), 0.0
    for place, each in zip(range(end - 1, -1, -1), np.nan_to_num(seconds)[::-1].tolist(), strict=True):
        lasted += each
        if lasted >= _SECONDS and end - place >= _STEPS:
            stretches.append(slice(place, end))
            end, lasted = place, 0.0
    return stretches


def _slower_parts(history: History, now: slice, then: slice) -> str:
    """How much longer each part of a step takes for its tokens, so that a slow judge is told from a slow machine."""
    if not _in_parts(history):
        return ""
    tokens, total = history.column("tokens", _LOOK), history.column("seconds.total", _LOOK)
    slower: list[str] = []
    for name in _PARTS:
        seconds = history.column(f"seconds.{name}", _LOOK)
        if np.nansum(seconds[now]) > _SHARE * np.nansum(total[now]):
            before = max(float(np.median(seconds[then] / tokens[then])), 1e-12)
            slower.append(f"{name} {np.median(seconds[now] / tokens[now]) / before:.1f} x")
    return f"; time for a token: {', '.join(slower)}" if slower else ""
