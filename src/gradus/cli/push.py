"""`gradus push`: a model to the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

import typer

from gradus.commands.output import next_command, same


def command(
    source: Path = typer.Argument(..., help="A model folder or a run folder."),
    repository: str = typer.Argument(..., help="Where to: owner/name."),
    public: bool = typer.Option(False, "--public", help="Let everybody see it; private otherwise."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Show exactly what would be uploaded, and stop."),
    endpoint: str | None = typer.Option(None, "--endpoint", help="Another Hub than huggingface.co."),
) -> None:
    """Upload a model with a card to the Hugging Face Hub."""
    from gradus import commands

    plan, address = commands.push(source, repository, public=public, dry_run=dry_run, endpoint=endpoint)
    seen = "private" if plan.private else "public"
    typer.echo(f"{plan.repository} ({seen}), {len(plan.files)} files, {plan.size:,} bytes:")
    for file in plan.files:
        typer.echo(f"  {file.size:>14,}  {file.path}{'' if file.source is None else f'  <- {file.source}'}")
    if address is not None:
        typer.echo(f"uploaded to {address}")
        return
    for file in plan.files:
        if file.text is not None:
            typer.echo(f"\n--- {file.path} ---\n{file.text}")
    typer.echo("dry run: nothing was uploaded")
    next_command("push", source, repository, *same("public", "endpoint"))
