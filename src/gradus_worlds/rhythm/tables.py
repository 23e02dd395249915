"""The constants of the world: meters, actions, what an action does to a neutral person, and how a modifier changes it.

All effects are linear in the nine modifiers, so a person's effects are ``BASE + modifiers @ SIGNATURE``. Each cell of
``SIGNATURE`` belongs to one modifier only; that is what makes a week enough to tell persons apart. ``world.toml`` has the figures.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

METERS = ("vitality", "cognition", "progress", "serenity", "connection")
LETTERS = ("V", "C", "P", "S", "K")
PROGRESS = METERS.index("progress")
COGNITION = METERS.index("cognition")

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
SLOTS = ("morning", "afternoon", "evening", "night")
STEPS = len(DAYS) * len(SLOTS)

MODIFIERS = (
    "social_energy_cost",
    "social_warmth",
    "morning_peak",
    "night_peak",
    "work_vitality_recovery",
    "progress_serenity_bonus",
    "leisure_guilt",
    "solo_recharge",
    "event_resilience",
)

# Per slot, as a share of the level. Decay is not felt: neither a change nor a reward holds it.
DECAY: Array = np.array([0.045, 0.04, 0.04, 0.05, 0.045])
NOISE = 0.008  # standard deviation of each meter's noise per step
RESILIENCE = 0.8

REWARD_SCALE = 12.0
CRASH_BELOW = 0.1
CRASH_PENALTY = 0.25  # reward lost per meter and step in a crash

# What a line can show: the teacher reads these grids too, so that all it knows stands in the text.
METER_GRID = 0.05
ANOMALY_GRID = 0.04
REWARD_GRID = 0.1
REWARD_LIMIT = 2.5


# The contents of ``world.toml``, where each table is explained.
FIGURES: dict[str, Any] = tomllib.loads(
    files("gradus_worlds.rhythm").joinpath("world.toml").read_text(encoding="utf-8")
)

ACTIONS = tuple(FIGURES["effects"])
ACTION_INDEX = {name: index for index, name in enumerate(ACTIONS)}
NOTHING = len(ACTIONS)  # the row of an answer that could not be understood
_WORK = tuple(FIGURES["peak_cognition"])

EVENTS = tuple(FIGURES["events"])
EVENT_PROBABILITY: Array = np.array([event["probability"] for event in FIGURES["events"].values()])
EVENT_EFFECTS: Array = np.array([event["effect"] for event in FIGURES["events"].values()])


def _base() -> Array:
    """(4, 11, 5): slot, action (the last is nothing), meter."""
    table = np.zeros((len(SLOTS), len(ACTIONS) + 1, len(METERS)))
    # The last action has no effect, so its row stays zero.
    table[:, :NOTHING] = list(FIGURES["effects"].values())
    shares = FIGURES["by_slot"]
    for name in _WORK:
        table[:, ACTION_INDEX[name], PROGRESS] *= shares["work"]
    # Sleep scales as a whole: at noon one rests less, at night more.
    table[:, ACTION_INDEX["sleep"]] *= np.array(shares["sleep"])[:, None]
    return table


BASE = _base()


def _signature() -> Array:
    """(9, 4, 11, 5): the change per unit of each modifier."""
    table = np.zeros((len(MODIFIERS), *BASE.shape))
    for modifier, actions in FIGURES["signature"].items():
        by_action = table[MODIFIERS.index(modifier)]  # (4, 11, 5)
        for action, sizes in actions.items():
            for letter, size in sizes.items():
                by_action[:, ACTION_INDEX[action], LETTERS.index(letter)] = size
    # Peaks hold in one slot: a morning person works better in the morning.
    for modifier, slots in FIGURES["peaks"].items():
        by_slot = table[MODIFIERS.index(modifier)]
        for name, share in slots.items():
            slot = SLOTS.index(name)
            for action, cognition in FIGURES["peak_cognition"].items():
                index = ACTION_INDEX[action]
                by_slot[slot, index, PROGRESS] = share * BASE[slot, index, PROGRESS]
                by_slot[slot, index, COGNITION] = share * cognition
    return table


SIGNATURE = _signature()
