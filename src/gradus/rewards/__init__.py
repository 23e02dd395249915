"""Reward functions with TRL's signature, composed, tried, scheduled and turned into graders."""

from gradus.rewards.answers import gold_answer, read_answer, read_number, same_answer
from gradus.rewards.catalog import (
    BUILT_IN,
    RewardChoice,
    RewardConfig,
    choose_rewards,
    find_reward,
    load_rewards,
    parse_reward,
    reward_pairs,
)
from gradus.rewards.compose import Completion, RewardFunction, Rewards, completion_text, reward_name
from gradus.rewards.functions import (
    correctness,
    diversity,
    incremental_format,
    is_strict_format,
    json_schema,
    length,
    reads_tags,
    repetition,
    strict_format,
    style,
)
from gradus.rewards.grading import grader_of, own_grader, reweigh, tell_steps_taken
from gradus.rewards.schedules import AdaptiveConfig, RewardSchedule, StageConfig, adapt
from gradus.rewards.tryout import Tryout, read_completions, try_rewards

__all__ = [
    "BUILT_IN",
    "AdaptiveConfig",
    "Completion",
    "RewardChoice",
    "RewardConfig",
    "RewardFunction",
    "RewardSchedule",
    "Rewards",
    "StageConfig",
    "Tryout",
    "adapt",
    "choose_rewards",
    "completion_text",
    "correctness",
    "diversity",
    "find_reward",
    "gold_answer",
    "grader_of",
    "incremental_format",
    "is_strict_format",
    "json_schema",
    "length",
    "load_rewards",
    "own_grader",
    "parse_reward",
    "read_answer",
    "read_completions",
    "read_number",
    "reads_tags",
    "repetition",
    "reward_name",
    "reward_pairs",
    "reweigh",
    "same_answer",
    "strict_format",
    "style",
    "tell_steps_taken",
    "try_rewards",
]
