"""Rules about the optimizer and speed: log-prob differences, spikes, ratios, KL, and steps that became slow."""

from __future__ import annotations

import numpy as np

from gradus.evidence.health.history import Array, Finding, History
from gradus.stats import format_number

_LOGP_DIFF_STOP = 1e-3  # nats
_SPIKE, _SPIKE_WINDOW, _SPIKES = 10.0, 50, 3
_SILENT = 3  # steps without a gradient that cannot be chance
_KL_WARN, _KL_STOP, _KL_GROWTH, _KL_SMALL = 0.5, 2.0, 10.0, 0.05  # nats per token
_CLIP = 0.2
_MOVED = 1.15  # the largest ratio, below which no token's probability changed by much
_SAME_RATIO = 1e-5
_AGREEMENT = 0.3  # correlation
_OLD, _OLD_LEAST = 5.0, 1e-3  # times the difference of the first step; nats per token
_MISMATCH, _MISMATCH_KL = 0.1, 0.2  # of the tokens; nats per token
_ZERO = 1e-3


def logp_diff_max(history: History) -> Finding | None:
    """Sampler and trainer may differ by rounding: by what the run's record allows, else by 1e-3 nats."""
    record = history.last
    limits = record.get("logp_diff_limits") or {"max": _LOGP_DIFF_STOP}
    for name, limit in limits.items():
        measured = record.get(f"logp_diff_{name}")
        if measured is not None and limit is not None and measured > limit:
            evidence = f"sampler and trainer log-probs differ by {measured:.1e} nats ({name}), above {limit:.0e}"
            return Finding(severity="stop", evidence=evidence)
    return None


def not_a_number(history: History) -> Finding | None:
    """JSON has no NaN, so a writer may leave NaN, Infinity, or null. A step in which nothing was trained also has null, and is in order."""
    record = history.last
    for name in ("loss", "grad_norm"):
        value = record.get(name)
        gone = name in record and value is None and record.get("trained_tokens", 1)
        if gone or (isinstance(value, float) and not np.isfinite(value)):
            return Finding(severity="stop", evidence=f"{name} is {'null' if value is None else value}")
    return None


def no_gradient(history: History) -> Finding | None:
    """Groups differed in their rewards at each of the last steps, and yet nothing was trained: no token had an advantage."""
    records = history.records[-_SILENT:]
    shares = [record.get("zero_variance_groups") for record in records]
    if len(records) < _SILENT or any(share is None or share >= 1.0 for share in shares):
        return None
    for name, what in (("grad_norm", "gradient norm"), ("lr", "learning rate")):
        if not any(record.get(name) or name not in record for record in records):
            evidence = (
                f"the {what} was 0 at each of the last {_SILENT} steps, though members of groups got different rewards"
            )
            return Finding(severity="stop", evidence=evidence)
    return None


def still_ratio(history: History) -> Finding | None:
    """A step took several updates, and yet no token's probability is other than before the first of them."""
    records = history.records[-_SILENT:]
    several = [(record.get("updates") or 0) > 1 and record.get("grad_norm") for record in records]
    ratios = history.known("ratio_max", _SILENT)
    if len(ratios) < _SILENT or not all(several) or float(np.abs(ratios - 1.0).max()) > _SAME_RATIO:
        return None
    evidence = f"the largest ratio was 1 at each of the last {_SILENT} steps, each of which took several updates"
    return Finding(severity="stop", evidence=evidence)


def credit_reversed(history: History) -> Finding | None:
    """Advantages do not follow the rewards of their groups."""
    agreement = history.mean("credit_agreement", _SILENT)
    if agreement is None or agreement > _AGREEMENT:
        return None
    evidence = (
        f"advantages and rewards have a correlation of {agreement:.2f} within groups over the last {_SILENT} steps"
    )
    return Finding(severity="stop", evidence=evidence)


def old_weights(history: History) -> Finding | None:
    """Before the first step sampler and trainer have the same weights. If their log-probs differ much more since, the sampler's are older."""
    first, now = history.head("logp_diff_mean", 1), history.mean("logp_diff_mean", _SILENT)
    if now is None or now < _OLD_LEAST or now < _OLD * first[0]:
        return None
    evidence = f"log-probs of sampler and trainer differ by {now:.1e} nats per token over the last {_SILENT} steps, and by {first[0]:.1e} in the first"
    return Finding(severity="warn", evidence=evidence)


def gradient_spike(history: History) -> Finding | None:
    """One norm above ten times the median of the 50 steps before it; three such within 50 steps are worse."""
    norms = history.column("grad_norm", 2 * _SPIKE_WINDOW + 1)
    if not len(norms) or not _is_spike(norms, len(norms) - 1):
        return None
    spikes = [i for i in range(max(0, len(norms) - _SPIKE_WINDOW), len(norms)) if _is_spike(norms, i)]
    usual = float(np.nanmedian(norms[max(0, len(norms) - 1 - _SPIKE_WINDOW) : -1]))
    evidence = f"gradient norm {norms[-1]:.3g}, {norms[-1] / usual:.0f} times the running median {usual:.3g}"
    if len(spikes) >= _SPIKES:
        told = f"{evidence}; {len(spikes)} spikes within {_SPIKE_WINDOW} steps"
        return Finding(severity="stop", evidence=told)
    return Finding(severity="warn", evidence=evidence)


def _is_spike(norms: np.ndarray, index: int) -> bool:
    before = norms[max(0, index - _SPIKE_WINDOW) : index]
    before = before[~np.isnan(before)]
    return len(before) >= 5 and bool(norms[index] > _SPIKE * max(float(np.median(before)), 1e-12))


def kl_explosion(history: History) -> Finding | None:
    """Fires if KL is above 0.5, or ten times what it was 20 steps ago and above the noise."""
    now = history.mean("kl", 3)
    if now is None:
        return None
    if now > _KL_WARN:
        evidence = f"kl is {now:.2f} nats per token over the last 3 steps, above {_KL_WARN}"
        return Finding(severity="stop" if now > _KL_STOP else "warn", evidence=evidence)
    if len(history) >= 23 and now > _KL_SMALL:
        then = history.before(len(history) - 20).mean("kl", 3)
        if then is not None and then > 0 and now > _KL_GROWTH * then:
            evidence = f"kl grew from {format_number(then)} to {format_number(now)} in 20 steps, {now / then:.0f} times"
            return Finding(severity="warn", evidence=evidence)
    return None


def clip_storm(history: History) -> Finding | None:
    """Clipped tokens lose their gradient: beyond a fifth, most of what was sampled is not used.

    GSPO clips a sequence's ratio at 3e-4, and 15 % of the tokens in the paper's own runs (arXiv 2507.18071): ratios so near 1 are not a storm.
    """
    share, ratio = history.mean("clip_fraction", 3), history.mean("ratio_max", 3)
    if share is None or share <= _CLIP or (ratio is not None and ratio < _MOVED):
        return None
    evidence = f"{share:.0%} of action tokens clipped over the last 3 steps, above {_CLIP:.0%}"
    return Finding(severity="warn", evidence=evidence)


def sampler_mismatch(history: History) -> Finding | None:
    """A correction cuts or masks more than a tenth of the tokens, or the sampler's distribution is far from the trainer's."""
    share, kl = (history.mean(name, 3) for name in ("mismatch_fraction", "mismatch_kl"))
    over = []
    if share is not None and share > _MISMATCH:
        over.append(f"{share:.0%} of action tokens cut or masked by the correction, above {_MISMATCH:.0%}")
    if kl is not None and kl > _MISMATCH_KL:
        over.append(f"sampler and trainer {kl:.2f} nats per token apart, above {_MISMATCH_KL}")
    if not over:
        return None
    return Finding(severity="warn", evidence=f"{' and '.join(over)} over the last 3 steps")


def loss_near_zero(history: History) -> Finding | None:
    """Explains a loss near zero, once in a run."""
    losses = history.known("loss", 10)
    if len(losses) < 10 or float(np.abs(losses).max()) >= _ZERO:
        return None
    return Finding(
        severity="info", evidence=f"the loss stayed within {float(np.abs(losses).max()):.1e} of 0 for 10 steps"
    )


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
    """Says if the seconds of a step are stored by parts, as in GRPO."""
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
    """Says how much longer each part of a step takes for its tokens, so that a slow judge is told from a slow machine."""
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
