"""`gradus export`: a checkpoint as a plain Hugging Face folder."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer

from gradus.commands.options import MAX_NEW_TOKENS, TEMPERATURE
from gradus.core.printing import quiet


def command(
    run: Path = typer.Argument(..., help="A run folder (its best checkpoint) or a model folder."),
    out: Path = typer.Argument(..., help="Folder to write; must be empty or not there."),
    merge: bool = typer.Option(True, "--merge/--no-merge", help="Merge adapters into the weights."),
    dtype: str = typer.Option("auto", "--dtype", help="float32, bfloat16, float16, or auto: that of the base model."),
    temperature: float | None = TEMPERATURE,
    max_new_tokens: int | None = MAX_NEW_TOKENS,
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace what is there."),
) -> None:
    """Write model, tokenizer, generation config and a model card with the evaluation table."""
    from gradus import commands

    sampling = {"temperature": temperature, "max_new_tokens": max_new_tokens}
    exported = commands.export(run, out, merge=merge, dtype=dtype, overwrite=overwrite, **sampling)
    merged = "" if exported.gap is None else f", merged (largest gap {exported.gap:.1e} nats)"
    typer.echo(f"{exported.path}: {exported.parameters:,} parameters in {exported.dtype}{merged}")
    if not quiet():
        path = str(exported.path)
        chat = f"gradus chat {shlex.quote(path)}   or   " if commands.can_chat(path) else ""
        typer.echo(f"use it: {chat}transformers.pipeline('text-generation', {path!r})")
