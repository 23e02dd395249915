"""A model card: what the model is, how it was made, how to use it, and what it scored."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import ModelCard, ModelCardData

from gradus.core.documents import AuditRecord, ConditionResults, Costs, Results, means_of
from gradus.core.frozen_record import frozen_record
from gradus.core.values import Json, JsonDict
from gradus.stats import format_interval, format_money
from gradus.version import __version__

if TYPE_CHECKING:
    from gradus.policies.local.chat_template import ChatTemplate

_MOST_MEASURES = 4  # columns of a table that still fits a page

# Chat messages; or a text, for a model without a chat template.
Question = str | Sequence[Mapping[str, str]]


@frozen_record
class CardContents:
    """Everything that differs from card to card."""

    title: str
    # Lines on the model itself: its size, its origin.
    facts: Sequence[str]
    # A run's results.json; None if it was not evaluated.
    results: Results | None
    # The base model, if the folder holds adapters alone.
    adapters_of: str | None = None
    # The example asks it (:func:`example_question`).
    question: Question
    template_options: Json = field(default_factory=JsonDict)
    # The name of the GGUF file that the folder holds in place of a model of transformers.
    gguf: str | None = None
    # Names of PNG files in the folder ``figures``.
    figures: Sequence[str] = ()
    # The recipe that made the model, as TOML.
    recipe: str | None = None
    # The run's audit.json and costs.json.
    audit: AuditRecord | None = None
    costs: Costs | None = None
    # The command that makes the run again.
    repeat: str | None = None


def model_card(contents: CardContents) -> str:
    """Markdown with the header that model hubs read."""
    base = contents.adapters_of
    head = ModelCardData(
        base_model=None if base is None or Path(base).exists() else base,  # hubs refuse a card that names a folder
        library_name=_library(contents),
        pipeline_tag="text-generation",
        tags=["gradus", "grpo", "reinforcement-learning"],
    )
    card = ModelCard.from_template(
        head,
        template_path=str(Path(__file__).with_suffix(".md.j2")),
        card=contents,
        version=__version__,
        interval=format_interval,
        money=format_money,
        measures=_measures,
        json=partial(json.dumps, ensure_ascii=False),
    )
    return str(card)


def renamed_card(card: str, title: str) -> str | None:
    r"""Returns a card of :func:`model_card` under another title, with all that it says of the model; None if it is somebody else's.

    >>> renamed_card('# model\n\nTrained with Gradus. pipeline(model="model")', "me/it")
    '# me/it\n\nTrained with Gradus. pipeline(model="me/it")'
    """
    heading = re.search(r"^# (.+)\n\nTrained with Gradus", card, re.MULTILINE)
    if heading is None:
        return None
    name = heading[1]
    card = card.replace(f"# {name}\n", f"# {title}\n", 1)
    # The examples of code name the model too.
    return card.replace(f'"{name}"', f'"{title}"')


def _library(contents: CardContents) -> str:
    if contents.gguf is not None:
        return "gguf"
    return "transformers" if contents.adapters_of is None else "peft"


def _measures(condition: ConditionResults) -> list[str]:
    """Returns the environment's own measures of a policy, which are shown beside its reward."""
    names = dict.fromkeys(name for policy in condition["policies"].values() for name in means_of(policy))
    measures = [name for name in names if name not in ("reward", "true_reward", "env_reward")]
    return measures[:_MOST_MEASURES]


def example_question(template: ChatTemplate, system_prompt: str) -> Question:
    """Returns a question behind the system prompt that a model was trained with."""
    return plain_prompt(system_prompt) if template.plain else template.messages(system_prompt, "...")


def plain_prompt(system_prompt: str) -> str:
    """Returns what a model without a chat template reads, as ``PLAIN_TEMPLATE`` writes it.

    >>> plain_prompt("Be brief.")
    'Be brief.\\n\\nObservation: ...\\nAction:'
    """
    head = f"{system_prompt}\n\n" if system_prompt else ""
    return f"{head}Observation: ...\nAction:"
