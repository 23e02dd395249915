"""Every rule fires on its fault, with noise around it, and the set leaves healthy runs alone."""

import numpy as np
import pytest
from streams import count_alarms, healthy, spoiled

from gradus.evidence.health import RULES, Monitor, diagnose, status
from gradus.evidence.health.history import History


def _flat(i):
    """A reward that goes nowhere, with some noise."""
    return 0.6 + 0.01 * ((7919 * i) % 13 - 6) / 6


# So many at each step that a share has no noise.
MANY = {"episodes": 10**6, "groups": 10**6, "turn_limit_episodes": 0.0}

# rule -> (what goes wrong, the severity it must reach)
FAULTS = {
    "logp diff": (lambda r, i: {"logp_diff_max": 0.02 if i == 12 else r["logp_diff_max"]}, "stop"),
    "not a number": (lambda r, i: {"loss": float("nan") if i > 40 else r["loss"]}, "stop"),
    "no gradient": (lambda r, i: {"grad_norm": 0.0 if i % 2 else None, "trained_tokens": 0, "loss": None}, "stop"),
    "old weights": (lambda r, i: {"logp_diff_mean": 0.002 if i < 3 else 0.02}, "warn"),
    "gradient spike": (lambda r, i: {"grad_norm": 30.0 if i % 12 == 5 else r["grad_norm"]}, "stop"),
    "KL explosion": (lambda r, i: {"kl": r["kl"] * 1.35**i}, "stop"),
    "sampler mismatch": (
        lambda r, i: {"mismatch_fraction": min(0.8, 0.02 * i), "mismatch_kl": min(1.1, 0.03 * i)},
        "warn",
    ),
    "clip storm": (lambda r, i: {"clip_fraction": 0.3 + r["clip_fraction"]}, "warn"),
    "hack suspected": (
        lambda r, i: {
            "reward_mean": r["reward_mean"] + 0.004 * i,
            "true_reward_mean": r["true_reward_mean"] - 0.12 * i,
        },
        "stop",
    ),
    "zero-variance groups": (lambda r, i: {"zero_variance_groups": min(1.0, 0.85 + r["zero_variance_groups"])}, "stop"),
    "collapse to one answer": (
        lambda r, i: {
            "reward_std": r["reward_std"] * 0.93**i,
            "distinct_actions": r["distinct_actions"] * 0.93**i,
            "reward_mean": _flat(i),
        },
        "warn",
    ),
    "template collapse": (lambda r, i: {"answer_information": r["answer_information"] * 0.9**i}, "warn"),
    "format ignored": (lambda r, i: {"invalid_actions": 0.09 + r["invalid_actions"]}, "warn"),
    "calls not understood": (
        lambda r, i: {"metrics": {"calls": 4.0, "calls_malformed": 0.2, "calls_refused": 0.1, "calls_failed": 0.0}},
        "warn",
    ),
    "failing tools": (
        lambda r, i: {"metrics": {"calls": 4.0, "calls_malformed": 0.0, "calls_refused": 0.0, "calls_failed": 3.0}},
        "warn",
    ),
    "truncation": (lambda r, i: {"truncated_episodes": 0.2 + r["truncated_episodes"]}, "warn"),
    "failing episodes": (lambda r, i: {"failed_episodes": 0.6}, "stop"),
    "broken episodes": (lambda r, i: {"broken_episodes": 0.6}, "stop"),
    "missing rewards": (lambda r, i: {"ungraded_episodes": 0.6, "reward_error": "KeyError: 7 rows"}, "stop"),
    "length drift": (
        lambda r, i: {"action_tokens_mean": r["action_tokens_mean"] * (1 + 0.02 * i), "reward_mean": _flat(i)},
        "warn",
    ),
    "reward falls": (
        lambda r, i: {name: r[name] * max(0.1, 1 - 0.03 * i) for name in ("reward_mean", "true_reward_mean")},
        "warn",
    ),
    "component dominance": (lambda r, i: {"component_variance": {"wellbeing": 0.97, "belief": 0.03}}, "warn"),
}


def named(rule, records):
    """What one rule says of a run; None if it says nothing."""
    return next((each for each in diagnose(records) if each.rule == rule), None)


@pytest.mark.parametrize("rule", FAULTS)
def test_a_rule_fires_on_its_fault_and_after_it_began(rule):
    change, severity = FAULTS[rule]
    told = named(rule, spoiled(0, change))
    assert told.severity == severity
    assert told.first_step > 60
    assert told.remedy
    assert any(character.isdigit() for character in told.evidence)


@pytest.mark.parametrize(
    ("rule", "below", "above"),
    [
        ("format ignored", {"invalid_actions": 0.049}, {"invalid_actions": 0.051}),
        ("truncation", {"truncated_episodes": 0.099}, {"truncated_episodes": 0.101}),
        ("failing episodes", {"failed_episodes": 0.099}, {"failed_episodes": 0.101}),
        ("missing rewards", {"ungraded_episodes": 0.099}, {"ungraded_episodes": 0.101}),
        ("zero-variance groups", {"zero_variance_groups": 0.499}, {"zero_variance_groups": 0.501}),
        ("clip storm", {"clip_fraction": 0.199}, {"clip_fraction": 0.201}),
        # GSPO's clip of 3e-4 cut a third of the tokens of healthy runs, and was called a storm.
        ("clip storm", {"clip_fraction": 0.34, "ratio_max": 1.01}, {"clip_fraction": 0.34, "ratio_max": 1.2}),
        ("sampler mismatch", {"mismatch_fraction": 0.099}, {"mismatch_fraction": 0.101}),
        ("sampler mismatch", {"mismatch_kl": 0.199}, {"mismatch_kl": 0.201}),
        (
            "component dominance",
            {"component_variance": {"play": 0.899, "belief": 0.1}},
            {"component_variance": {"play": 0.901, "belief": 0.1}},
        ),
        (
            "calls not understood",
            {"metrics": {"calls": 2.0, "calls_malformed": 0.05, "calls_refused": 0.049}},
            {"metrics": {"calls": 2.0, "calls_malformed": 0.05, "calls_refused": 0.051}},
        ),
        (
            "failing tools",
            {"metrics": {"calls": 2.0, "calls_failed": 0.99}},
            {"metrics": {"calls": 2.0, "calls_failed": 1.01}},
        ),
    ],
)
def test_a_rule_begins_where_it_says(rule, below, above):
    for change, fires in ((below, False), (above, True)):
        records = spoiled(0, lambda r, i, change=change: MANY | {"truncated_episodes": 0.0} | change, steps=80)
        assert (named(rule, records) is not None) is fires


def of_small_steps(seed, rates, *, episodes=8, steps=150):
    """A healthy run whose shares come from few episodes a step: ``rates`` are the chances of one episode."""
    rng = np.random.default_rng(seed)
    return [
        {**record, "episodes": episodes, "turns_mean": 1.0}
        | {name: float(rng.binomial(episodes, rate) / episodes) for name, rate in rates.items()}
        for record in healthy(seed, steps)
    ]


@pytest.mark.parametrize("episodes", [8, 16])
def test_faults_that_are_rare_are_no_alarm_where_a_step_has_few_episodes(episodes):
    """Three answers of forty are 7.5 %: one run in three was told that its form was ignored."""
    rates = {"invalid_actions": 0.02, "truncated_episodes": 0.04, "failed_episodes": 0.03, "ungraded_episodes": 0.02}
    counted = count_alarms(of_small_steps(seed, rates, episodes=episodes) for seed in range(8))
    assert {rule: told for rule, told in counted.items() if (told["warn"] or told["stop"])} == {}


@pytest.mark.parametrize(("rate", "within"), [(0.5, 10), (0.2, 50)])
def test_faults_that_are_frequent_are_told_where_a_step_has_few_episodes(rate, within):
    for name, rule in (("invalid_actions", "format ignored"), ("failed_episodes", "failing episodes")):
        assert named(rule, of_small_steps(0, {name: rate})).first_step <= within


@pytest.mark.parametrize("turns", [1.0, 4.0])
def test_answers_that_a_budget_cut_are_told_as_cut_and_not_as_a_fault_of_the_form(turns):
    """Each cut answer is an invalid one, and more SFT does not lengthen a budget."""

    def cut(record, i):
        share = min(0.9, 0.05 * i)
        calls = {"calls": turns, "calls_malformed": share, "calls_refused": 0.0, "calls_failed": 0.0}
        return {"truncated_episodes": share, "invalid_actions": share / turns, "turns_mean": turns, "metrics": calls}

    diagnoses = diagnose(spoiled(0, cut))
    assert [each.rule for each in diagnoses] == ["truncation"]
    both = diagnose(spoiled(0, lambda r, i: cut(r, i) | {"invalid_actions": 0.95}))
    assert {each.rule for each in both} == {"truncation", "format ignored"}


def right_or_wrong(seed, chances, *, groups, size):
    """A healthy run, but for rewards of 0 and 1 with these chances, of tasks that differ."""
    rng = np.random.default_rng(seed)
    records = []
    for record, chance in zip(healthy(seed, len(chances)), chances, strict=True):
        rewards = rng.random((groups, size)) < rng.beta(3 * chance, 3 * (1 - chance), (groups, 1))
        figures = {"reward_mean": rewards.mean(), "reward_total_std": rewards.std(), "true_reward_mean": rewards.mean()}
        records.append({**record, **{name: float(figure) for name, figure in figures.items()}})
    return records


@pytest.mark.parametrize(("groups", "size"), [(2, 4), (8, 8)])
def test_a_reward_that_falls_is_told_though_steps_are_noisy(groups, size):
    steps = np.arange(110)
    for chances in (
        0.65 - 0.02 * np.clip(steps - 50, 0, 30),
        0.8 - 0.0125 * np.clip(steps, 0, 60),
        np.where(steps < 50, 0.7, 0.2),
    ):
        told = named("reward falls", right_or_wrong(0, chances, groups=groups, size=size))
        assert told.severity == "warn"
        assert "the reward fell from 0." in told.evidence


@pytest.mark.parametrize(("groups", "size"), [(2, 4), (8, 8)])
def test_a_reward_that_wanders_is_not_told_to_fall(groups, size):
    steps = np.arange(150)
    shapes = (np.full(150, 0.6), 0.6 + 0.06 * np.sin(steps / 20), 0.3 + 0.4 * (1 - np.exp(-steps / 12)))
    for seed in range(4):
        for chances in shapes:
            assert named("reward falls", right_or_wrong(seed, chances, groups=groups, size=size)) is None


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_reward_that_never_moves_is_stuck(seed):
    diagnoses = diagnose(healthy(seed, gain=0.0))
    assert "reward stuck" in [each.rule for each in diagnoses]
    assert status(diagnoses) == "warn"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("groups", [4, 8])
def test_a_healthy_run_of_right_and_wrong_answers_is_healthy(seed, groups):
    """Answers that are right or wrong carry nearly all variance, and a step of few groups is noisy: both were warned of in most runs."""
    rng = np.random.default_rng(seed)
    records = []
    for record, right in zip(healthy(seed, 200), np.linspace(0.37, 0.66, 200), strict=True):
        chances = 1 / (1 + np.exp(-rng.normal(np.log(right / (1 - right)) * 1.4, 1.5, groups)))
        share = float(rng.binomial(8, chances).mean() / 8)
        shares = {"correct": 0.97, "format": 0.03}
        figures = {
            "reward_mean": 2 * share + 0.5,
            "true_reward_mean": share,
            "reward_total_std": 1.0,
            "reward_std": 0.7,
        }
        parts = {"components": {"correct": share, "format": 0.99}, "component_variance": shares}
        records.append({**record, **figures, **parts, "zero_variance_groups": 0.2})
    assert {each.rule for each in diagnose(records)} & {"component dominance", "reward stuck"} == set()


def test_overfitting_of_sft():
    losses = [2.0, 1.2, 0.9, 0.8, 0.85, 0.9, 0.95]
    records = [{"kind": "sft", "step": 10 * i, "loss": 2 - 0.2 * i, "validation_loss": v} for i, v in enumerate(losses)]
    diagnoses = diagnose(records)
    assert [each.rule for each in diagnoses] == ["overfitting"]
    assert diagnose(records[:5]) == []


def test_a_loss_near_zero_is_explained_and_harmless():
    told = named("loss near zero", spoiled(0, lambda r, i: {"loss": r["loss"] / 1000}))
    assert told.severity == "info"
    assert status([told]) == "healthy"


def test_a_broken_law_stops_and_names_its_place():
    alert = {"kind": "alert", "step": 3, "rule": "law credit", "severity": "stop", "evidence": "group 1, episode 2"}
    (broken,) = diagnose([{**alert, "rule": "reward stuck"}, alert])
    assert (broken.rule, broken.severity, broken.ongoing) == ("law broken", "stop", True)
    assert "group 1, episode 2" in broken.evidence


# These have their tests in test_monitor.py and test_evaluation_rules.py.
OF_THE_MONITOR = (
    *("worse on held-out tasks", "one short answer"),
    *("worse in the evaluation", "no gain by GRPO", "far below its teacher"),
)


def test_every_rule_has_a_test():
    covered = {*FAULTS, "reward stuck", "overfitting", "loss near zero", "slow training", "law broken", *OF_THE_MONITOR}
    assert covered == {rule.name for rule in RULES}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_agreement_on_right_answers_is_no_collapse(seed):
    """Sums as they are learned: the share right, the spread within groups and the distinct answers move together."""
    records = healthy(seed, 160)
    for i, (record, noise) in enumerate(zip(records, healthy(seed, 160, gain=0.0), strict=True)):
        right = 0.29 + 0.67 * (1 - np.exp(-i / 25))
        record["reward_mean"] = 1 + 2 * right + 2 * (noise["reward_mean"] - 0.4)
        record["reward_std"] = 1.9 * np.sqrt(right * (1 - right))
        record["distinct_actions"] = 0.125 + 0.46 * (1 - right)
    assert records[-1]["reward_std"] < 0.5 * records[0]["reward_std"]
    assert records[-1]["distinct_actions"] < 0.5 * records[0]["distinct_actions"]
    assert named("collapse to one answer", records) is None


def test_dead_groups_of_solved_tasks_do_not_stop():
    def solved(record, i):
        return {"zero_variance_groups": 0.95, "reward_mean": 0.99, "reward_total_std": 0.01}

    told = named("zero-variance groups", spoiled(0, solved))
    assert told.severity == "warn"
    assert "solved" in told.evidence


def test_a_reward_that_is_the_same_from_the_start_may_be_broken_or_earned_in_full():
    figures = {"zero_variance_groups": 1.0, "reward_mean": 1.0, "reward_std": 0.0, "reward_total_std": 0.0}
    told = named("zero-variance groups", [{**record, **figures} for record in healthy(0)])
    assert told.severity == "stop"
    assert "every answer earned 1.000" in told.evidence


def test_a_stage_is_held_to_its_own_beginning():
    # A format stage in which nearly all is right, then sums that are learned: little spread at first, then much, then little.
    records = healthy(0)
    for i, record in enumerate(records):
        record["stage"] = "form" if i < 10 else "sums"
        if i < 10:
            record.update(reward_mean=2.0, reward_total_std=0.05, zero_variance_groups=0.9)
        elif i >= 60:
            record.update(reward_mean=2.9, reward_total_std=0.2, zero_variance_groups=0.9)
        else:
            record.update(reward_mean=1.5 + i / 50, reward_total_std=1.0, zero_variance_groups=0.1)
    history = History(records)
    assert [len(history.before(count)) for count in (0, 1, 10, 11, 60)] == [0, 1, 10, 1, 50]
    early = [each for each in Monitor()(records[:10]) if each["rule"] == "zero-variance groups"]
    assert [each["severity"] for each in early] == ["warn"]  # a short stage ends by itself
    late = [each for each in Monitor()(records) if each["rule"] == "zero-variance groups"]
    assert [each["severity"] for each in late] == ["warn"]
    assert "solved" in late[0]["evidence"]


@pytest.mark.parametrize(("spikes", "severity"), [((9,), "warn"), ((5, 15, 25), "stop")])
def test_one_spike_is_a_warning_and_three_ask_to_stop(spikes, severity):
    spike = named("gradient spike", spoiled(3, lambda r, i: {"grad_norm": 40.0 if i in spikes else r["grad_norm"]}))
    assert (spike.severity, spike.steps, spike.first_step) == (severity, len(spikes), 61 + spikes[0])


def test_kl_that_grows_tenfold_is_seen_before_it_is_large():
    def growing(record, i):
        return {"kl": 0.01 * 1.13**i if i < 24 else 0.19}

    told = named("KL explosion", spoiled(0, growing))
    assert told.severity == "warn"
    assert "in 20 steps" in told.evidence


def test_a_reward_and_a_yardstick_that_both_rise_are_no_hack():
    def rising(record, i):
        return {"reward_mean": record["reward_mean"] + 0.01 * i, "true_reward_mean": 9 + 0.1 * i}

    assert named("hack suspected", spoiled(0, rising)) is None


def test_healthy_runs_are_never_stopped_and_rarely_warned():
    counted = count_alarms(healthy(seed) for seed in range(100, 112))
    assert sum(each.get("stop", 0) for each in counted.values()) == 0
    assert sum(each.get("warn", 0) for each in counted.values()) <= 1


def validations(rise: float, fall: float) -> list[dict[str, object]]:
    """Three validations of 32 tasks that differ far more than any of them moves, sampled and greedy."""
    rng = np.random.default_rng(0)
    rewards, aims = rng.normal(0.6, 0.3, 32), rng.normal(11, 5, 32)
    return [
        {
            "kind": "validation",
            "step": step,
            "decoding": decoding,
            "condition": "train",
            "rewards": [*(rewards + step / 20 * rise + rng.normal(0, 0.02, 32)), None],
            "true_rewards": [*(aims + step / 20 * fall + rng.normal(0, 0.4, 32)), 3.0],
        }
        for step in (0, 10, 20)
        for decoding in ("sampled", "greedy")
    ]


def test_a_hack_shows_task_by_task_where_steps_are_too_noisy_to_show_it():
    told = named("hack suspected", validations(0.06, -1.5))
    assert told.severity == "stop"
    assert "on the same 32 tasks" in told.evidence
    live = Monitor()
    told = [live(validations(0.06, -1.5)[:count]) for count in (2, 6)]
    assert [len(each) for each in told] == [0, 1]
    step = {"kind": "step", "step": 21, "reward_mean": 0.6}
    assert "hack suspected" in {each["rule"] for each in live([step])}, "it goes on holding between validations"


def test_validations_that_rise_together_or_hardly_move_are_no_hack():
    for rise, fall in ((0.06, 1.5), (0.0, -1.5), (0.06, 0.0)):
        assert named("hack suspected", validations(rise, fall)) is None


def timed(rates, *, tokens=5000, sampled=1000, seconds=None):
    """Steps of GRPO that process so many tokens a second, ``rates`` one for each."""
    return [
        {
            "kind": "step",
            "step": i + 1,
            "tokens": tokens,
            "action_tokens": sampled,
            "seconds": {"policy": 0.6 * total, "reward": 0.01 * total, "train": 0.39 * total, "total": total},
        }
        for i, total in enumerate(seconds if seconds is not None else (tokens / rate for rate in rates))
    ]


def test_training_that_became_slow_is_told_with_the_part_that_is_slow():
    rng = np.random.default_rng(0)
    rates = [1000 * rng.uniform(0.7, 1.3) for _ in range(40)] + [200 * rng.uniform(0.7, 1.3) for _ in range(20)]
    told = named("slow training", timed(rates))
    assert (told.severity, told.ongoing) == ("warn", True)
    assert 40 < told.first_step <= 45, "a minute of slow steps"
    assert "policy" in told.evidence
    assert "train" in told.evidence
    assert "reward" not in told.evidence, "a hundredth of the time"
    assert 800 < float(told.evidence.split(" steps, ")[1].split(" in ")[0].replace(",", "")) < 1200
    judged = timed([1000.0] * 40) + [
        {**each, "step": 41 + i, "seconds": {"policy": 3.0, "reward": 20.0, "train": 2.0, "total": 25.0}}
        for i, each in enumerate(timed([1000.0] * 10))
    ]
    evidence = named("slow training", judged).evidence
    assert "reward 400.0 x" in evidence
    assert "policy 1.0 x" in evidence
    assert {each["rule"] for each in Monitor()(timed(rates))} == {"slow training"}


QUICK = {
    "a first step that compiles, and warms up": timed([5, 40, 300] + [1000] * 60),
    "a burst of other work": timed([1000] * 40 + [150] * 1 + [1000] * 40),
    "one step that stands still": timed(None, seconds=[5.0] * 40 + [900.0] + [5.0] * 40),
    "a run that goes on, and warms up again": timed([5, 1000] + [1000] * 40 + [5, 300] + [1000] * 30),
    "noise of the size that is seen": timed(1000 * np.random.default_rng(1).lognormal(0, 0.5, 200)),
    "answers twenty times as long": timed([1000] * 40)
    + [{**each, "step": 41 + i} for i, each in enumerate(timed([200] * 40, tokens=24000, sampled=20000))],
    "answers that shrink": timed([200] * 40, tokens=24000, sampled=20000)
    + [{**each, "step": 41 + i} for i, each in enumerate(timed([1000] * 90))],
    "too short to tell": timed([1000] * 5 + [100] * 3),
    "figures that are missing": [
        {**each, "tokens": None, "action_tokens": None} for each in timed([9000] * 90 + [90] * 9)
    ],
}


@pytest.mark.parametrize("what", QUICK)
def test_what_is_no_slow_training(what):
    assert named("slow training", QUICK[what]) is None
