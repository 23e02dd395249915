"""Asks a person in the terminal for the answers of a policy."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from gradus.core import Action, EpisodeStart, Request


class PersonPolicy:
    """Shows each observation and reads the answer from the keyboard."""

    name = "you"

    def __init__(self, console: Console) -> None:
        self.console = console

    def start(self, episodes: Sequence[EpisodeStart]) -> PersonPolicy:
        """Show the rules."""
        for episode in episodes:
            self.console.rule("the rules")
            self.console.print(episode.system_prompt)
            self.console.print("Ctrl-C ends it.", style="dim")
            self.console.rule()
        return self

    def act(self, requests: Sequence[Request]) -> list[Action]:
        """Ask once per episode."""
        return [Action(text=self._ask(request)) for request in requests]

    def _ask(self, request: Request) -> str:
        seen = request.observation
        if seen.action_error:
            self.console.print(f"not understood: {seen.action_error}", style="yellow")
        self.console.print(seen.text, style="bold")
        while True:
            try:
                answer = self.console.input("> ").strip()
            except EOFError as error:
                raise KeyboardInterrupt from error
            if answer:
                return answer

    def close(self) -> None:
        """Nothing is held."""
