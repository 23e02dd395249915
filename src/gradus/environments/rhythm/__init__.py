"""Rhythm: a week in the life of a person with a hidden personality."""

from gradus.environments.rhythm.environment import RhythmEnvironment
from gradus.environments.rhythm.shell import RhythmWorld
from gradus.environments.rhythm.spec import load

__all__ = ["RhythmEnvironment", "RhythmWorld", "load"]
