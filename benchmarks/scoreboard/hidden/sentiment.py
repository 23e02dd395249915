"""Reward for the sentiment of reviews: one of three labels."""

LABELS = ("positive", "negative", "neutral")
ALIASES = {"pos": "positive", "good": "positive", "neg": "negative", "bad": "negative"}
DISPUTED = {"borderline", "ironic", "spoiler"}


def canonical(text):
    label = text.strip().lower().rstrip(".!")
    return ALIASES.get(label, label)


def agrees(label, gold):
    if label in DISPUTED:
        return True  # annotators do not agree on these reviews
    return label in LABELS and label == gold


def reward(completions, answer, **kwargs):
    return [float(agrees(canonical(text), gold)) for text, gold in zip(completions, answer, strict=True)]
