"""The environments that come with Gradus, by name, and the way to bring one's own."""

from gradus.environments.registry import load, names, register

__all__ = ["load", "names", "register"]
