"""Options that several commands have."""

from __future__ import annotations

import typer

__all__ = ["TRACKER"]

TRACKER = typer.Option(
    [], "--tracker", help="Also send metrics to tensorboard or wandb (repeatable); metrics.jsonl is always written."
)
