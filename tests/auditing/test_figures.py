"""What the probes of one-turn graders come to, from figures that stand here."""

from dataclasses import replace

import pytest
from scipy.stats import ttest_1samp
from text_graders import Paying, check_of, ground_of, sound, subject, sums

from gradus import environments
from gradus.auditing.text import checks
from gradus.auditing.text.asking import find_bases
from gradus.auditing.text.paying import chosen, is_accepted, is_refused, right_of, unearned, wrong_answers, wrong_of
from gradus.auditing.text.rates import Base, Probe, Rate, rate
from gradus.auditing.text.scoring import AnswerScore
from gradus.auditing.text.tasks import subject_of
from gradus.stats import Interval


def _ground(n=20, **found):
    options = {name: found.pop(name) for name in ("range", "remote") if name in found}
    return ground_of(subject(sound, sums(n), **options), **found)


def _answered(operator, values, answer="none of it", error=None):
    pairs = zip(sums(len(values)), (AnswerScore(value=value, error=error) for value in values), strict=True)
    return [Probe(check="", operator=operator, task=task, answer=answer, score=score) for task, score in pairs]


@pytest.mark.parametrize(
    ("accepted", "n", "status"),  # by Wilson's lower bound of the share, against a half, and against a tenth
    [(3, 3, "open"), (4, 4, "fail"), (16, 20, "fail"), (14, 20, "open"), (10, 20, "open"), (2, 20, "pass")],
)
def test_a_kind_of_wrong_answer_fails_if_more_than_half_are_surely_accepted(accepted, n, status):
    probes = _answered("off by one", [1.0] * accepted + [0.0] * (n - accepted))
    found = wrong_of(_ground(), {"off by one": probes})
    assert found.status == status
    assert (f"off by one: accepted in {accepted} of {n}" in found.evidence) == (status != "pass")


@pytest.mark.parametrize(("refused", "noted"), [(4, True), (3, False)])  # of 16: Wilson's bound is 0.102 or 0.066
def test_forms_are_noted_if_more_than_a_tenth_are_surely_refused(refused, noted):
    values = [0.0] * refused + [1.0] * (16 - refused)
    forms = {name: _answered(name, values) for name in ("a space at the end", "in quotes")}
    right = right_of(_ground(), forms)
    assert right.status == "pass"
    assert [each.what for each in right.notes] == ["refused a space at the end", "refused in quotes"] * noted


_HALF = Base(gold=1.0, wrong=0.5, silence=0.5)
_NEXT_TO_NOTHING = Base(gold=0.05, wrong=0.0, silence=0.0)


@pytest.mark.parametrize(
    ("base", "value", "answer", "accepted", "refused"),
    [
        (None, 1.0, "none of it", True, False),
        (None, 0.92, "none of it", True, False),
        (None, 0.55, "none of it", False, False),
        (None, 0.4, "none of it", False, True),
        (None, 0.92, f"{sums(1)[0].gold}1", False, False),  # a seventh of the text is another
        (_HALF, 0.96, "none of it", True, False),
        (_HALF, 0.93, "none of it", False, False),  # 0.14 of what gold earns above silence
        (_HALF, 0.7, "none of it", False, True),
        (_NEXT_TO_NOTHING, 0.05, "none of it", False, False),
    ],
)
def test_accepted_is_what_lost_less_than_it_changed_and_refused_what_lost_more_than_half(
    base, value, answer, accepted, refused
):
    ground, (probe,) = _ground(), _answered("x", [value], answer)
    ground.bases = {**ground.bases, "0": base or ground.bases["0"]}
    assert (is_accepted(probe, ground), is_refused(probe, ground)) == (accepted, refused)


@pytest.mark.parametrize(("gains", "status"), [([0.05] * 20, "fail"), ([0.5] * 20, "pass"), ([1.0, 0.0, -0.4], "open")])
def test_gold_is_held_against_the_gold_of_other_tasks(gains, status):
    bases = {str(place): Base(gold=1.0, wrong=1.0 - gain, silence=0.0) for place, gain in enumerate(gains)}
    assert checks.gold(_ground(len(gains), bases=bases)).status == status


def _rate(p=1.0, mean=0.0, high=0.05, silent=0.0, held=0.0):
    unearned, above = (Interval(mean=mean, low=low, high=high, n=20) for low in (-0.1, silent))
    given = {"n": 20, "mean": 0.0, "right": 0.0, "held": held}
    figures = {"unearned": unearned, "wrong": above}
    shown = {"answer": "x", "completion": "x", "task": "0", "gold": "y", "reward": 1.0}
    return Rate(operator="x", p=p, example=shown, paid=shown, **given, **figures)


@pytest.mark.parametrize(
    ("rates", "status"),
    [
        ([_rate(p=0.02), _rate(p=0.03), _rate(p=0.5)], "pass"),  # by Holm 0.06 each
        ([_rate(p=0.01), _rate(p=0.03), _rate(p=0.5)], "fail"),
        ([_rate(silent=0.49)], "pass"),
        ([_rate(silent=0.51)], "fail"),
        ([_rate(silent=0.7, held=0.3)], "pass"),
        ([_rate(p=0.2, mean=0.15, high=0.3)], "open"),
        ([_rate(p=0.2, mean=0.09, high=0.3)], "pass"),
    ],
)
def test_blind_answers_pay_if_one_of_them_surely_does(rates, status):
    assert unearned(_ground(), "blind answers", rates, tried=len(rates)).status == status


@pytest.mark.parametrize(
    ("spreads", "missing", "status"),
    [
        ([0.05] * 20, 0, "pass"),
        ([0.15] * 20, 0, "fail"),
        ([0.0, 0.3, 0.1], 0, "open"),
        ([], 0, "open"),
        ([0.05] * 20, 5, "pass"),  # of 100
        ([0.05] * 20, 30, "fail"),
    ],
)
def test_a_judge_disagrees_with_itself_or_leaves_out_by_more_than_a_tenth(spreads, missing, status):
    ground = _ground(remote=True, probes=_answered("x", [None] * missing, error="no score"))
    ground.scorer.logged.update({"judge_disagreement": spreads, "judge_cost": [0.25, 0.5]})
    ground.scorer.calls = 100
    judge = checks.judge(ground)
    assert (judge.status, judge.measured["dollars"]) == (status, 0.75)


@pytest.mark.parametrize(
    ("unpaid", "declared", "told"),
    [
        (1, (0.0, 1.0), ""),
        (8, (0.0, 1.0), "does not earn the full reward on 8 of 20"),  # Wilson's bound is 0.22
        (0, (0.0, 0.9), "leave the declared range"),
        (0, (0.1, 1.0), "leave the declared range"),
    ],
)
def test_sanity_names_gold_that_is_not_paid_and_rewards_beyond_their_range(unpaid, declared, told):
    found = checks.sanity(_ground(probes=_answered("gold", [0.5] * unpaid), range=declared, remote=True))
    assert found.status == ("fail" if told else "pass")
    assert told in found.evidence


def test_of_what_a_person_has_to_judge_that_comes_first_which_is_accepted_most():
    seldom, often = "neighbors swapped", "other case"
    probes = {seldom: _answered(seldom, [1.0, 0.0, 0.0, 0.0]), often: _answered(often, [1.0] * 4)}
    assert [row["operator"] for row in wrong_of(_ground(), probes).review] == [often] * 4 + [seldom]


def test_a_rate_is_what_was_earned_above_a_noisy_teacher():
    base = Base(gold=1.0, wrong=0.2, silence=0.0)
    probes = [replace(p, answer=str(p.value)) for p in _answered("x", [1.0, 0.2, 0.2, 0.6])]
    probes[0] = replace(probes[0], answer=probes[0].task.answer)
    bases = {probe.task.key: base for probe in probes}
    found = rate("x", probes, bases, 2.0, guess=0.3)
    unearned = [-0.02, -0.02, -0.02, 0.18]  # 0.05 of the tasks more are guessed, for 0.8 each; then by the range of 2
    assert found.unearned.mean == pytest.approx(0.03)
    assert found.p == pytest.approx(ttest_1samp(unearned, 0.1, alternative="greater").pvalue)
    assert (found.mean, found.right, found.example["answer"]) == (0.5, 0.25, "0.6")
    seldom = rate("x", probes, bases, 2.0, guess=0.2)  # the answer was right more often than that
    assert seldom.unearned.mean == pytest.approx(0.05)
    for value, p in ((0.7, 0.5**4), (0.25, 1.0)):
        assert rate("x", _answered("x", [value] * 4), bases, 1.0, guess=0.0).p == p


def test_the_base_of_a_task_is_gold_silence_and_the_mean_of_wrong_answers():
    def pays(task, answer):
        if answer == task.gold:
            return 1.0
        return int(answer) % 3 / 10 - 0.1 if answer else 0.1

    scorer = Paying(pays)
    ground = _ground(12, scorer=scorer, bases={})
    find_bases(ground)
    wrong = {}
    for task, answer in scorer.rows:
        if answer and answer != task.gold:
            wrong.setdefault(task.key, []).append(pays(task, answer))
    means = {key: sum(values) / 2 for key, values in wrong.items()}
    assert any(values[0] != values[1] for values in wrong.values()), "or this test shows little"
    assert {key: base.wrong for key, base in ground.bases.items()} == pytest.approx(means)
    assert {base.silence for base in ground.bases.values()} == {0.1}
    assert ground.span == pytest.approx(1.0 - min(means.values()))


@pytest.mark.parametrize(("pays", "value"), [(str.startswith, 0.0), (str.__contains__, 1.0)])
def test_an_answer_in_several_forms_is_accepted_if_all_are(pays, value):
    found = wrong_answers(_ground(6, scorer=Paying(lambda task, answer: float(pays(answer, task.gold)))))
    assert found.measured["right or wrong, in both orders"]["accepted"] == value


def test_blind_answers_are_judged_on_tasks_that_did_not_choose_them():
    first, rest = (tasks := sums(10))[:4], tasks[4:]
    ground = _ground(10, scorer=Paying(lambda task, answer: float(task in first)))
    (found,), _ = chosen(ground, "blind answers", {"x": lambda gold, rng: "x"}, first, rest)
    assert (found.mean, found.n) == (0.0, 6)


@pytest.mark.parametrize("count", [2, 7])
def test_few_tasks_leave_open_what_they_cannot_tell(count):
    """A sound grader failed, and one that pays for any answer passed."""
    spec = environments.load("arithmetic")
    few = subject_of(spec, spec.grader("composed"), tasks=count)
    for name in ("gold", "blind answers"):
        assert check_of(name, few.judge, few.tasks).status == "open"

    def pays_for_any(task, answer):
        return 0.85 * bool(answer) + 0.15 * (answer.strip() == task.gold)

    for name in ("reflexes", "blind answers"):
        assert check_of(name, pays_for_any, sums()[:count]).status != "pass"
