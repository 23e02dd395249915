"""The environments that come with Gradus, by name, and the way to bring one's own."""

from gradus.environments.registry import load, load_registered, names, register

__all__ = ["load", "load_registered", "names", "register"]
