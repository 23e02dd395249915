"""Ten agent frameworks that nothing here was ever run with, and the two that are tried last.

They were chosen from memory for being different from each other: in who builds the request, whether answers are streamed, how tools and
structured answers are asked for, and how many processes and threads they use. ``HELD_BACK`` are tried when all else is done; nothing
may be changed for them before their first result is written down in docs/agents.md.
"""

from __future__ import annotations

import random

CANDIDATES = (
    "agno",
    "autogen-agentchat",
    "camel-ai",
    "crewai",
    "dspy",
    "google-adk",
    "haystack-ai",
    "instructor",
    "llama-index",
    "strands-agents",
)
SEED = 2911
HELD_BACK = tuple(sorted(random.Random(SEED).sample(CANDIDATES, 2)))

# Ten frameworks in whose agents no model was ever trained here. Two of them are trained last, with nothing changed for them before.
LEARNERS = (
    "autogen-agentchat",
    "camel-ai",
    "crewai",
    "dspy",
    "google-adk",
    "haystack-ai",
    "llama-index",
    "semantic-kernel",
    "smolagents",
    "strands-agents",
)
LEARNERS_SEED = 1129
LEARN_LAST = tuple(sorted(random.Random(LEARNERS_SEED).sample(LEARNERS, 2)))
