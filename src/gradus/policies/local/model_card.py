"""A model card: what the model is, how it was made, how to use it, and what it scored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradus.stats import format_interval
from gradus.version import __version__

__all__ = ["evaluation_table", "model_card"]


def model_card(
    *,
    title: str,
    base: str,
    parameters: int,
    dtype: str,
    adapter: Mapping[str, Any] | None,
    merged: bool,
    gap: float | None,
    results: Mapping[str, Any] | None,
) -> str:
    """Markdown with the header that model hubs read. The evaluation table is that of ``results`` (results.json)."""
    header = ["---", "library_name: transformers", "pipeline_tag: text-generation", "tags: [gradus, grpo]", "---"]
    facts = [f"- {parameters:,} parameters, {dtype}"]
    if adapter is not None:
        kind = f"LoRA of rank {adapter.get('r')} and alpha {adapter.get('lora_alpha')}"
        state = f"merged into the weights (log-probs agree to {gap:.1e} nats)" if merged else "not merged"
        facts += [f"- trained from `{base}`", f"- {kind}, {state}"]
    usage = [
        "```python",
        "from transformers import pipeline",
        "",
        f'chat = pipeline("text-generation", model="{title}")',
        'print(chat([{"role": "user", "content": "..."}])[0]["generated_text"][-1]["content"])',
        "```",
    ]
    tables = evaluation_table(results) if results else "No evaluation was stored with this model."
    parts = [
        "\n".join(header),
        f"# {title}",
        f"Trained with Gradus {__version__}, by group-relative policy optimization.",
        "\n".join(facts),
        "## Use",
        "\n".join(usage),
        "## Evaluation",
        tables,
    ]
    return "\n\n".join(parts) + "\n"


def evaluation_table(results: Mapping[str, Any]) -> str:
    """The policies' rewards by condition, and the paired differences, with their 95 % intervals."""
    parts = [
        f"Environment `{results.get('environment')}`, grader `{results.get('grader')}`; 95 % intervals in brackets."
    ]
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
