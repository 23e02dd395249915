"""`gradus chat`: talk to a model in the terminal."""

from __future__ import annotations

import typer

from gradus.commands.options import KEEP_HISTORY, MAX_NEW_TOKENS, TEMPERATURE


def command(
    model: str = typer.Argument(..., help="A run folder, a model folder or a hub name."),
    system: str | None = typer.Option(
        None, "--system", help="System prompt. Without it: as the model was trained; an empty one is none."
    ),
    temperature: float | None = TEMPERATURE,
    max_new_tokens: int | None = MAX_NEW_TOKENS,
    keep_history: bool | None = KEEP_HISTORY,
    seed: int = typer.Option(0, "--seed", help="Seed of sampling."),
) -> None:
    """Chat with a checkpoint; an empty line ends it."""
    from gradus import commands
    from gradus.core.printing import printable
    from gradus.core.values import whole_characters

    greeting = ["an empty line ends it, /new begins anew"]

    def ask() -> str | None:
        while greeting:  # said when the model is there: before, an error could follow it
            typer.echo(greeting.pop())
        try:
            return whole_characters(input("you> ")).strip() or None
        except EOFError:
            typer.echo()
            return None

    commands.chat(
        model,
        ask=ask,
        show=lambda piece: typer.echo(printable(piece), nl=False),
        system=system,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        keep_history=keep_history,
        seed=seed,
    )
