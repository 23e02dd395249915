"""What to change if a check fails, one sentence each."""

from __future__ import annotations

from gradus.auditing.records import GRADING

_REMEDIES = {
    "separation": "Give the skill that is missing a component of its own, or more weight.",
    "exploits": "Look at which component pays the degenerate policy, and pay for what it is meant to measure.",
    "free credit": "Score against the best constant: 1 - error / error of the constant.",
    "alignment": "Drop what the true reward does not know.",
    "search": "Read the episode, close the hole, and audit again.",
    "signal": "Take larger groups, other tasks, or a finer reward.",
    "hygiene": "Mend what the sentence names.",
    GRADING: "Mend what the grader raises; `gradus rewards try` scores one answer with it.",
    "sanity": "Accept the gold answer, and make the reward a function of task and answer alone.",
    "gold": "Pay gold more than the answers of other tasks.",
    "blind answers": "Parse the answer and compare it; pay nothing for text that cannot be parsed.",
    "reflexes": "Refuse answers that restate the question: compare values in their simplest form.",
    "evolved answers": "Pay for the answer alone; drop credit for words, length and form.",
    "wrong answers": "Compare the whole answer, not a part of it, and take one answer block only.",
    "right answers": "Strip spaces and line ends before the comparison.",
    "hostile answers": "Never execute an answer in the grader's process; catch what it raises, and limit its time.",
    "leaks": "Take the answer out of what is shown.",
    "tasks": "Take everything random from the seed, and keep test questions out of training.",
    "files and processes": "Run the answer in a process of its own that can neither read nor write what decides the reward.",
}


def remedy_of(check: str) -> str:
    """The remedy of a check by its name; attackers share the search's."""
    return _REMEDIES.get(check, _REMEDIES["search"])
