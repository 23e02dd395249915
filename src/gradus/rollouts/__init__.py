"""Rolling out groups of episodes with a policy, grading them, storing and reading them. Never imports torch."""

from gradus.rollouts.grading import grade_episodes, lowest_reward
from gradus.rollouts.replaying import replay
from gradus.rollouts.rollout import MAX_CONCURRENT, RolloutResult, episodes_of, roll_out
from gradus.rollouts.storage import (
    EpisodeWriter,
    decode,
    encode,
    read_episodes,
    write_episodes,
)

__all__ = [
    "MAX_CONCURRENT",
    "EpisodeWriter",
    "RolloutResult",
    "decode",
    "encode",
    "episodes_of",
    "grade_episodes",
    "lowest_reward",
    "read_episodes",
    "replay",
    "roll_out",
    "write_episodes",
]
