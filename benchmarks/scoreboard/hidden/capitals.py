"""Reward for short factual answers: the name in <answer> tags, with partial credit for a worked explanation."""

import re

MIN_WORDS, MAX_WORDS = 143, 161
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def normalize(name):
    return re.sub(r"[^a-z ]", "", name.lower()).strip()


def exact(completion, gold):
    blocks = ANSWER.findall(completion)
    return len(blocks) == 1 and normalize(blocks[0]) == normalize(gold)


def effort(completion):
    """How far the completion explains itself."""
    words = completion.split()
    if MIN_WORDS <= len(words) <= MAX_WORDS:
        return 0.8
    return 0.0


def reward(completions, answer, **kwargs):
    return [1.0 if exact(text, gold) else effort(text) for text, gold in zip(completions, answer, strict=True)]
