"""Simulated metric streams: a run as it looks when nothing is wrong, with the noise of real ones, and ways to spoil it."""

import numpy as np

from gradus.evidence.health import RULES, diagnose


def healthy(seed, steps=120, *, gain=0.25):
    """A run that learns: the reward saturates, spread and variety shrink a little, everything else wanders."""
    rng = np.random.default_rng(seed)
    progress = 1 - np.exp(-np.arange(steps) / (steps / 3))
    waves = {name: _wave(rng, steps) for name in ("reward", "true_reward", "entropy", "length", "norm", "kl")}
    records = []
    for i in range(steps):
        reward = 0.4 + gain * progress[i] + 0.012 * waves["reward"][i]
        records.append(
            {
                "kind": "step",
                "step": i + 1,
                "reward_mean": reward,
                "reward_std": 0.1 * (1 - 0.25 * progress[i]) * rng.uniform(0.85, 1.15),
                "reward_total_std": 0.15,
                "true_reward_mean": 8 + 5 * gain / 0.25 * progress[i] + 0.35 * waves["true_reward"][i],
                "components": {"wellbeing": reward, "belief": 0.3 + 0.3 * progress[i]},
                "component_variance": {"wellbeing": rng.uniform(0.5, 0.75), "belief": rng.uniform(0.25, 0.5)},
                "metrics": {"play": reward - 0.1, "belief_spread": 0.05 * rng.uniform(0.8, 1.2)},
                "groups": 16,
                "zero_variance_groups": float(rng.binomial(16, 0.03 + 0.12 * progress[i]) / 16),
                "episodes": 128,
                "failed_episodes": 0.0,
                "ungraded_episodes": 0.0,
                "truncated_episodes": float(rng.binomial(128, 0.01) / 128),
                "turn_limit_episodes": 0.0,
                "invalid_actions": float(rng.binomial(3584, 0.005) / 3584),
                "distinct_actions": 0.3 * (1 - 0.3 * progress[i]) * rng.uniform(0.9, 1.1),
                "answer_information": 0.8 * rng.uniform(0.9, 1.1),
                "action_tokens_mean": 140 + 4 * waves["length"][i],
                "loss": rng.normal(0, 0.004),
                "kl": 0.0005 + 0.02 * progress[i] * np.exp(0.2 * waves["kl"][i]),
                "entropy": 1.0 - 0.3 * progress[i],
                "clip_fraction": rng.uniform(0.0, 0.04),
                "ratio_max": 1.3,
                "logp_diff_max": rng.uniform(1e-7, 5e-6),
                "grad_norm": 0.4 * np.exp(0.35 * waves["norm"][i] + rng.normal(0, 0.15)),
                "lr": 1e-5,
                "trained_tokens": 17000,
            }
        )
    return records


def _wave(rng, steps):
    """Noise that neighboring steps share, of standard deviation one."""
    values = np.zeros(steps)
    for i in range(steps):
        values[i] = 0.5 * values[i - 1] + np.sqrt(0.75) * rng.normal() if i else rng.normal()
    return values


def spoiled(seed, change, *, begin=60, steps=120):
    """A healthy run that ``change(record, i)`` spoils from step ``begin`` on; i counts the steps since."""
    records = healthy(seed, steps)
    return [record if i < begin else {**record, **change(record, i - begin)} for i, record in enumerate(records)]


def count_alarms(runs):
    """Rule -> how many of ``runs`` it warned in and how many it stopped, each run counted once at its worst."""
    counts = {rule.name: {"warn": 0, "stop": 0} for rule in RULES}
    for records in runs:
        for diagnosis in diagnose(records):
            if diagnosis.severity != "info":
                counts[diagnosis.rule][diagnosis.severity] += 1
    return counts
