"""A stranger's first rows are few: they are split, audited, trained on and evaluated."""

import pytest

import gradus
from gradus.core import ConfigError
from gradus.environments.verifiable.items import Item, share_of, split_items

SIZES = (1, 2, 3, 5, 12, 20, 40)
LABELS = {"money": "spam", "lunch": "ham", "elections": "news"}
CITIES = {"Aare": "Bern", "Bode": "Thale", "Cam": "Cambridge", "Dee": "Chester", "Elbe": "Dresden"}


def rows_of(kind: str, size: int) -> list[dict[str, str]]:
    rows = []
    for number in range(size):
        word, label = list(LABELS.items())[number % len(LABELS)]
        river, city = list(CITIES.items())[number % len(CITIES)]
        question, answer = {
            "sums": (f"What is {number} plus {number + 3}?", str(2 * number + 3)),
            "labels": (f"message {number} about {word}", label),
            "words": (f"Which city lies at the {river}, bridge {number}?", f"The city of {city}, quarter {number}"),
        }[kind]
        rows.append({"question": question, "answer": answer})
    return rows


def right(completions, answer, **columns):
    return [float(text.strip() == gold) for text, gold in zip(completions, answer, strict=True)]


def splits_of(rows):
    return split_items("rows", [Item(**row) for row in rows], system_prompt="").splits


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["sums", "labels", "words"])
def test_of_two_questions_one_is_held_out_and_of_a_small_set_a_quarter(kind, size):
    rows = rows_of(kind, size)
    splits = splits_of(rows)
    assert all(splits.values())
    held_out = {item.question for item in splits["held-out"]}
    trained = {item.question for item in splits["train"]}
    by_hash = sorted((row["question"] for row in rows), key=share_of)
    usual = {question for question in by_hash if share_of(question) < 0.25}
    if size == 1:
        assert held_out == trained
    else:
        assert not held_out & trained
        assert held_out == (usual or {by_hash[0]})


def test_a_question_that_comes_twice_is_in_one_split():
    splits = splits_of([{"question": "one?", "answer": "1"}] * 3 + [{"question": "two?", "answer": "2"}] * 3)
    assert {len(splits["held-out"]), len(splits["train"])} == {3}


def test_all_questions_in_the_held_out_tenth_leave_one_to_train_on():
    low = [f"question {n}" for n in range(200) if share_of(f"question {n}") < 0.25][:3]
    splits = splits_of([{"question": question, "answer": "1"} for question in low])
    assert [item.question for item in splits["train"]] == [max(low, key=share_of)]


def each_of(*fast):
    """Every kind at every size; all but those named are for `make prove`."""
    both = [(kind, size) for kind in ("sums", "labels", "words") for size in SIZES]
    return [pytest.param(*each, marks=() if each in fast else pytest.mark.slow) for each in both]


@pytest.mark.parametrize(("kind", "size"), each_of(("sums", 1), ("labels", 2), ("words", 5)))
def test_few_rows_are_audited(kind, size):
    found = gradus.audit(right, rows_of(kind, size))
    assert found.verdict == ("unresolved" if size < 8 else "pass")
    if size < 8:
        assert any("too few to tell" in check.evidence for check in found.result.checks)


@pytest.mark.parametrize(("kind", "size"), [each for each in each_of(("labels", 2)) if each.values[1] > 1])
def test_few_rows_train_and_are_evaluated_and_are_too_few_to_tell(kind, size, tmp_path, capsys):
    rows = rows_of(kind, size)
    run = gradus.train(None, rows, rewards=[right], quick=True, out=tmp_path / "run")
    assert "too few" in " ".join(capsys.readouterr().out.split())
    scores = gradus.evaluate([run, "gold"], env=rows, rewards=[right]).to_json()
    assert scores["conditions"]["held-out"]["policies"]["gold"]["reward"]["mean"] == 1.0


def test_a_single_row_is_not_trained_on(tmp_path):
    """It was noticed by the teacher, behind the audit."""
    with pytest.raises(ConfigError, match=r"no task left to train on.*give more rows"):
        gradus.train(None, rows_of("sums", 1), rewards=[right], quick=True, out=tmp_path / "run")
    assert not (tmp_path / "run" / "manifest.json").exists()
