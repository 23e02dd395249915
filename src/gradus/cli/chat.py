"""`gradus chat`: talk to a model in the terminal."""

from __future__ import annotations

import typer

__all__ = ["command"]


def command(
    model: str = typer.Argument(..., help="A run folder, a model folder or a hub name."),
    system: str = typer.Option("", "--system", help="System prompt."),
    temperature: float = typer.Option(1.0, "--temperature", help="0 is greedy."),
    max_new_tokens: int = typer.Option(256, "--max-new-tokens", help="Longest answer."),
    seed: int = typer.Option(0, "--seed", help="Seed of sampling."),
) -> None:
    """Chat with a checkpoint; an empty line ends it."""
    from gradus.interop.serving.chat import chat_loop
    from gradus.pipeline.policies import find_model
    from gradus.policies.local.loading import load_model
    from gradus.policies.local.sampling import SamplingConfig

    loaded = load_model(str(find_model(model) or model))
    if temperature == 0:
        sampling = SamplingConfig(greedy=True, max_new_tokens=max_new_tokens)
    else:
        sampling = SamplingConfig(temperature=temperature, max_new_tokens=max_new_tokens)

    def ask() -> str | None:
        try:
            return input("you> ").strip() or None
        except EOFError:
            return None

    typer.echo("an empty line ends it, /new begins anew")
    chat_loop(
        loaded,
        ask=ask,
        show=lambda piece: typer.echo(piece, nl=False),
        system_prompt=system,
        sampling=sampling,
        seed=seed,
    )
