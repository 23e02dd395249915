"""Answers are judged as a person who marks homework would judge them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.rewards import correctness, gold_answer, read_answer, read_number, same_answer

DATA = Path(__file__).parents[1] / "data"

# What was answered, the gold answer, what a person says, and why.
JUDGED = [
    ("-(5)", "5", False, "a sign before brackets"),
    ("x ≠ 5", "5", False, "unequal"),
    (r"x \neq 5", "5", False, "unequal in LaTeX"),
    ("!= 5", "5", False, "unequal as a program writes it"),
    ("half of 5", "5", False, "a part of it"),
    ("twice 5", "5", False, "a multiple of it"),
    ("5 squared", "5", False, "a power in words"),
    ("5 m squared", "5", True, "a squared unit in words"),
    ("5 pi", "5", False, "times pi"),
    ("log(4)", "4", False, "a function of it"),
    ("What is sin(0)?", "0", False, "the question"),
    ("cube root of 4", "4", False, "a root in words"),
    ("5 log cabins", "5", True, "a unit that is a function's name elsewhere"),
    ("5 degrees below zero", "5", False, "the sign in words"),
    ("5 is wrong", "5", False, "denied"),
    ("3 5 2 4 1", "1 2 3 4 5", False, "a row in another order"),
    ("6", "1 2 3", False, "the product of a row"),
    ("1 2 3 4", "2 3 4", False, "a longer row"),
    ("The order is 1, 2, 3.", "1 2 3", True, "a row with commas, in a sentence"),
    ("[1, 2, 3.0]", "1 2 3", True, "a row as a list"),
    ("e5 e4", "e4 e5", False, "moves in another order"),
    ("r u2 f", "R U2 F", True, "moves"),
    ("F U2 R", "R U2 F", False, "turns in another order"),
    ("OH2", "H2O", False, "another formula"),
    ("The formula is H2O.", "H2O", True, "a formula in a sentence"),
    ("x*2", "2 x", True, "a product"),
    ("0", "0x1F", False, "Math-Verify multiplies 0 by x"),
    ("0xAB", "0xFF", False, "another hexadecimal number"),
    ("0b111", "0b101", False, "another binary number"),
    ("0", "0o17", False, "nothing for an octal number"),
    ("The answer is 0x1f.", "0x1F", True, "a hexadecimal number in a sentence"),
    ("0x001F", "0x1F", True, "leading zeros of a hexadecimal number"),
    ("31", "0x1F", False, "the number before it was converted"),
    ("0x1F", "31", False, "the number before it was converted back"),
    ("0b11111", "0x1F", False, "a base that was not asked for"),
    ("p-q", "p - q", True, "letters and a minus"),
    ("-y+x", "x-y", True, "letters and a minus in another order"),
    ("q-p", "p - q", False, "letters and a minus the other way"),
    ("- x", "-x", True, "a minus before a letter"),
    ("x", "-x", False, "no minus before a letter"),
    ("$x-y$", "x-y", True, "letters and a minus in LaTeX"),
    ("0", "O-O", False, "castling is no difference"),
    ("known well", "well-known", False, "a hyphen"),
    ("5 January", "5 February", False, "another month"),
    ("5", "5 January", False, "a day without its month"),
    ("5 january", "5 January", True, "a date in small letters"),
    ("5 pm", "5 am", False, "another half of the day"),
    ("5pm", "5 p.m.", True, "a half of the day in another form"),
    ("44 BC", "44 AD", False, "another era"),
    ("44 B.C.", "44 BC", True, "an era with full stops"),
    ("5 steps north", "5 steps south", False, "another direction"),
    ("5 left", "5 right", False, "another side"),
    ("5", "5 apples left", True, "what is left"),
    ("10 loss", "10 profit", False, "a loss for a profit"),
    ("12", "12 Angry Men", False, "the number of a title"),
    ("12 Monkeys", "12 Angry Men", False, "another title"),
    ("20", "20th century", False, "the number of an ordinal"),
    ("4th of July", "4th of June", False, "an ordinal with another month"),
    ("7", "7th", True, "an ordinal alone"),
    ("5", "5 apples", True, "the gold has a unit"),
    ("5", "5 Euro", True, "the gold has a currency"),
    ("18", "18 Dollars", True, "the gold has a currency in capitals"),
    ("18", "18. She has eggs left.", True, "the gold has a sentence behind it"),
    ("18 dollars", "18", True, "unit in words"),
    ("$18", "18", True, "currency in front"),
    ("18 USD", "18", True, "currency behind"),
    ("18km", "18", True, "unit without a space"),
    ("18 m²", "18", True, "squared unit"),
    ("18 per hour", "18", True, "a rate"),
    ("1,234", "1234", True, "thousands comma"),
    ("$1,234,567.00", "1234567", True, "commas, currency and cents"),
    ("1 234", "1234", True, "thousands space"),
    ("12,34", "1234", False, "a comma where none belongs"),
    ("1/2", "0.5", True, "fraction for decimal"),
    ("3 1/2", "3.5", True, "mixed number"),
    ("2/4", "1/2", True, "fraction not reduced"),
    ("36/2", "18", False, "a division left to the reader"),
    ("50%", "50", True, "percent sign where percent were asked for"),
    ("50%", "0.5", True, "percent for a share"),
    ("0.5", "50%", True, "a share for percent"),
    ("0.5", "50", False, "a share where percent were asked for, without a sign"),
    (r"\boxed{18}", "18", True, "boxed"),
    (r"$\frac{1}{2}$", "0.5", True, "LaTeX fraction"),
    (r"\frac{\sqrt{2}}{2}", r"\sqrt{2}/2", True, "LaTeX expression"),
    (r"x^2 + 2x", r"x(x + 2)", True, "the same polynomial"),
    ("18 or 19", "18", False, "two answers"),
    ("17, 18", "18", False, "a list"),
    ("18-20", "18", False, "a range"),
    ("not 18", "18", False, "negated"),
    ("at least 18", "18", False, "a bound"),
    ("12 + 6", "18", False, "a sum that was not worked out"),
    ("12 + 6 = 18", "18", True, "a sum that was"),
    ("x = 18", "18", True, "named"),
    ("abc18", "18", False, "a number glued to text"),
    ("18:30", "18", False, "a time"),
    ("eighteen", "18", True, "in words"),
    ("one hundred and twenty-five", "125", True, "several words"),
    ("two dozen eggs", "24", True, "a dozen"),
    ("18k", "18", False, "thousands"),
    ("1.5 million", "1500000", True, "a scale in words"),
    ("1.8e1", "18", True, "scientific"),
    ("−18", "-18", True, "typographic minus"),
    ("-18", "18", False, "wrong sign"),
    ("18.0", "18", True, "trailing zero"),
    ("18.01", "18", False, "close is not equal"),
    ("0.33333333", "1/3", True, "as many thirds as matter"),
    ("0.3", "1/3", False, "rounded too far"),
    ("**18**.", "18", True, "markdown and a full stop"),
    ("１８", "18", True, "full-width digits"),
    ("The answer is 18.", "18", True, "a sentence"),
    ("the Paris", "paris", True, "a word"),
    ("London", "Paris", False, "another word"),
    ("(B)", "B", True, "a choice in brackets"),
    ("The answer is A", "A", True, "a choice in a sentence"),
    ("The answer is (A).", "A", True, "a choice in brackets in a sentence"),
    ("(A).", "A", True, "a choice with a full stop"),
    ("Option A", "A", True, "an option"),
    ("Answer: A", "A", True, "a choice behind a colon"),
    ("A. Paris", "A", True, "a choice with its text"),
    ("A) Paris", "(A)", True, "a choice with its text behind a bracket"),
    ("A: Paris", "A", True, "a choice with its text behind a colon"),
    ("$A$", "A", True, "a choice in LaTeX"),
    ("A cat sat", "A", False, "an article"),
    ("A. Paris or B. Rome", "A", False, "two choices"),
    ("The answer is A or B", "A", False, "two choices in a sentence"),
    ("The answer is not A", "A", False, "a choice denied"),
    ("B. Rome", "A", False, "another choice with its text"),
    ("7", "seven", True, "the gold is in words"),
    ("21", "twenty-one", True, "the gold is in two words"),
    ("22", "twenty-one", False, "another number than the words"),
    ("1/2", "half", True, "a part in words"),
    ("0.5", "half", True, "a part in words as a decimal"),
    ("1", "one", False, "a word that may be a name"),
    ("2", "second", False, "a place"),
    ("seven dwarfs", "Seven Samurai", False, "a title in words"),
    ("five percent", "0.05", True, "percent in words"),
    (r"\frac{270}7", "270/7", True, "a fraction with one brace"),
    ("3, 4", "3 and 4", True, "a list for two values"),
    ("3 and 5", "3 and 4", False, "another second value"),
    ("3", "3 and 4", False, "one of two values"),
    ("-2, 2", r"\pm 2", True, "both signs"),
    (r"$\pm 2$", r"\pm 2", True, "both signs in LaTeX"),
    ("2", r"\pm 2", False, "one of both signs"),
    ("", "18", False, "nothing"),
    ("9" * 400, "18", False, "endless digits"),
]


@pytest.mark.parametrize(("given_text", "gold", "right", "why"), JUDGED, ids=[row[3] for row in JUDGED])
def test_a_person_would_agree(given_text: str, gold: str, right: bool, why: str) -> None:
    assert same_answer(given_text, gold) is right


RIGHT = [  # an answer, and a gold answer that it states
    ("Valentine’s Day", "Valentine's Day"), ("don’t know", "don't know"), ("“Paris”", "Paris"), ("«Paris»", "Paris"), ("*Paris*", "Paris"),
    ("_Paris_", "Paris"), ("0.001", "10^-3"), ('```json\n{"a": 1}\n```', '{"a": 1}'), ("red,green", "red, green"), ("x**2+1", "x^2+1"),
    ("4–2i", "4 - 2i"), ("f’(x)=2x", "f'(x)=2x"),
    (".5", "1/2"), ("0.5", ".5"), ("-.5", "-0.5"), ("...18", "18"),
    ("-$5", "-5"), (r"-\$5", "-5"), ("- $5", "-5"), ("-€3", "-3"), ("-US$5", "-5"), ("negative 5", "-5"), ("minus five", "-5"),
    ("-5", "-$5"), ("-5", "negative 5"), ("5", "US$5"), ("$-5$", "-5"),
    ("5 Million", "5000000"), ("5K", "5000"), ("5M", "5000000"), ("50 Percent", "0.5"), ("18 k", "18000"), ("300 K", "300"),
    ("2⅙", "13/6"), ("2⅖", "2.4"), ("⅚", "5/6"), ("3 × 10⁸", "300000000"), ("5 × 10⁻³", "0.005"), ("2e-3", "0.002"),
    ("five and a half", "5.5"), ("5 and a quarter", "5.25"), ("two thirds", "2/3"), ("three quarters", "0.75"), ("half", "0.5"),
    ("two and three quarters", "2.75"), ("one million two hundred thousand and five", "1200005"), ("a dozen", "12"),
    ("three seconds", "3"), ("five m", "5"), ("three quarters", "3/4"),
    ("25 cm^2", "25"), (r"25\text{ cm}^2", "25"), ("5 m/s^2", "5"), ("5", "5 m/s"), ("18 m^2", "18 m²"), (r"90^\circ", "90"),
    ("1.5*10^3", "1500"), (r"3 \cdot 10^8", "300000000"), ("18 times", "18"), ("5 hours over", "5"), ("I got 18", "18"),
    ("18 a day", "18"), ("The answer is 18!", "18"), ("12 + 6 = 18, so x = 18", "18"), ("120", "5!"), ("2π", "2π"), ("2x", "2x"),
    ("[0,1)", "[0, 1)"), ("(1,2)", "(1, 2)"), ("{1, 2}", "{2, 1}"), (r"\ge 5", "≥ 5"), ("C)", "(C)"), ("room 101", "Room 101"),
    ("3:30 pm", "3:30 PM"), ("2024-01-05", "2024-01-05"),
    ("6.02e23", r"6.02 \times 10^{23}"), ("6.02 × 10²³", r"6.02 \times 10^{23}"), ("602000000000000000000000", r"6.02\times10^{23}"),
    ("3.2e-5", r"3.2\times10^{-5}"), ("0.000032", r"3.2 \times 10^{ -5 }"), (r"1.6 \cdot 10^{-19}", r"1.6 \times 10^{-19}"),
    (r"3.2 \times 10^4 \text{ m}", r"3.2\times10^{4}"), ("0.001", "10^{-3}"), (r"\frac{3}{-4}", "-3/4"), ("3/-4", "-0.75"), (r"it is $\sqrt{3}$", r"\sqrt{3}"), ("1000000", "10^{6}"),
    ("6.626e-34", "6.626 x 10^-34"), ("0.333333", "1/3"), ("0.142857", "1/7"), ("0.0", "0"), ("0", "0.0"), ("0.033333", "1/30"),
    ("50", "50%"), ("200%", "2"), ("2", "200%"), ("123456.8", "123456.75"), ("1/1,000", "0.001"),
    ("7 thousand", "7000"), ("2 billion", "2000000000"), ("3 trillion", "3000000000000"), ("4B", "4000000000"), ("twelve hundred", "1200"),
    ("1e-3", "10^-3"), ("10^-3", "1e-3"), ("10^-3", "0.001"), ("10**-3", "10^{-3}"), ("10⁻³", "0.001"), ("1e4", "10**4"), ("10^4", "10000"), ("-1e3", "-10^3"),
    ("1 mm", "10^-3 m"), ("It is 10^{6}.", "1e6"), ("10^(-2)", "0.01"), ("1e-34", "10^{-34}"), ("2*10**-5", r"2 \times 10^{-5}"),
    ("three fifths", "0.6"), ("one sixth", "1/6"), ("three sevenths", "3/7"), ("an eighth", "0.125"), ("two ninths", "2/9"), ("a tenth", "0.1"),
]  # fmt: skip
OTHER = [  # an answer, and a gold answer that it does not state
    (".5", "5"), ("35625", ".35625"), ("-$5", "5"), ("5", "-$5"), ("negative 5", "5"), ("minus five", "5"), ("5 minus 3", "-3"),
    ("5 Million", "5"), ("5K", "5"), ("5M", "5"), ("10⁴", "104"), ("10²", "10"), ("3²", "3"), ("3**2", "32"), ("2⅙", "7/2"), ("2⅖", "22/5"),
    ("five and a half", "1/2"), ("five and a half", "5"), ("5 and three quarters", "5"), ("two thirds", "2"), ("2 thirds", "2"),
    ("three quarters", "3"), ("two and three", "5"), ("two three", "5"), ("twenty-first", "20"), ("three point five", "3"),
    ("two and a half million", "2.5"), ("twelve minus five", "12"), ("over 18", "18"), ("≥ 18", "18"), ("±18", "18"), ("wasn’t 18", "18"),
    ("x = 3 or x = 4", "4"), ("x=5, y=6", "6"), ("x = 5 and y = 6", "6"), (r"$x = 5$ \\ $y=6$", "6"),
    ("2", "2π"), ("2π", "2"), (r"2\pi", "2"), ("3", "3x"), ("3y", "3x"), ("3xy", "3"), ("3x^2", "3"), ("2m+2", "2"), ("2", "2i"), ("5", "5!"),
    ("5!", "5"), ("≤ 5", "≥ 5"), ("2018", "2024-01-05"), ("-2", "18-20"), ("2024", "January 5, 2024"), ("101", "Room 101"),
    ("[1, 2]", "(1, 2)"), (r"(-\infty, 3]", r"(-\infty, 3)"), ("[0,1)", "(0,1]"), ("n", "n!"), ("y'", "y"), ("y", "y'"), ("2x", "2X"),
    ("x", "x²"), ("B", "b+1"),
    (r"$\sqrt{3}$ is wrong", r"\sqrt{3}"), (r"it is not $\sqrt{3}$", r"\sqrt{3}"), (r"\frac{3}{-4}", "3/4"), (r"-\frac{3}{-4}", "-3/4"),
    ("0", "6.626e-34"), ("1e-7", "6.626e-34"), ("5e-7", "-3e-10"), ("0", r"3.2\times10^{-9}"), ("5", r"6.02 \times 10^{23}"),
    ("0.0000001", "0.0"), ("0.00051", "0.0005"), ("0.05001", "0.05"), ("123457.0", "123456.75"), ("10000001", "10000000"),
    ("50%", "0.5%"), ("0.5%", "50%"), ("18, 19", "18"), ("18 and 19", "18"), ("1/10120", "1/5/2024"), ("!", "?"), (".5.5", ".5"),
    ("two thousand three million", "3002000"), ("two hundred hundred", "20000"), ("twenty twelve", "32"), ("zero five", "5"),
    ("twenty third", "20/3"), ("10^4", "10^-4"), ("10^-3", "-0.001"), ("10^3", "10^4"), ("1e-20", "10^-34"), ("0", "10^-34"), ("2^10", "1024"),
    ("2*10^2*10^3", "200"), ("1e-3*1e-3", "0.001"), ("3*10^(1/2)", "15"), ("10^(1/2)", "5"), ("10^3/2", "500"), ("10^1.5", "10"), ("5 - 10^3", "-995"),
    ("10^3^2", "1000"), ("a*10^3", "1000"), ("log 10^3", "1000"), ("12 10^3", "1000"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("given_text", "gold", "right"), [*((*pair, True) for pair in RIGHT), *((*pair, False) for pair in OTHER)]
)
def test_signs_powers_scales_and_expressions(given_text: str, gold: str, right: bool) -> None:
    assert same_answer(given_text, gold) is right


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
    ("#### 18\nNo:\n#### 19", 0.0, "another mark at the end"),
    ("", 0.0, "silence"),
    ("<Answer>18</Answer>", 1.0, "capital letters in the tags"),
    ("<REASONING>or <answer>41</answer></REASONING><answer>18</answer>", 1.0, "capital letters around the reasoning"),
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
def test_every_dress_of_an_integer_is_that_integer(number: int) -> None:
    for text in (
        str(number),
        f"{number:,}",
        f"{number}.0",
        f"${number:,}.00",
        f"{number} eggs",
        f"\\boxed{{{number}}}",
    ):
        assert read_number(text).value == number
        assert same_answer(text, str(number))
        assert not same_answer(text, str(number + 1))


@given(st.text(max_size=60), st.text(max_size=20))
def test_no_text_breaks_the_judge(text: str, gold: str) -> None:
    assert same_answer(text, gold) in (True, False)
    assert (read_answer(f"<answer>{text}</answer>").text is None) == (
        read_answer(f"<answer>{text}</answer>").problem is not None
    )


def test_towers_of_powers_are_not_evaluated() -> None:
    assert not same_answer("9^9^9^9", "x^2")
    assert not same_answer("99999999!", "x!")


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
