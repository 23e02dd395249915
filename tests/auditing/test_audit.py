"""The audit finds what is wrong with a grader without being told, and passes one that is right."""

import io
import json
import random
from dataclasses import replace

import numpy as np
import pytest
from garden import HONEST, SPEC, Garden, _grader, random_answer
from rich.console import Console

from gradus.auditing import AuditSettings, run_audit
from gradus.auditing.plans.comparisons import check_alignment, check_exploits, check_separation
from gradus.auditing.plans.hygiene import check_hygiene
from gradus.auditing.plans.panel import main_tasks, plan_subject, roll_out_panel
from gradus.auditing.records import PanelEpisodes
from gradus.auditing.result import screen, verdict_of
from gradus.commands import load_environment
from gradus.core import AuditHints, ConfigError, Episode, Grader, Language, Reward, StopReason, Task
from gradus.rollouts import roll_out

SMALL = {"episodes": 40, "budget": 3000}


def _audit(spec, grader=None, **options):
    audited = grader if isinstance(grader, Grader) else spec.grader(grader)
    return run_audit(spec, audited, AuditSettings(**(SMALL | options)))


def _check(result, name):
    return next(check for check in result.checks if check.subject == name)


@pytest.fixture(scope="module")
def honest():
    return _audit(SPEC, "honest")


@pytest.fixture(scope="module")
def gullible():
    return _audit(SPEC, "gullible")


def test_an_honest_grader_passes_every_check(honest):
    assert {check.subject: check.status for check in honest.checks} == {
        "separation": "pass",
        "exploits": "pass",
        "alignment": "pass",
        "search": "pass",
        "one plan": "pass",
        "hygiene": "pass",
    }
    assert honest.verdict == "pass"
    assert honest.hack is None


def test_a_grader_that_pays_for_a_bad_start_fails_for_that_reason(gullible):
    assert gullible.verdict == "fail"
    assert _check(gullible, "separation").status == "fail"
    assert "sandbagger" in _check(gullible, "exploits").evidence
    assert _check(gullible, "alignment").status == "fail"


@pytest.mark.slow
def test_the_search_finds_the_bad_start_by_itself():
    blind = replace(SPEC, audit=replace(SPEC.audit, panel=replace(SPEC.audit.panel, exploits=())))
    found = _audit(blind, "gullible")
    hack = found.hack
    assert _check(found, "search").status == "fail"
    assert hack.reward.low > 0.03
    assert hack.true_reward.high < 0
    rewards = [turn.env_reward for turn in hack.episode.turns]
    assert "neglect" in hack.plan
    (reflex,) = roll_out(SPEC, SPEC.policy(hack.against.name), [hack.episode.task]).episodes
    assert sum(rewards[:4]) < sum(turn.env_reward for turn in reflex.turns[:4])
    assert hack.episode.reward.grader == "gullible"


def test_the_hack_is_judged_on_tasks_that_the_search_never_saw(gullible):
    training = {SPEC.train_task(i).seed for i in range(10_000)}
    assert gullible.hack.episode.task.seed not in training
    assert gullible.hack.episode.task.condition == "main"


def test_paying_for_form_alone_fails_though_nothing_is_a_hack_yet():
    found = _audit(SPEC, "format")
    failed = {check.subject for check in found.checks if check.status == "fail"}
    assert {"separation", "alignment"} <= failed


@pytest.mark.slow
def test_a_users_environment_without_a_panel_gets_one_for_nothing():
    own = replace(SPEC, audit=replace(SPEC.audit, panel=None))
    right, form = _audit(own, "honest", budget=4200), _audit(own, "format", budget=4200)
    assert {point.policy for point in right.points} >= {"random", "constant", "cycle", "teacher"}
    assert right.verdict == "pass"
    assert form.verdict == "fail"
    assert _audit(own, "gullible", budget=4200).verdict == "fail"


def test_an_audit_that_is_not_settled_names_what_would_settle_it(honest):
    """It said that the evidence says it, and no command."""
    separation, *others = honest.checks
    open_ = replace(honest, checks=[replace(separation, status="open"), *others])
    assert "the same audit with --episodes 160 would tell more" in open_.summary
    undeclared = replace(honest, checks=[*others, replace(separation, status="open", measured={})])
    assert (undeclared.more_episodes, honest.more_episodes) == (None, None)
    assert "the evidence says what would tell" in undeclared.summary
    rows = replace(open_, most=open_.episodes)
    assert (rows.more_episodes, "more rows would tell more" in rows.summary) == (None, True)


def test_few_rows_are_audited_on_all_that_are_kept_from_training():
    """Of 80 rows 9 were looked at, and the audit asked for more episodes than there were, again and again."""
    rows = [{"prompt": f"Write {n % 5 + 1} words about {n}.", "words": n % 5 + 1} for n in range(80)]
    spec = load_environment(rows, rewards=[lambda prompts, completions, **_: [float(len(c)) for c in completions]])
    tasks = main_tasks(spec, 40)
    asked = [spec.data_set.item(task.options["split"], task.seed).question for task in tasks]
    assert len(spec.tasks("in-distribution")) < len(asked) == len(set(asked)) < 40
    assert not {*asked} & {item.question for item in spec.data_set.splits["train"]}


def test_an_environment_that_declares_nothing_at_all_is_still_audited():
    bare = replace(
        SPEC, audit=AuditHints(random_answers=SPEC.audit.random_answers), teacher=None, language=Language(), policies={}
    )
    found = _audit(bare, "gullible", budget=4200)
    assert {point.policy for point in found.points} >= {"random", "constant", "cycle"}
    assert _check(found, "separation").status == "note"
    assert found.hack is not None
    assert found.verdict == "fail"


def test_the_same_audit_gives_the_same_bytes(gullible):
    again = _audit(SPEC, "gullible")
    assert json.dumps(again.to_json(), allow_nan=False) == json.dumps(gullible.to_json(), allow_nan=False)


def test_the_document_has_what_machines_read(gullible):
    document = gullible.to_json()
    assert document["verdict"] == "fail"
    assert [set(check) >= {"name", "status", "evidence", "measured"} for check in document["checks"]] == [True] * 6
    point = next(point for point in document["points"] if point["policy"] == "sandbagger")
    assert point["role"] == "exploit"
    assert set(point["reward"]) == {"mean", "low", "high", "n"}
    assert document["hack"]["true_reward"]["high"] < 0


def test_a_grader_that_always_raises_is_one_finding_with_its_error_and_nothing_else_is_advised():
    """To declare a true reward or a teacher would not have helped."""

    def broken(episode):
        raise KeyError("target")

    found = _audit(SPEC, Grader(name="broken", compute=broken, weights={}), episodes=10)
    failed = [check for check in found.checks if check.status == "fail"]
    assert [check.subject for check in failed] == ["grading"]
    assert "KeyError: 'target' (test_audit.py:" in failed[0].evidence
    assert found.summary.startswith("broken is broken: ")
    assert failed[0].evidence in found.summary
    assert {check.status for check in found.checks if check not in failed} == {"note", "pass"}
    assert all("declare" not in check.evidence for check in found.checks)


def test_two_searches_that_share_a_small_budget_are_said_to_do_so_with_what_both_need():
    """The half of the budget was named as what was given, and the need of one search as that of both."""
    spec = replace(SPEC, teacher=None, audit=AuditHints(random_answers=random_answer))
    said = r"a budget of (\d+) episodes .* got 101; raise --budget .*audit\.budget"
    with pytest.raises(ConfigError, match=said) as refused:
        _audit(spec, "honest", budget=101, episodes=4)
    needed = int(str(refused.value).split("budget of ")[1].split()[0])
    assert _check(_audit(spec, "honest", budget=needed, episodes=4), "search").status != "note"
    # What the time of a slow agent allows is no budget that somebody asked for.
    assert _check(_audit(replace(spec, foreign=True), "honest", budget=101, episodes=4), "search").status == "note"


@pytest.mark.parametrize("declared", [True, False])
def test_a_budget_of_nothing_is_an_audit_without_a_search(declared):
    spec = SPEC if declared else replace(SPEC, teacher=None, audit=AuditHints(random_answers=random_answer))
    found = _audit(spec, "honest", budget=0, episodes=10)
    assert (_check(found, "search").status, found.hack) == ("open", None)
    assert _check(found, "search").evidence == "nothing was searched: the budget is 0"
    assert found.verdict != "pass"
    assert not [point for point in found.points if point.policy.startswith("search")]


def test_tables_show_verdicts_and_intervals(gullible):
    out = io.StringIO()
    Console(file=out, width=300).print(*screen(gullible, whole=True))
    for shown in ("FAIL", "plant wellbeing", "sandbagger +0.", "[+0."):
        assert shown in out.getvalue()
    assert "search" in gullible.summary


def _hygiene(spec, grader="honest"):
    subject = plan_subject(spec, spec.grader(grader), seed=0)
    panel = roll_out_panel(subject, episodes=30)
    return check_hygiene(replace(subject, draw=random_answer), panel)


class _Talking(Garden):
    def _observe(self, reward):
        found = super()._observe(reward)
        return replace(found, text=f"{found.text} ({self._thirst:.5f})")


class _Breaking(Garden):
    def step(self, action):
        if self.state["step_count"] == 2:
            raise ValueError("the pipe burst")
        return super().step(action)


class _Global(Garden):
    def reset(self, *, seed=None, episode_id=None, **options):
        random.seed(seed)
        return super().reset(seed=seed, episode_id=episode_id, **options)

    def _observe(self, reward):
        shown = super()._observe(reward)
        return replace(shown, text=f"{shown.text} {random.random():.3f}")


class _Sharing(Garden):
    """Its steps are counted by the class."""

    steps = 0

    def reset(self, *, seed=None, episode_id=None, **options):
        type(self).steps = 0
        return super().reset(seed=seed, episode_id=episode_id, **options)

    def _observe(self, reward):
        type(self).steps += 1
        shown = super()._observe(reward)
        return replace(shown, text=f"{shown.text} step {self.steps}")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Garden(leak=True), "hidden thirst (as "),
        (lambda: Garden(leak=True), "is in the data of turn 0"),
        (_Talking, "is in the text"),
        (lambda: Garden(shaky=True), "rolled out twice differs at turn"),
        (_Breaking, "on seed 0 the environment raised ValueError: the pipe burst"),
        (_Global, "rolled out twice differs at turn"),
        (_Sharing, "rolled out twice differs at turn"),
    ],
)
def test_hygiene_finds_leaks_noise_and_an_environment_that_raises(make, told):
    found = _hygiene(replace(SPEC, make=make))
    assert found.status == "fail"
    assert told in found.evidence
    assert ("differs at turn" in found.evidence) == (
        make not in (_Talking, _Breaking) and "hidden" not in found.evidence
    )


def test_hygiene_of_a_foreign_agent_is_unresolved_where_that_of_an_environment_fails():
    """A run of an agent ended in a KeyError here."""
    found = _hygiene(replace(SPEC, make=_Breaking, foreign=True))
    assert (found.status, verdict_of([found])) == ("open", "unresolved")


def test_hygiene_finds_training_on_the_test_set():
    spec = replace(SPEC, train_task=lambda i: Task(environment="garden", seed=i - 100 if i > 100 else 10_000 + i))
    assert "training tasks are also in condition 'main'" in _hygiene(spec).evidence


def test_hygiene_finds_a_grade_outside_its_range_and_a_grader_that_fails():
    narrow = replace(HONEST, range=(0.0, 0.4))
    assert "outside the declared range [0, 0.4]" in _hygiene(replace(SPEC, graders={"honest": narrow})).evidence

    def broken(episodes):
        if any(e.task.seed == 2 for e in episodes):
            raise ZeroDivisionError("no days")
        return HONEST.compute(episodes)

    spec = replace(SPEC, graders={"honest": replace(HONEST, compute=broken)})
    assert "got no reward (ZeroDivisionError: no days (test_audit.py:" in _hygiene(spec).evidence


def test_a_hack_is_found_where_honest_reflexes_earn_nothing():
    """The true reward cannot fall below that of a reflex which has none; the reward is unearned all the same."""

    def exact(episode):
        return float(all(turn.action.startswith("7") for turn in episode.turns) and episode.task.seed < 0)

    def fed(episode):
        return {"g": sum(turn.action.endswith("feed") for turn in episode.turns) / len(episode.turns)}

    grader = _grader("g", "feeding", {"g": 1.0}, fed)
    spec = replace(SPEC, graders={"g": grader}, default_grader="g", true_reward=exact)
    panel = replace(SPEC.audit.panel, ladder=("random", "silent"), reflexes=("random",), exploits=())
    spec = replace(spec, audit=replace(SPEC.audit, panel=panel))
    found = _audit(replace(spec, teacher="silent"))
    assert _check(found, "search").status == "fail"
    assert found.hack.unearned.mean > 0.5


def _panel(policies, *, exploits=(), ladder=("random", "teacher")):
    """A panel with these rewards and true rewards (or components in place of rewards)."""

    def episode(seed, reward, aim):
        parts = {"value": 0.0, "components": reward} if isinstance(reward, dict) else {"value": reward}
        given = {"policy": "p", "turns": (), "stop": StopReason.TERMINATED, "metrics": {"true_reward": aim}}
        return Episode(task=Task(environment="e", seed=seed), reward=Reward(grader="g", **parts), **given)

    episodes = {name: [episode(seed, *each) for seed, each in enumerate(rows)] for name, rows in policies.items()}
    return PanelEpisodes(condition="c", episodes=episodes, ladder=ladder, reflexes=("random",), exploits=exploits)


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("n", "status"), [(40, "note"), (8, "note"), (4, "open")])
def test_a_ladder_that_earns_one_reward_for_one_true_reward_is_no_ladder(value, n, status):
    """Whether the one number is a share of right answers or not. It asked for a teacher where there was one, who does not do the task."""
    found = check_separation(_panel(dict.fromkeys(("random", "teacher"), [(value, value)] * n)))
    assert found.status == status
    assert ("declare a teacher that does better" in found.evidence) == (status == "note")


@pytest.mark.parametrize(
    ("lost", "gained", "status"),
    [
        (0.001, 0.0, "pass"),  # far below the least effect: it was a failure
        (0.001, 1.0, "fail"),  # skill that is not paid
        (0.2, 0.0, "fail"),
        (0.001, -1.0, "open"),
    ],
)
def test_separation_hangs_on_no_loss_below_the_least_effect(lost, gained, status):
    rng = np.random.default_rng(0)
    weak = rng.normal(0.9, 0.02, 60)
    strong = weak - lost + rng.normal(0, 0.0005, 60)
    rewards = {"random": (weak * 0, 0.0), "weak": (weak, 2.0), "strong": (strong, 2.0 + gained)}
    rows = {name: [(value, aim) for value in values] for name, (values, aim) in rewards.items()}
    found = check_separation(_panel(rows, ladder=tuple(rows)))
    assert found.status == status, found.evidence
    assert found.evidence.startswith("1 of 2 steps") or status != "pass", "it said each of the 2, and left one out"


@pytest.mark.parametrize(
    ("n", "gain", "noise", "aim", "status"),
    [
        (40, 0.2, 0.1, 0.0, "fail"),
        (40, 0.0, 0.1, 0.0, "pass"),
        (40, 0.2, 0.1, 1.0, "fail"),
        (10, 0.2, 2.0, 0.0, "open"),
        (10, 0.2, 2.0, 1.0, "pass"),  # of few tasks only those count that do not serve it
        (40, 0.2, 2.0, 0.0, "pass"),
    ],
)
def test_exploits_hang_on_gain_noise_and_the_true_reward(n, gain, noise, aim, status):
    wave = [gain + noise * (-1) ** i for i in range(n)]
    policies = {
        "random": [(0.0, 0.0)] * n,
        "teacher": [(1.0, 2.0)] * n,
        "trick": [(value, aim + 0.1 * (-1) ** i) for i, value in enumerate(wave)],
    }
    check = check_exploits(_panel(policies, exploits=("trick",)))
    assert check.status == status


@pytest.mark.parametrize(
    ("n", "within", "across", "status"),
    [
        *((40, 1, 1, "pass"), (10, 1, 1, "pass"), (10, 1, -1, "open"), (40, 1, -1, "fail")),
        *((10, -1, 1, "open"), (40, -1, 1, "fail")),  # 40 tasks were too few, however clear it was
    ],
)
def test_alignment_is_needed_over_policies_and_within_each(n, within, across, status):
    def rows(level):
        return [(2 * across * level + within * 0.01 * seed, level + 0.01 * seed) for seed in range(n)]

    found = check_alignment(_panel({"random": rows(0), "middle": rows(5), "teacher": rows(10)}), "aim")
    assert found.status == status, found.evidence


@pytest.mark.parametrize(("ladder", "status"), [(("silence", "random"), "open"), (("random", "expert"), "note")])
def test_policies_that_do_not_read_the_task_are_no_aim(ladder, status):
    """A game by others, with a ladder of silence and random answers alone, passed."""
    panel = _panel(dict.fromkeys(ladder, [(1.0, 1.0)] * 10), ladder=ladder)
    assert check_alignment(panel, "return").status == status
