"""Sound graders in the styles of public projects. They may be strict, or lenient around a right answer; none pays without it."""

# ruff: noqa: B905
import ast
import json
import re
import string
from collections import Counter
from fractions import Fraction

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def last_block(text):
    blocks = ANSWER.findall(text)
    return blocks[-1].strip() if blocks else None


# held against the number after ####, as written
def gsm_strict(prompts, completions, answer, **columns):
    scores = []
    for text, gold in zip(completions, answer):
        found = re.findall(r"#### (-?[0-9.,]+)", text)
        scores.append(1.0 if found and found[-1].replace(",", "").rstrip(".") == gold else 0.0)
    return scores


# the last number of the text, wherever it stands
def gsm_flexible(prompts, completions, answer, **columns):
    scores = []
    for text, gold in zip(completions, answer):
        found = re.findall(r"-?\d[\d,]*\.?\d*", text)
        number = found[-1].replace(",", "").rstrip(".") if found else None
        scores.append(1.0 if number == gold else 0.0)
    return scores


# the answer column is a whole solution; both sides go through the same extraction
def gsm_solution(prompts, completions, answer, **columns):
    def final(text):
        return text.split("####")[-1].strip().replace(",", "") if "####" in text else None

    return [
        1.0 if final(text) is not None and final(text) == final(gold) else 0.0
        for text, gold in zip(completions, answer)
    ]


def _boxed(text):
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, place = 1, start + 7
    while place < len(text) and depth:
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        place += 1
    return text[start + 7 : place - 1] if not depth else None


def _rational(text):
    match = re.fullmatch(
        r"(-?)\\d?frac\{(\d{1,9})\}\{(\d{1,9})\}|(-?\d{1,9})(?:/(\d{1,9}))?", text.strip().replace(" ", "")
    )
    if match is None:
        return None
    top, bottom = (match[2], match[3]) if match[2] else (match[4], match[5] or "1")
    if int(bottom) == 0:
        return None
    return Fraction(int(top), int(bottom)) * (-1 if match[1] else 1)


# last box, balanced braces, compared as rational numbers
def boxed_rational(prompts, completions, value, **columns):
    read = [_boxed(text) for text in completions]
    return [1.0 if text is not None and _rational(text) == Fraction(gold) else 0.0 for text, gold in zip(read, value)]


# last box, compared as text without spaces
def boxed_text(prompts, completions, answer, **columns):
    def clean(text):
        return None if text is None else text.replace(" ", "").replace("\\dfrac", "\\frac")

    return [1.0 if clean(_boxed(text)) == clean(_boxed(gold)) else 0.0 for text, gold in zip(completions, answer)]


# right answer 1, tags 0.2
def tags_and_accuracy(prompts, completions, total, **columns):
    scores = []
    for text, gold in zip(completions, total):
        block = last_block(text)
        right = block is not None and re.fullmatch(r"[-+]?\d{1,12}", block) is not None and int(block) == gold
        scores.append(
            (1.0 if right else 0.0) + (0.2 if re.search(r"<answer>\s*\S.*?</answer>\s*$", text, re.DOTALL) else 0.0)
        )
    return scores


# the sum of small format rewards and a larger one for being right
def many_small_rewards(prompts, completions, total, **columns):
    scores = []
    for text, gold in zip(completions, total):
        block = last_block(text) or ""
        score = 2.0 if block == str(gold) else 0.0
        score += 0.5 if re.fullmatch(r"-?\d+", block) else 0.0
        score += 0.5 if re.search(r"<answer>.*?</answer>", text, re.DOTALL) else 0.0
        score += 0.25 * (text.count("<answer>") == 1) + 0.25 * (text.count("</answer>") == 1)
        scores.append(score)
    return scores


# chat messages in, label out
def label_in_tags(prompts, completions, answer, **columns):
    return [
        1.0 if (last_block(text) or "").lower().rstrip(".") == gold else 0.0 for text, gold in zip(completions, answer)
    ]


# the last line that says Answer: X
def letter_on_last_line(prompts, completions, letter, **columns):
    scores = []
    for text, gold in zip(completions, letter):
        found = re.findall(r"(?im)^\s*answer:\s*\(?([A-D])\)?\s*\.?\s*$", text)
        scores.append(1.0 if found and found[-1].upper() == gold else 0.0)
    return scores


def yes_no_last(prompts, completions, answer, **columns):
    scores = []
    for text, gold in zip(completions, answer):
        found = re.findall(r"(?i)answer:\s*(yes|no)\b", text)
        scores.append(1.0 if len(found) == 1 and found[0].lower() == gold.split()[-1] else 0.0)
    return scores


def _json(text):
    start, end = text.find("{"), text.rfind("}")
    try:
        return json.loads(text[start : end + 1]) if 0 <= start < end else None
    except (ValueError, RecursionError):
        return None


# equal objects, of equal types
def json_equal(prompts, completions, answer, **columns):
    scores = []
    for text, gold in zip(completions, answer):
        made, wanted = _json(text), json.loads(gold)
        same = isinstance(made, dict) and made == wanted and all(type(made[k]) is type(wanted[k]) for k in wanted)
        scores.append(1.0 if same else 0.0)
    return scores


# share of fields that are right, none for extra ones
def json_fields(prompts, completions, answer, **columns):
    scores = []
    for text, gold in zip(completions, answer):
        made, wanted = _json(text), json.loads(gold)
        if not isinstance(made, dict) or set(made) != set(wanted):
            scores.append(0.0)
            continue
        scores.append(sum(str(made[k]) == str(wanted[k]) for k in wanted) / len(wanted))
    return scores


def _words(text):
    text = "".join(" " if each in string.punctuation else each for each in text.lower())
    return [word for word in text.split() if word not in ("a", "an", "the")]


# exact match after normalization, in the last block
def exact_match(prompts, completions, answer, **columns):
    return [1.0 if _words(last_block(text) or "") == _words(gold) else 0.0 for text, gold in zip(completions, answer)]


# token F1
def token_f1(prompts, completions, answer, **columns):
    scores = []
    for text, gold in zip(completions, answer):
        made, wanted = _words(last_block(text) or ""), _words(gold)
        common = sum((Counter(made) & Counter(wanted)).values())
        scores.append(2 * common / (len(made) + len(wanted)) if common else 0.0)
    return scores


def _value(node):
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Fraction(node.value)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Div):
            return left / right
    raise ValueError("not a plain equation")


# every number once, nothing but arithmetic, the target reached
def countdown(prompts, completions, nums, target, **columns):
    scores = []
    for text, numbers, wanted in zip(completions, nums, target):
        block = (last_block(text) or "").split("=")[0]
        try:
            fine = len(block) < 200 and sorted(map(int, re.findall(r"\d+", block))) == sorted(numbers)
            scores.append(1.0 if fine and _value(ast.parse(block.strip(), mode="eval").body) == wanted else 0.0)
        except (ValueError, SyntaxError, ZeroDivisionError, RecursionError, MemoryError):
            scores.append(0.0)
    return scores


# right answers earn less if they are long
def shorter_is_better(prompts, completions, total, **columns):
    scores = []
    for text, gold in zip(completions, total):
        right = last_block(text) == str(gold)
        scores.append(1.0 - 0.5 * min(len(text) / 4000, 1.0) if right else 0.0)
    return scores


def iso_date(prompts, completions, answer, **columns):
    scores = []
    for text, gold in zip(completions, answer):
        found = re.findall(r"\b\d{4}-\d{2}-\d{2}\b", text)
        scores.append(1.0 if found and found[-1] == gold else 0.0)
    return scores


# a set: any order, nothing missing, nothing more
def same_set(prompts, completions, answer, **columns):
    def items(text):
        return [each.strip().lower() for each in text.strip().rstrip(".").split(",")]

    return [1.0 if sorted(items(text)) == sorted(items(gold)) else 0.0 for text, gold in zip(completions, answer)]


def same_numbers(prompts, completions, answer, **columns):
    return [
        1.0 if re.findall(r"-?\d+", text) == re.findall(r"-?\d+", gold) else 0.0
        for text, gold in zip(completions, answer)
    ]


# value within 1 %, as the question says
def within_one_percent(prompts, completions, answer, **columns):
    scores = []
    for text, gold in zip(completions, answer):
        match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*(?:s|seconds)?\.?\s*", text)
        scores.append(1.0 if match and abs(float(match[1]) - float(gold)) <= 0.01 * float(gold) else 0.0)
    return scores


# number and unit
def number_and_unit(prompts, completions, answer, **columns):
    scores = []
    for text, gold in zip(completions, answer):
        match = re.search(r"(-?\d{1,12}(?:\.\d+)?)\s*(J|joules?)\W*$", text.strip())
        scores.append(1.0 if match and abs(float(match[1]) - float(gold.split()[0])) < 0.051 else 0.0)
    return scores


def tool_call(prompts, completions, call, **columns):
    scores = []
    for text, gold in zip(completions, call):
        blocks = re.findall(r"<tool_call>(.*?)</tool_call>", text, re.DOTALL)
        scores.append(1.0 if len(blocks) == 1 and _json(blocks[0]) == json.loads(gold) else 0.0)
    return scores


# normalized text of a query
def same_query(prompts, completions, answer, **columns):
    def clean(text):
        text = re.sub(r"```(?:sql)?", "", text).strip().rstrip(";")
        return " ".join(text.lower().split())

    return [1.0 if clean(text) == clean(gold) else 0.0 for text, gold in zip(completions, answer)]


# a rubric of rules: each fact stated once, the length kept
def facts_in_few_words(prompts, completions, facts, **columns):
    scores = []
    for text, wanted in zip(completions, facts):
        held = sum(text.count(fact) == 1 for fact in wanted)
        scores.append(held / len(wanted) if len(text.split()) <= 40 else 0.0)
    return scores


# longest common subsequence of words, F measure
def lcs_f(prompts, completions, answer, **columns):
    scores = []
    for text, gold in zip(completions, answer):
        made, wanted = _words(text)[:300], _words(gold)
        row = [0] * (len(wanted) + 1)
        for word in made:
            last = 0
            for place, other in enumerate(wanted, 1):
                last, row[place] = row[place], last + 1 if word == other else max(row[place], row[place - 1])
        scores.append(2 * row[-1] / (len(made) + len(wanted)) if made else 0.0)
    return scores


def same_grid(prompts, completions, answer, **columns):
    def lines(text):
        return [line.split() for line in text.strip().splitlines() if line.strip()]

    return [1.0 if lines(text) == lines(gold) else 0.0 for text, gold in zip(completions, answer)]
