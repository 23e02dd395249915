"""The constants of the world: meters, actions, what an action does to a neutral person, and how a modifier bends it.

All effects are linear in the nine modifiers, so a person's effects are ``BASE + modifiers @ SIGNATURE``. Each cell of
``SIGNATURE`` belongs to one modifier only; that is what makes a week enough to tell persons apart.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

METERS = ("vitality", "cognition", "progress", "serenity", "connection")
LETTERS = ("V", "C", "P", "S", "K")
PROGRESS = METERS.index("progress")

ACTIONS = (
    "deep_work",
    "admin_work",
    "learn",
    "sleep",
    "exercise",
    "meditate",
    "family_time",
    "socialize",
    "me_time",
    "binge_watch",
)
ACTION_INDEX = {name: index for index, name in enumerate(ACTIONS)}
NOTHING = len(ACTIONS)  # the row of an answer that could not be understood

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

# Per slot, in parts of the level: what is not tended fades. Decay is not felt: neither a change nor a reward holds it.
DECAY: Array = np.array([0.045, 0.04, 0.04, 0.05, 0.045])
NOISE = 0.008  # standard deviation of each meter's noise per step

REWARD_SCALE = 12.0
CRASH_BELOW = 0.1
CRASH_PENALTY = 0.25  # reward lost per meter and step in a crash

# What a line can show: the teacher reads these grids too, so that all it knows stands in the text.
METER_GRID = 0.05
ANOMALY_GRID = 0.04
REWARD_GRID = 0.1
REWARD_LIMIT = 2.5

# V, C, P, S, K of a neutral person in the afternoon. deep_work is RhythmEnv's; of the others it gave signs and sizes.
_EFFECTS: dict[str, tuple[float, float, float, float, float]] = {
    "deep_work": (-0.12, -0.10, 0.18, -0.05, 0.00),
    "admin_work": (-0.05, -0.03, 0.10, -0.02, 0.00),
    "learn": (-0.07, -0.06, 0.15, 0.02, 0.00),
    "sleep": (0.18, 0.08, 0.00, 0.00, 0.00),
    "exercise": (0.12, 0.00, 0.00, 0.05, 0.00),
    "meditate": (0.00, 0.08, 0.00, 0.11, 0.00),
    "family_time": (-0.05, 0.00, 0.00, 0.05, 0.14),
    "socialize": (-0.06, 0.00, 0.00, 0.04, 0.14),
    "me_time": (0.05, 0.06, 0.00, 0.08, 0.00),
    "binge_watch": (0.05, -0.05, 0.00, 0.08, 0.00),
}
_WORK = ("deep_work", "admin_work", "learn")
# How far a slot changes what comes out of work, and how well one sleeps in it.
_WORK_BY_SLOT = (1.0, 1.0, 0.9, 0.7)
_SLEEP_BY_SLOT = (0.6, 0.6, 0.8, 1.25)


def _base() -> Array:
    """(4, 11, 5): slot, action (the last is nothing), meter."""
    table = np.zeros((len(SLOTS), len(ACTIONS) + 1, len(METERS)))
    for name, row in _EFFECTS.items():
        table[:, ACTION_INDEX[name]] = row
    for slot in range(len(SLOTS)):
        for name in _WORK:
            table[slot, ACTION_INDEX[name], PROGRESS] *= _WORK_BY_SLOT[slot]
        table[slot, ACTION_INDEX["sleep"]] *= _SLEEP_BY_SLOT[slot]
    return table


BASE: Array = _base()

# (modifier, action) -> meter letter and change at modifier 1. Persons live in modifiers from -1 to 1, 0 is neutral.
_CELLS: tuple[tuple[str, str, str, float], ...] = (
    ("social_energy_cost", "socialize", "V", -0.15),
    ("social_energy_cost", "family_time", "V", -0.12),
    ("social_warmth", "socialize", "S", 0.15),
    ("social_warmth", "socialize", "K", 0.15),
    ("social_warmth", "family_time", "S", 0.15),
    ("social_warmth", "family_time", "K", 0.10),
    ("work_vitality_recovery", "deep_work", "V", 0.12),
    ("work_vitality_recovery", "admin_work", "V", 0.10),
    ("work_vitality_recovery", "learn", "V", 0.10),
    ("progress_serenity_bonus", "deep_work", "S", 0.18),
    ("progress_serenity_bonus", "admin_work", "S", 0.10),
    ("progress_serenity_bonus", "learn", "S", 0.12),
    ("leisure_guilt", "me_time", "S", -0.18),
    ("leisure_guilt", "binge_watch", "S", -0.18),
    ("solo_recharge", "me_time", "V", 0.15),
    ("solo_recharge", "meditate", "V", 0.12),
    ("solo_recharge", "binge_watch", "V", 0.12),
)
# Peaks bend what comes out of work: share of the slot's gain at modifier 1, and cognition spent.
_PEAKS = (("morning_peak", 0, 1.0), ("night_peak", 2, 0.6), ("night_peak", 3, 1.0))
_PEAK_COGNITION = {"deep_work": 0.08, "admin_work": 0.05, "learn": 0.06}


def _signature() -> Array:
    """(9, 4, 11, 5): the change per unit of each modifier."""
    table = np.zeros((len(MODIFIERS), len(SLOTS), len(ACTIONS) + 1, len(METERS)))
    for modifier, action, letter, size in _CELLS:
        table[MODIFIERS.index(modifier), :, ACTION_INDEX[action], LETTERS.index(letter)] = size
    for modifier, slot, share in _PEAKS:
        for action in _WORK:
            row = table[MODIFIERS.index(modifier), slot, ACTION_INDEX[action]]
            row[PROGRESS] = share * BASE[slot, ACTION_INDEX[action], PROGRESS]
            row[LETTERS.index("C")] = share * _PEAK_COGNITION[action]
    return table


SIGNATURE: Array = _signature()

# Rare things that happen to anybody. A resilient person (event_resilience 1) feels a fifth of them, a fragile one 1.8 times.
_EVENTS: dict[str, tuple[float, tuple[float, float, float, float, float]]] = {
    "none": (0.90, (0.00, 0.00, 0.00, 0.00, 0.00)),
    "cold": (0.02, (-0.14, -0.06, 0.00, -0.04, 0.00)),
    "deadline": (0.02, (-0.04, -0.06, 0.00, -0.12, 0.00)),
    "quarrel": (0.02, (0.00, 0.00, 0.00, -0.10, -0.12)),
    "setback": (0.02, (0.00, 0.00, -0.14, -0.06, 0.00)),
    "good_news": (0.02, (0.06, 0.00, 0.00, 0.12, 0.06)),
}
EVENTS = tuple(_EVENTS)
EVENT_PROBABILITY: Array = np.array([entry[0] for entry in _EVENTS.values()])
EVENT_EFFECTS: Array = np.array([entry[1] for entry in _EVENTS.values()])
RESILIENCE = 0.8
