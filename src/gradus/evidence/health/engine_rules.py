"""Rules about the optimizer and speed: log-prob differences, spikes, ratios, KL, and steps that became slow."""

from __future__ import annotations

import numpy as np

from gradus.evidence.health.history import Array, Fired, History, measured
from gradus.stats import format_number

_LOGP_DIFF_STOP = 1e-3  # nats
_SPIKE, _SPIKE_WINDOW, _SPIKES = 10.0, 50, 3
_SILENT = 3  # steps without a gradient that cannot be chance
_KL_WARN, _KL_STOP, _KL_GROWTH, _KL_SMALL = 0.5, 2.0, 10.0, 0.05  # nats per token
_CLIP = 0.2
_MOVED = 1.15  # the largest ratio, below which no token's probability changed by much
_OLD, _OLD_LEAST = 5.0, 3e-3  # times the difference of the first step; nats per token (bfloat16 rounding comes to 1e-3)
_MISMATCH, _MISMATCH_KL = 0.1, 0.2  # of the tokens; nats per token
_ZERO = 1e-3


def logp_diff_max(history: History) -> Fired:
    """Sampler and trainer may differ by rounding: by what the run's record allows, else by 1e-3 nats."""
    limits = history.last.get("logp_diff_limits") or {"max": _LOGP_DIFF_STOP}
    for name, limit in limits.items():
        gap = history.last.get(f"logp_diff_{name}")
        if gap is not None and limit is not None and gap > limit:
            return "fail", f"sampler and trainer log-probs differ by {gap:.1e} nats ({name}), above {limit:.0e}"
    return None


def law_broken(history: History) -> Fired:
    """A law of the run was broken, and stopped it."""
    alert = history.last
    return ("fail", str(alert["evidence"])) if str(alert.get("rule", "")).startswith("law ") else None


def not_a_number(history: History) -> Fired:
    """JSON has no NaN, so a writer may leave NaN, Infinity, or null. A step in which nothing was trained also has null, and is in order."""
    record = history.last
    for name in ("loss", "grad_norm"):
        value = record.get(name, 0.0)
        if value is None and record.get("trained_tokens", 1):
            return "fail", f"{name} is null"
        if value is not None and not np.isfinite(value):
            return "fail", f"{name} is {value}"
    return None


def no_gradient(history: History) -> Fired:
    """Groups differed in their rewards at each of the last steps, and yet nothing was trained: no token had an advantage."""
    shares = history.column("zero_variance_groups", _SILENT)
    if len(shares) < _SILENT or not (shares < 1.0).all():
        return None
    records = history.records[-_SILENT:]
    for name, what in (("grad_norm", "gradient norm"), ("lr", "learning rate")):
        if not any(record.get(name, 1.0) for record in records):
            return "fail", (
                f"the {what} was 0 at each of the last {_SILENT} steps, though members of groups got different rewards"
            )
    return None


def old_weights(history: History) -> Fired:
    """Before the first step sampler and trainer have the same weights. If their log-probs differ much more since, the sampler's are older."""
    now = history.mean("logp_diff_mean", _SILENT)
    if now is None:
        return None
    first = history.head("logp_diff_mean", 1)[0]
    if now < max(_OLD_LEAST, _OLD * first):
        return None
    return "warn", (
        f"log-probs of sampler and trainer differ by {now:.1e} nats per token over the last {_SILENT} steps, "
        f"and by {first:.1e} in the first"
    )


def gradient_spike(history: History) -> Fired:
    """One norm above ten times the median of the 50 steps before it; three such within 50 steps are worse."""
    norms = history.column("grad_norm", 2 * _SPIKE_WINDOW + 1)
    last = len(norms) - 1
    if last < 0 or not _is_spike(norms, last):
        return None
    window = range(len(norms))[-_SPIKE_WINDOW:]
    spikes = sum(_is_spike(norms, index) for index in window)
    norm, usual = norms[last], np.median(_before(norms, last))
    evidence = f"gradient norm {norm:.3g}, {norm / usual:.0f} times the running median {usual:.3g}"
    if spikes < _SPIKES:
        return "warn", evidence
    return "fail", f"{evidence}; {spikes} spikes within {_SPIKE_WINDOW} steps"


def _is_spike(norms: Array, index: int) -> bool:
    before = _before(norms, index)
    if len(before) < 5:  # too few to say what is usual
        return False
    usual = max(np.median(before), 1e-12)
    return bool(norms[index] > _SPIKE * usual)


def _before(norms: Array, index: int) -> Array:
    """The norms of the steps before one."""
    return measured(norms[max(0, index - _SPIKE_WINDOW) : index])


def kl_explosion(history: History) -> Fired:
    """Fires if KL is above 0.5, or ten times what it was 20 steps ago and above the noise."""
    now = history.mean("kl", 3)
    if now is None or now <= _KL_SMALL:
        return None
    if now > _KL_WARN:
        evidence = f"kl is {now:.2f} nats per token over the last 3 steps, above {_KL_WARN}"
        return "fail" if now > _KL_STOP else "warn", evidence
    if len(history) < 23:
        return None
    then = history.before(len(history) - 20).mean("kl", 3)
    if then is None or then <= 0 or now <= _KL_GROWTH * then:
        return None
    growth = f"from {format_number(then)} to {format_number(now)}"
    return "warn", f"kl grew {growth} in 20 steps, {now / then:.0f} times"


def clip_storm(history: History) -> Fired:
    """Clipped tokens lose their gradient: beyond a fifth, most of what was sampled is not used.

    GSPO clips a sequence's ratio at 3e-4, and 15 % of the tokens in the paper's own runs (arXiv 2507.18071): ratios so near 1 are not a storm.
    """
    share = history.mean("clip_fraction", 3)
    ratio = history.mean("ratio_max", 3)
    if share is None or share <= _CLIP:
        return None
    if ratio is not None and ratio < _MOVED:
        return None
    return "warn", f"{share:.0%} of action tokens clipped over the last 3 steps, above {_CLIP:.0%}"


def sampler_mismatch(history: History) -> Fired:
    """A correction cuts or masks more than a tenth of the tokens, or the sampler's distribution is far from the trainer's."""
    share = history.mean("mismatch_fraction", 3)
    kl = history.mean("mismatch_kl", 3)
    over: list[str] = []
    if share is not None and share > _MISMATCH:
        over.append(f"{share:.0%} of action tokens cut or masked by the correction, above {_MISMATCH:.0%}")
    if kl is not None and kl > _MISMATCH_KL:
        over.append(f"sampler and trainer {kl:.2f} nats per token apart, above {_MISMATCH_KL}")
    return ("warn", f"{' and '.join(over)} over the last 3 steps") if over else None


def loss_near_zero(history: History) -> Fired:
    """Explains a loss near zero, once in a run."""
    losses = history.measured("loss", 10)
    if len(losses) < 10:
        return None
    largest = np.abs(losses).max()
    return ("note", f"the loss stayed within {largest:.1e} of 0 for 10 steps") if largest < _ZERO else None


_SLOW = 1 / 3
_SECONDS, _STEPS = 60.0, 5  # that a stretch has at least; a burst of other work is shorter
_LOOK = 1000  # steps back
_SHARE = 0.05  # of the time, below which a part of a step is not named
_PARTS = ("policy", "environment", "reward", "train")


def slow_training(history: History) -> Fired:
    """The newest minute of steps has less than a third of the speed of the fastest minute before, by each measure of the work.

    Medians over the steps of a stretch leave out single long ones, such as the first, which compiles and warms up. What happens between
    steps, such as validation, is not part of their seconds. Longer answers lower the tokens per second, because tokens are sampled
    more slowly than they are read, and shorter ones lower the sampled tokens per second: both must have fallen.
    """
    seconds = history.column("seconds.total" if _in_parts(history) else "seconds", _LOOK)
    stretches = _stretches(seconds)
    if len(stretches) < 2:
        return None
    work = np.stack([history.column("tokens", _LOOK), history.column("action_tokens", _LOOK)])
    rates = work / seconds
    speeds = np.array([np.median(rates[:, steps], axis=1) for steps in stretches])  # (stretches, 2), newest first
    newest, earlier = speeds[0], speeds[1:]
    measures = ~np.isnan(newest)
    if not measures.any():
        return None
    # The measure that fell least decides; SFT has one of the two alone.
    ratios = (newest[measures] / earlier[:, measures]).max(axis=1)
    ratios = np.nan_to_num(ratios, nan=np.inf)
    if ratios.min() >= _SLOW:
        return None
    fastest = int(np.argmin(ratios))
    now, then = stretches[0], stretches[1 + fastest]
    records = history.records[-len(seconds) :][then]
    first, last = records[0].get("step"), records[-1].get("step")
    return "warn", (
        f"{newest[0]:,.0f} tokens per second over the last {now.stop - now.start} steps, "
        f"{earlier[fastest, 0]:,.0f} in steps {first} to {last}{_slower_parts(history, now, then)}"
    )


def _in_parts(history: History) -> bool:
    """Says if the seconds of a step are stored by parts, as in GRPO."""
    return not isinstance(history.last.get("seconds"), int | float)


def _stretches(seconds: Array) -> list[slice]:
    """Consecutive stretches of at least a minute and five steps, the newest first; steps without seconds count as none."""
    stretches: list[slice] = []
    durations = np.nan_to_num(seconds)
    end, lasted = len(seconds), 0.0
    for place in reversed(range(len(seconds))):
        lasted += durations[place]
        if lasted >= _SECONDS and end - place >= _STEPS:
            stretches.append(slice(place, end))
            end, lasted = place, 0.0
    return stretches


def _slower_parts(history: History, now: slice, then: slice) -> str:
    """How much longer each part of a step takes for its tokens, so that a slow judge is told from a slow machine."""
    if not _in_parts(history):
        return ""
    tokens = history.column("tokens", _LOOK)
    total = np.nansum(history.column("seconds.total", _LOOK)[now])
    slower: list[str] = []
    for name in _PARTS:
        seconds = history.column(f"seconds.{name}", _LOOK)
        if np.nansum(seconds[now]) > _SHARE * total:
            per_token = seconds / tokens
            before = max(np.median(per_token[then]), 1e-12)
            slower.append(f"{name} {np.median(per_token[now]) / before:.1f} x")
    return f"; time for a token: {', '.join(slower)}" if slower else ""
