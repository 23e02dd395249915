"""The command line: one thin file a command. Heavy imports happen inside the commands, so that help stays quick."""

from gradus.cli.app import app, main

__all__ = ["app", "main"]
