"""The table of what is equal and what is not. What cannot be read is not equal."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.rewards import correctness, gold_answer, read_answer, read_number, same_answer

DATA = Path(__file__).parents[1] / "data"

# A gold answer, answers that state it, and answers that do not.
EQUAL: list[tuple[str, list[str], list[str]]] = [
    (
        "18",
        [
            "18", "18.0", "**18**.", "`18`", "$18", "18 dollars", "18 USD", "18km", "18 m²", "18 per hour", "$18$", r"\boxed{18}",
            r"18\text{ km}", "18 eggs", "The answer is 18.", "12 + 6 = 18", "x = 18", "1.8e1", "18%", "１８", "54/3 = 18",
        ],
        [
            "19", "-18", "18.01", "18 or 19", "17, 18", "18-20", "not 18", "18 is wrong", "at least 18", "≥ 18", "±18", "12 + 6", "36/2",
            "abc18", "18:30", "18k", "18 million", "two dozen", "eighteen", "18x", "18 x", "18!", "18 pi", "18 squared", "half of 36",
            "x ≠ 18", "x = 17, y = 18", "x = 18 or x = 19", "18 and a half", "log(18)", "-(18)", "", "9" * 400, r"\sqrt{324}",
        ],
    ),
    ("1234", ["1,234", "$1,234.00", "1{,}234", r"1\,234"], ["12,34", "1.234", "1 23 4"]),
    ("-5", ["-$5", r"-\$5", "$-5", "− 5", "-5.0"], ["5", "--5", "negative five"]),
    ("0.5", ["1/2", "2/4", ".5", "50%", r"\frac{1}{2}", r"$\dfrac12$", r"\frac{-1}{-2}", "0.5000001"], ["0.51", "5", "1/0", "1/2/3"]),
    ("50%", ["50%", "50 percent", "50", "0.5", "1/2"], ["0.5%", "5", "51%"]),
    ("50", ["50%"], ["0.5"]),
    ("1/3", ["0.333333", "0.33333333", "2/6"], ["0.3", "0.33", "3"]),
    ("270/7", [r"\frac{270}7", r"\frac{270}{7}"], ["38"]),
    ("10000000", ["1e7", "10,000,000"], ["10000001"]),
    ("6.626e-34", ["6.626 x 10^-34", r"6.626 \times 10^{-34}"], ["0", "1e-7"]),
    ("0.0", ["0", "-0"], ["0.0000001"]),
    # A unit of the gold answer: in small letters it may be left out, another one is another amount.
    ("14 km", ["14 km", "14.0 km", "14", "14km", r"14\text{ km}"], ["14 kg", "14 m", "14000 m", "14 miles", "15"]),
    ("$5", ["$5.00", "5 dollars", "5", r"\$5"], ["5 cents", "€5", "500 cents"]),
    ("5 January", ["5 january"], ["5", "5 February", "5 pm"]),
    ("12 Angry Men", ["12 angry men"], ["12", "12 Monkeys"]),
    (r"90^\circ", ["90", "90°", r"90^\circ"], ["9"]),
    # Math-Verify decides.
    (r"\sqrt{2}/2", [r"\frac{\sqrt{2}}{2}", r"it is $\frac{\sqrt{2}}{2}$"], [r"\sqrt{2}", r"$\sqrt{2}/2$ is wrong"]),
    ("x(x + 2)", ["x^2 + 2x", "x**2+2*x"], ["x^2 + 2", "x", "2x"]),
    ("x-y", ["-y+x", "$x-y$", "x - y"], ["y-x", "x"]),
    ("2x", ["2x", "x*2"], ["2X", "2", "3x", "2y"]),
    ("y'", ["y'", "y’"], ["y"]),
    ("2π", [r"2\pi"], ["2", "6.28"]),
    ("5!", ["120"], ["5"]),
    ("[0, 1)", ["[0,1)"], ["(0,1]", "[0,1]", "0"]),
    ("(1, 2)", ["(1,2)"], ["[1, 2]", "(2, 1)", "1"]),
    ("131, 225", ["225, 131", "131,225"], ["131", "131, 226"]),
    (r"\begin{pmatrix} -1 \\ 2 \end{pmatrix}", [r"\begin{pmatrix}-1\\2\end{pmatrix}"], [r"\begin{pmatrix} 2 \\ -1 \end{pmatrix}"]),
    (r"\text{Evelyn}", ["Evelyn"], ["Carla"]),
    ("n", ["$n$"], ["n!", "m"]),
    (r"\pm 2", ["-2, 2", r"$\pm 2$"], ["2"]),
    ("4 - 2i", ["4–2i"], ["4 + 2i"]),
    # JSON, choices, words.
    ('{"a": [1, 2]}', ['{"a":[1,2]}', '```json\n{"a": [1, 2]}\n```'], ['{"a": [2, 1]}', '{"a": 1}', "1"]),
    ('["b", "a"]', ['["b","a"]'], ['["a", "b"]', "b, a"]),
    ("B", ["B", "(B)", "b", "B.", "$B$", "Option B", "The answer is (B).", "Answer: B", "B. Paris", "B) Paris"],
     ["A", "A. Rome", "A or B", "B. Paris or A. Rome", "The answer is not B", "A cat sat"]),
    ("Paris", ["paris", "the Paris", "Paris.", "“Paris”", "*Paris*"], ["London", "not Paris", ""]),
    ("yes", ["Yes", "YES."], ["no", "!"]),
    ("Valentine's Day", ["Valentine’s Day"], ["Valentine's"]),
    ("red, green", ["red,green"], ["green, red"]),
    ("2024-01-05", ["2024-01-05"], ["2018", "2024-01-06"]),
    ("1/5/2024", ["1/5/2024"], ["1/10120"]),
    ("≥ 5", ["≥ 5"], ["≤ 5", "5"]),
    ("7 12 33", ["7 12 33"], ["12 7 33", "2772"]),
    ("H2O", ["h2o"], ["OH2", "2"]),
    ("0x1F", ["0x1f"], ["0", "31"]),
]  # fmt: skip
JUDGED = [
    (text, gold, right)
    for gold, *both in EQUAL
    for right, texts in zip((True, False), both, strict=True)
    for text in texts
]


@pytest.mark.parametrize(("text", "gold", "right"), JUDGED)
def test_what_is_equal(text: str, gold: str, right: bool) -> None:
    assert same_answer(text, gold) is right


COMPLETIONS = [
    ("<reasoning>9 * 2</reasoning><answer>18</answer>", 1.0, "as asked"),
    ("<reasoning>it is 18</reasoning><answer>17</answer>", 0.0, "right in the reasoning only"),
    ("<reasoning>it is <answer>18</answer></reasoning>", 0.0, "marked in the reasoning only"),
    ("It is 18.", 0.0, "not marked"),
    ("<answer>18</answer><answer>19</answer>", 0.0, "two marked answers"),
    ("<answer>18</answer> or rather <answer>18.0</answer>", 1.0, "the same one twice"),
    ("<answer>18", 0.0, "cut before its end"),
    ("<answer> </answer>", 0.0, "empty"),
    (r"so we get \boxed{18}", 1.0, "boxed instead of tags"),
    ("9 * 2 = 18\n#### 18", 1.0, "GSM8K's own mark"),
    ("#### Step 1: double it\n9 * 2\n#### 18", 1.0, "a heading before the mark"),
    ("", 0.0, "silence"),
    ("<REASONING>or <answer>41</answer></REASONING><Answer>18</Answer>", 1.0, "capital letters in the tags"),
]


@pytest.mark.parametrize(("text", "reward", "why"), COMPLETIONS, ids=[row[2] for row in COMPLETIONS])
def test_only_the_marked_answer_counts(text: str, reward: float, why: str) -> None:
    assert correctness(prompts=[""], completions=[text], answer=["18"]) == [reward]
    message = [{"role": "assistant", "content": text}]
    assert correctness(prompts=[[]], completions=[message], answer=["18"]) == [reward]


def test_no_gold_answer_is_none_and_not_zero() -> None:
    texts = ["<answer>1</answer>"] * 3
    assert correctness(prompts=[""] * 3, completions=texts, answer=["", None, "steps #### 1"]) == [None, None, 1.0]


@given(st.integers(-(10**9), 10**9))
def test_every_form_of_an_integer_is_that_integer(number: int) -> None:
    for text in (
        f"{number}",
        f"{number:,}",
        f"{number}.0",
        f"${number:,}.00",
        f"{number} eggs",
        f"\\boxed{{{number}}}",
    ):
        read = read_number(text)
        assert read.value == number
        assert same_answer(text, str(number))
        assert not same_answer(text, str(number + 1))


@given(st.text(max_size=60), st.text(max_size=20))
def test_no_text_breaks_the_judge(text: str, gold: str) -> None:
    assert same_answer(text, gold) in (True, False)
    reading = read_answer(f"<answer>{text}</answer>")
    assert (reading.text is None) == (reading.problem is not None)


def _gold_scores(path: Path) -> tuple[int, list[str]]:
    golds = [gold_answer(json.loads(line)["answer"]) for line in path.read_text(encoding="utf-8").splitlines()]
    texts = [f"<reasoning> worked out </reasoning> <answer> {gold} </answer>" for gold in golds]
    rewards = correctness(prompts=[""] * len(golds), completions=texts, answer=golds)
    return len(golds), [gold for gold, reward in zip(golds, rewards, strict=True) if reward != 1.0]


def test_gold_scores_one_on_the_excerpt() -> None:
    assert _gold_scores(DATA / "gsm8k_excerpt.jsonl") == (20, [])


def test_gold_scores_one_on_every_test_row_of_gsm8k() -> None:
    path = Path(os.environ.get("GRADUS_GSM8K_TEST", "nowhere"))
    if not path.exists():
        pytest.skip("needs GSM8K's test split, named by GRADUS_GSM8K_TEST")
    assert _gold_scores(path) == (1319, [])
