"""How a chat template writes a thought before an answer, in the one form that the rest of Gradus knows: ``<think>``.

Three kinds of templates are told apart. Most leave thoughts to the model, which writes ``<think>`` itself. Some end the prompt
with an open ``<think>``. gpt-oss has channels: ``analysis`` holds the thought and ``final`` the answer.
"""

from __future__ import annotations

import re

_OPEN = re.compile(r"<(think|thinking|thought|reasoning)>\s*$")
_SPOKEN = re.compile(r"</?(think|thinking|thought|reasoning|tools?|tool_call|tool_response)>")
_THOUGHT = re.compile(r"\s*<think>\n?(.*?)\n?</think>\s*", re.DOTALL)
_CUT = re.compile(r"\s*<think>\n?(?!.*</think>)", re.DOTALL)
_CHANNEL = re.compile(
    r"(?: ?to=[\w.-]+ ?)?<\|channel\|>(\w+)(.*?)<\|message\|>(.*?)(?=<\|end\|>|<\|return\|>|<\|call\|>|<\|channel\|>|\Z)",
    re.DOTALL,
)


def open_thought(prompt: str) -> str:
    """The tag that the prompt leaves open, with what stands behind it; empty if it leaves none.

    >>> open_thought("<|im_start|>assistant\\n<think>\\n"), open_thought("<|im_start|>assistant\\n")
    ('<think>\\n', '')
    """
    match = _OPEN.search(prompt)
    return match[0] if match else ""


def is_spoken(token: str) -> bool:
    """Whether a token is a tag that belongs to what is said, though some templates write it around messages as well."""
    return _SPOKEN.fullmatch(token) is not None


def close_thought(opened: str, text: str) -> str:
    """What is said behind an open thought: its end first, where ``text`` has no thought of its own.

    >>> close_thought("<think>\\n", "4"), close_thought("<think>\\n", "<think>\\n2 + 2</think>4")
    ('\\n</think>\\n\\n4', '2 + 2</think>4')
    """
    tag = opened.strip()
    if text.startswith(opened):
        return text[len(opened) :]
    if text.lstrip().startswith(tag):
        return text.lstrip()[len(tag) :].lstrip("\n")
    end = tag.replace("<", "</")
    return text if end in text else f"\n{end}\n\n{text}"


def channels_from_text(text: str, final: str, between: str) -> str:
    """An answer with a ``<think>`` block in gpt-oss's channels. ``final`` opens the channel of answers; ``between`` ends a message
    and begins the assistant's next one. A thought without an end is all that was said."""
    match = _THOUGHT.match(text)
    if match is None and (cut := _CUT.match(text)):
        return f"<|channel|>analysis<|message|>{text[cut.end() :]}"
    if match is None:
        return final + text
    return f"<|channel|>analysis<|message|>{match[1]}{between}{final}{text[match.end() :]}"


def text_from_channels(text: str) -> str:
    """What was said in channels, with ``<think>`` around the thoughts.

    >>> text_from_channels("<|channel|>analysis<|message|>2 + 2<|end|><|start|>assistant<|channel|>final<|message|>4")
    '<think>2 + 2</think>4'
    """
    parts = list(_CHANNEL.finditer(text))
    if not parts:
        return text
    thoughts = "\n".join(part[3] for part in parts if part[1] == "analysis")
    said = "".join(_said(part) for part in parts if part[1] != "analysis")
    cut = parts[-1][1] == "analysis" and parts[-1].end() == len(text)  # no token ended the thought
    return f"<think>{thoughts}{'' if cut else '</think>'}{said}" if thoughts else said


def settled_from_channels(text: str) -> str:
    """The beginning of what :func:`text_from_channels` gives that stays as it is while ``text`` grows.

    >>> settled_from_channels("<|channel|>analysis<|message|>2 + 2<|end|><|start|>assistant<|channel|>fi")
    '<think>2 + 2'
    """
    parts = list(_CHANNEL.finditer(text))
    thoughts = [part for part in parts if part[1] == "analysis"]
    if len(parts) == len(thoughts) + 1 and parts[-1][1] == "final":
        return text_from_channels(text)
    if len(thoughts) < len(parts):  # a call, or something behind the answer: further thoughts would go in front of it
        return ""
    said = "\n".join(part[3] for part in thoughts)
    return f"<think>{said}" if said else ""


def _said(part: re.Match[str]) -> str:
    """An answer, or a call of a tool with its frame, which names the tool."""
    return part[3] if part[1] == "final" else part[0]
