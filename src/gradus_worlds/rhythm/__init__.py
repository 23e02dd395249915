"""Rhythm: a week in the life of a person with a hidden personality."""

from gradus_worlds.rhythm.environment import RhythmEnvironment
from gradus_worlds.rhythm.spec import load

__all__ = ["RhythmEnvironment", "load"]
