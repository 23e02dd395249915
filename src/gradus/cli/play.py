"""`gradus play`: a person plays, and sees at the end whom or what they had before them."""

from __future__ import annotations

import typer

__all__ = ["command"]


def command(
    environment: str = typer.Argument("rhythm", help="Environment, as in `gradus envs`."),
    seed: int | None = typer.Option(None, "--seed", help="Which task; a different one each day otherwise."),
    condition: str | None = typer.Option(None, "--condition", help="A condition of the environment."),
) -> None:
    """Play one episode yourself in the terminal."""
    from datetime import date

    from rich.console import Console

    from gradus import environments
    from gradus.core import Task

    spec = environments.load(environment)
    chosen = date.today().toordinal() if seed is None else seed
    options = spec.tasks(condition, 1)[0].options if condition else {}
    task = Task(environment=spec.name, seed=chosen, condition=condition or "play", options=options)
    console = Console(highlight=False)
    _play(spec, task, console)


def _play(spec, task, console) -> None:
    from gradus.pipeline import PersonPolicy
    from gradus.reports import show_episode
    from gradus.rollouts import roll_out

    person = PersonPolicy(console)
    episode = roll_out(spec, person, [task], grader=spec.grader()).episodes[0]
    console.rule("what you could not see")
    console.print(show_episode(episode, spec.presentation.view(episode) if spec.presentation.view else None))
    if episode.reward and episode.reward.value is not None:
        console.print(f"reward ({episode.reward.grader}): [bold]{episode.reward.value:.3f}[/bold]")
    true_reward = episode.metrics.get("true_reward")
    if true_reward is not None:
        console.print(f"{spec.true_reward_name}: [bold]{true_reward:+.2f}[/bold]")
    console.print(f"compare: gradus eval {spec.name} --policy {','.join(list(spec.policies)[:3])}")
