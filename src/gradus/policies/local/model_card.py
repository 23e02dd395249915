"""A model card: what the model is, how it was made, how to use it, and what it scored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradus.stats import format_interval
from gradus.version import __version__

if TYPE_CHECKING:
    from gradus.policies.local.renderers import ChatRenderer


def model_card(
    *,
    title: str,
    facts: Sequence[str],
    results: Mapping[str, Any] | None,
    adapters_of: str | None = None,
    asked: str | Sequence[Mapping[str, Any]] = ({"role": "user", "content": "..."},),
    template_options: Mapping[str, Any] | None = None,
    figures: Sequence[str] = (),
    recipe: str | None = None,
) -> str:
    """Markdown with the header that model hubs read. The evaluation table is that of ``results`` (results.json).

    ``adapters_of``: the base model, if the folder holds adapters alone. ``asked``: chat messages, or what a model without a chat
    template is asked (:func:`what_to_ask`). ``figures``: names of PNG files in the folder ``figures``.
    ``recipe``: the recipe that made it, as TOML.
    """
    head: dict[str, Any] = {
        "library_name": "transformers" if adapters_of is None else "peft",
        "pipeline_tag": "text-generation",
        "tags": ["gradus", "grpo", "reinforcement-learning"],
    }
    if adapters_of is not None and not Path(adapters_of).exists():  # hubs refuse a card that names a folder
        head["base_model"] = adapters_of
    apart = adapters_of is not None
    usage = [
        "```python",
        f"from transformers import {'GenerationConfig, ' * apart}pipeline",
        "",
        f'chat = pipeline("text-generation", model="{title}")',
        *(
            [f'chat.model.generation_config = GenerationConfig.from_pretrained("{title}")  # not the base model\'s']
            * apart
        ),
        *_asking(asked, template_options),
        "```",
    ]
    parts = [
        f"# {title}",
        f"Trained with Gradus {__version__}, by group-relative policy optimization.",
        *(["\n".join(f"- {fact}" for fact in facts)] if facts else []),
        "## Use",
        "\n".join(usage),
        "## Evaluation",
        evaluation_table(results) if results else "It was not evaluated with `gradus eval`.",
        *(f"![{name.removesuffix('.png')}](figures/{name})" for name in figures),
    ]
    if recipe:
        parts += [
            "## Hyperparameters",
            f"What the recipe leaves out is Gradus' default.\n\n```toml\n{recipe.strip()}\n```",
        ]
    return front_matter(head) + "\n\n".join(parts) + "\n"


def _asking(asked: str | Sequence[Mapping[str, Any]], options: Mapping[str, Any] | None) -> list[str]:
    """Lines of Python that ask the pipeline ``chat``."""
    if isinstance(asked, str):
        return [
            f"prompt = {json.dumps(asked, ensure_ascii=False)}",
            'print(chat(prompt, return_full_text=False, add_special_tokens=False)[0]["generated_text"])',
        ]
    rows = [f"    {json.dumps(message, ensure_ascii=False)}," for message in asked]
    given = f", tokenizer_encode_kwargs={dict(options)!r}" if options else ""
    return ["messages = [", *rows, "]", f'print(chat(messages{given})[0]["generated_text"][-1]["content"])']


def what_to_ask(renderer: ChatRenderer, system_prompt: str) -> str | Sequence[Mapping[str, str]]:
    """A question behind the system prompt that a model was trained with: chat messages, or a text without a chat template."""
    return plain_prompt(system_prompt) if renderer.plain else renderer.messages(system_prompt, "...")


def plain_prompt(system_prompt: str, question: str = "...") -> str:
    """Returns what a model without a chat template reads, as ``PLAIN_TEMPLATE`` writes it.

    >>> plain_prompt("Be brief.", "2 + 2?")
    'Be brief.\\n\\nObservation: 2 + 2?\\nAction:'
    """
    return (f"{system_prompt}\n\n" if system_prompt else "") + f"Observation: {question}\nAction:"


def export_facts(
    *, base: str, parameters: int, dtype: str, adapter: Mapping[str, Any] | None, gap: float | None
) -> list[str]:
    """Returns what a card says of an exported model. ``gap``: log-prob difference of merging, nats; None if nothing was merged."""
    facts = [f"{parameters:,} parameters, {dtype}"]
    if adapter is not None:
        kind = f"LoRA of rank {adapter.get('r')} and alpha {adapter.get('lora_alpha')}"
        state = "not merged" if gap is None else f"merged into the weights (log-probs agree to {gap:.1e} nats)"
        shown = Path(base).name if Path(base).exists() else base  # where a folder lies is nobody else's business
        facts += [f"trained from `{shown}`", f"{kind}, {state}"]
    return facts


def front_matter(head: Mapping[str, Any]) -> str:
    """A card's header. YAML reads JSON values, so no value needs quoting rules of its own."""
    return (
        "---\n"
        + "".join(f"{name}: {json.dumps(value, ensure_ascii=False)}\n" for name, value in head.items())
        + "---\n\n"
    )


def evaluation_table(results: Mapping[str, Any]) -> str:
    """The policies' rewards by condition, and the paired differences, with their 95 % intervals."""
    seeds = ", ".join(str(each) for each in results.get("seeds") or ())
    of = f", training seed {seeds}" if seeds else ""
    parts = [
        f"Environment `{results.get('environment')}`, grader `{results.get('grader')}`{of}; 95 % intervals in brackets."
    ]
    if results.get("quick"):
        parts.append("This was a quick run: every stage at toy size. Its figures prove nothing.")
    for name, condition in results.get("conditions", {}).items():
        rows = [["policy", "reward", "true_reward"]]
        for policy, figures in condition.get("policies", {}).items():
            rows.append([policy, format_interval(figures.get("reward")), format_interval(figures.get("true_reward"))])
        parts.append(f"**{name}**, {condition.get('episodes')} episodes\n\n{_markdown(rows)}")
        pairs = [["difference on the same seeds", "reward", "true_reward"]]
        for pair, figures in condition.get("pairs", {}).items():
            pairs.append([pair, format_interval(figures.get("reward")), format_interval(figures.get("true_reward"))])
        if len(pairs) > 1:
            parts.append(_markdown(pairs))
    return "\n\n".join(parts)


def _markdown(rows: list[list[str]]) -> str:
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])
