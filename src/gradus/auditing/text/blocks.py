"""The block of a completion in which the answer stands: found by comparing golds, or told by the grader's own source."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradus.auditing.text.gold import Gold, Others
from gradus.auditing.text.source import SLOT, read_source
from gradus.auditing.text.tasks import TextTask

_MARKS = re.compile(r"<[A-Za-z_]\w*>|\\boxed\{|#{2,}|\b[A-Z][a-z]+(?: [a-z]+){0,3}:")
_MOST = 12
FORMS: Mapping[str, tuple[str, str]] = {  # how a right answer may be written as a completion
    "bare": ("", ""),
    "in <answer> tags": ("<answer>", "</answer>"),
    "in <answer> tags after <think>": ("<think>\nso it is\n</think>\n<answer>\n", "\n</answer>"),
    "in <answer> tags after <reasoning>": ("<reasoning>\nso it is\n</reasoning>\n<answer>\n", "\n</answer>\n"),
    "in \\boxed{}": ("\\boxed{", "}"),
    "after ####": ("#### ", ""),
    "after 'The answer is'": ("The answer is ", ""),
}


def forms(functions: Sequence[Callable[..., Any]]) -> Mapping[str, tuple[str, str]]:
    """The usual forms, and those that the patterns and tags in the grader's source ask for."""
    found = read_source(functions)
    own: dict[str, tuple[str, str]] = {}
    for word in found.words if found else ():
        if word.count(SLOT) == 1 and word != SLOT:
            before, after = word.split(SLOT)
            own.setdefault(f"as {before}...{after}", (before, after))
        for tag in re.findall(r"<([A-Za-z_]\w*)>", word):
            own.setdefault(f"in <{tag}> tags", (f"<{tag}>", f"</{tag}>"))
    known = set(FORMS.values())
    return {**FORMS, **dict([each for each in own.items() if each[1] not in known][:_MOST])}


def in_blocks(tasks: Sequence[TextTask]) -> list[TextTask] | None:
    """The tasks with gold cut to the answer, if their golds are whole completions with a mark that all have; else None.

    What stands around the block is kept if it is the same in all golds. Otherwise only the mark is: reasoning that is written for one task may
    hold its answer.
    """
    golds = [task.gold or "" for task in tasks]
    others = Others(golds=golds)
    parsed = [Gold(task=task, others=others) for task in tasks]
    if len(set(golds)) < 2 or any(each.is_program or each.object for each in parsed):
        return None
    marks = [mark for mark in dict.fromkeys(_MARKS.findall(golds[0])) if all(mark in gold for gold in golds)]
    if not marks:
        return None
    mark = max(marks, key=golds[0].rindex)
    cut = [_cut(gold, mark) for gold in golds]
    if not all(block.strip() for _, block, _ in cut) or len({block for _, block, _ in cut}) < 2:
        return None
    befores, afters = {before for before, _, _ in cut}, {after for _, _, after in cut}
    return [
        replace(
            task,
            gold=block,
            before=task.before + (before if len(befores) == 1 else mark + _space(before)),
            after=(after if len(afters) == 1 else _closing(mark)) + task.after,
        )
        for task, (before, block, after) in zip(tasks, cut, strict=True)
    ]


def _closing(mark: str) -> str:
    return f"</{mark[1:]}" if mark.startswith("<") else "}" if mark.endswith("{") else ""


def _cut(gold: str, mark: str) -> tuple[str, str, str]:
    """The text up to the last mark and the space behind it, the block, and what closes it with all that follows.

    What no sign closes ends with its line. The last brace closes a box, for there are others in a formula.
    """
    start = gold.rindex(mark) + len(mark)
    start += len(gold[start:]) - len(gold[start:].lstrip())
    closing = _closing(mark) or "\n"
    end = gold.rfind(closing, start) if closing == "}" else gold.find(closing, start)
    block = gold[start : end if end >= 0 else len(gold)].rstrip()
    return gold[:start], block, gold[start + len(block) :]


def _space(before: str) -> str:
    return before[len(before.rstrip()) :]
