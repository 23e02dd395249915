"""Options that several commands have."""

from __future__ import annotations

import typer

__all__ = ["KEEP_HISTORY", "MAX_NEW_TOKENS", "PRESET", "TEMPERATURE", "TRACKER"]

TRACKER = typer.Option(
    [], "--tracker", help="Also send metrics to tensorboard or wandb (repeatable); metrics.jsonl is always written."
)
TEMPERATURE = typer.Option(
    None, "--temperature", min=0.0, help="Of models; 0 is greedy. Without it: as the model was trained."
)
MAX_NEW_TOKENS = typer.Option(
    None, "--max-new-tokens", min=1, help="Longest answer of models. Without it: as the model was trained."
)
KEEP_HISTORY = typer.Option(
    None,
    "--keep-history/--rewrite-history",
    help="Keep earlier answers as sampled, also if the chat template would rewrite them. Without it: as trained.",
)
PRESET = typer.Option(
    None,
    "--preset",
    help="Settings that suit a machine: cpu, small-gpu (24 GB) or large-gpu (80 GB); --set goes before them.",
)
