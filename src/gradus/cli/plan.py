"""`gradus plan`: memory, time and money of a GRPO run, before it starts."""

from __future__ import annotations

from pathlib import Path

import typer

__all__ = ["command"]


def command(
    model: str = typer.Option(..., "--model", "-m", help="Model folder or hub name; only its config is read."),
    preset: str = typer.Option("cpu", "--preset", help="cpu (this machine), small-gpu or large-gpu."),
    prompt: int = typer.Option(256, "--prompt", help="Tokens read per turn, the first turn's with the system prompt."),
    answer: int = typer.Option(128, "--answer", help="Tokens sampled per turn, at most."),
    turns: int = typer.Option(1, "--turns", help="Turns of an episode."),
    steps: int = typer.Option(100, "--steps", help="Optimizer steps."),
) -> None:
    """Forecast a run; what cannot fit is refused with the setting to change."""
    from rich.console import Console
    from rich.table import Table

    from gradus.core import ConfigError
    from gradus.pipeline.policies import find_model
    from gradus.planning.forecast import Lengths, as_rows, check_fits, make_plan, read_shape
    from gradus.planning.hardware import PRESETS, this_machine
    from gradus.training.config import GrpoConfig

    if preset not in PRESETS:
        raise ConfigError(f"unknown preset {preset!r}; there are {', '.join(PRESETS)}")
    chosen = PRESETS[preset]
    config = GrpoConfig.model_validate({**chosen.settings, "max_steps": steps})
    found: Path | str = find_model(model) or model
    lengths = Lengths(prompt=prompt, answer=answer, turns=turns)
    plan = make_plan(read_shape(found), config, lengths, chosen.hardware or this_machine())
    table = Table(title=f"{plan.model.name} on {plan.hardware.name}", box=None, show_header=False, title_justify="left")
    for row in as_rows(plan):
        table.add_row(*row)
    Console().print(table)
    check_fits(plan, config)
