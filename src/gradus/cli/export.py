"""`gradus export`: a checkpoint as a plain Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import typer

__all__ = ["command"]


def command(
    run: Path = typer.Argument(..., help="A run folder (its best checkpoint) or a model folder."),
    out: Path = typer.Argument(..., help="Folder to write; must be empty or not there."),
    merge: bool = typer.Option(True, "--merge/--no-merge", help="Merge adapters into the weights."),
    dtype: str = typer.Option("auto", "--dtype", help="float32, bfloat16, float16, or auto: that of the base model."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace what is there."),
) -> None:
    """Write model, tokenizer, generation config and a model card with the evaluation table."""
    from gradus.core.files import read_json
    from gradus.pipeline.policies import existing_model
    from gradus.policies.local.export import export_model

    results = read_json(run / "results.json") if (run / "results.json").is_file() else None
    found = export_model(existing_model(str(run)), out, merge=merge, dtype=dtype, results=results, overwrite=overwrite)
    merged = "" if found.gap is None else f", merged (largest gap {found.gap:.1e} nats)"
    typer.echo(f"{found.path}: {found.parameters:,} parameters in {found.dtype}{merged}")
    typer.echo(f"use it: gradus chat {found.path}   or   transformers.pipeline('text-generation', '{found.path}')")
