"""Playing groups of episodes with a policy, grading them, storing and reading them. Never imports torch."""

from gradus.rollouts.correcting import correct
from gradus.rollouts.grading import grade_episodes, regrade
from gradus.rollouts.play import PlayResult, play
from gradus.rollouts.storage import EpisodeFile, EpisodeWriter, decode, encode, read_episodes, write_episodes

__all__ = [
    "EpisodeFile",
    "EpisodeWriter",
    "PlayResult",
    "correct",
    "decode",
    "encode",
    "grade_episodes",
    "play",
    "read_episodes",
    "regrade",
    "write_episodes",
]
