"""Short messages to a home, sorted by what they are about: the sentences that Home Assistant's community wrote for its voice assistant.

``home-assistant-intents`` carries them as templates; every template becomes a few messages here.
"""

from __future__ import annotations

import json
import re
from importlib.resources import files
from random import Random
from typing import Any

from asking import Prompt, asked_by, with_prompted

import gradus

LABELS = {
    "timer": ("HassStartTimer", "HassIncreaseTimer", "HassDecreaseTimer", "HassCancelTimer", "HassPauseTimer", "HassTimerStatus"),
    "light": ("HassLightSet",),
    "heating": ("HassClimateSetTemperature", "HassClimateGetTemperature", "HassClimateSetFanMode"),
    "media": ("HassSetVolume", "HassSetVolumeRelative", "HassMediaNext", "HassMediaPrevious", "HassMediaPause", "HassMediaSearchAndPlay"),
    "list": ("HassListAddItem", "HassListCompleteItem", "HassListRemoveItem", "HassShoppingListAddItem", "HassShoppingListCompleteItem"),
    "cleaning": ("HassVacuumStart", "HassVacuumCleanArea", "HassVacuumReturnToBase", "HassLawnMowerDock", "HassLawnMowerStartMowing"),
}  # fmt: skip
SYSTEM = f"Sort the message into one of: {', '.join(LABELS)}. Reply with that word alone."
_MESSAGES, _TEMPLATES = 120, 60  # of each label at most
_WORDS = {
    "area": "kitchen|bedroom|living room|bathroom|office|garage|hallway|nursery",
    "floor": "first|ground|upper",
    "name": "lamp|fan|speaker|robot|mower|heater",
    "shopping_list_item": "milk|eggs|apples|bread|soap|coffee",
    "todo_list_item": "call mum|pay rent|fix the bike|water the plants",
    "timer_name": "pizza|laundry|tea|workout",
    "timer_command": "lock the door|open the blinds|play some music",
    "search_query": "the Beatles|some jazz|Hey Jude|the morning news",
    "zone": "home|work",
}


class Templates:
    """The English sentences of the package, and their expansion into messages."""

    def __init__(self) -> None:
        data = json.loads((files("home_assistant_intents") / "data" / "en.json").read_text(encoding="utf-8"))
        self._rules, self._lists, self._intents = data["expansion_rules"], data["lists"], data["intents"]

    def of(self, intents: tuple[str, ...]) -> list[str]:
        """The templates of these intents."""
        blocks = [block for intent in intents for block in self._intents[intent]["data"]]
        return [sentence for block in blocks for sentence in block["sentences"]]

    def message(self, template: str, rng: Random) -> str:
        """A message of a template: ``[may be left out]``, ``(one|of|these)``, ``(any;order)``, ``{list}`` and ``<rule>``."""
        text = template
        while match := re.search(r"<(\w+)>|\{([^{}]*)\}|\[([^\[\]()<>{}]*)\]|\(([^\[\]()<>{}]*)\)", text):
            rule, slot, optional, choice = match.groups()
            if rule:
                new = f"({self._rules[rule]})"
            elif slot:
                new = self._value(slot.partition(":")[0], rng)
            elif optional is not None:
                new = f"({optional}|)" if rng.random() < 0.5 else ""
            else:
                new = _one_of(choice, rng)
            text = text[: match.start()] + new + text[match.end() :]
        return " ".join(text.split())

    def _value(self, name: str, rng: Random) -> str:
        if name in _WORDS:
            return rng.choice(_WORDS[name].split("|"))
        entry = self._lists[name]
        if "range" in entry:
            low = max(1, entry["range"]["from"])
            return str(rng.randint(low, max(60, low)))
        return f"({rng.choice(entry['values'])['in']})"


def _one_of(choice: str, rng: Random) -> str:
    """One of the alternatives between bars, or all that stand between semicolons, in any order."""
    parts = rng.choice(choice.split("|")).split(";")
    return " ".join(rng.sample(parts, len(parts)))


def rows() -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Training rows and held-out rows. No message of a held-out template is trained on."""
    made: tuple[list[dict[str, str]], list[dict[str, str]]] = ([], [])
    templates = Templates()
    for label, intents in LABELS.items():
        rng = Random(label)
        sentences = templates.of(intents)
        rng.shuffle(sentences)
        for number in range(_MESSAGES):  # as many of each label; a template comes again if there are too few
            place = number % min(len(sentences), _TEMPLATES)
            row = {"question": templates.message(sentences[place], rng), "answer": label, "template": sentences[place]}
            made[place % 3 == 0].append(row)
    trained = {row["question"] for row in made[0]}
    return made[0], [row for row in made[1] if row["question"] not in trained]


def named(row: Any, text: str) -> float:
    """1 if the text names one subject, and that is the message's."""
    return float(set(re.findall("|".join(LABELS), text.lower())) == {row["answer"]})


_train, _test = rows()
_SHOTS = [(row["question"], row["answer"]) for row in Random(1).sample(_train, 12)]
_shown = "".join(f"\nMessage: {question}\nSubject: {answer}" for question, answer in _SHOTS)
PROMPTS = {  # prompts.py tries them on training tasks
    "examples as turns": Prompt(system=SYSTEM, shots=_SHOTS),
    "examples in the system prompt": Prompt(system=SYSTEM + _shown),
    "no examples": Prompt(system=SYSTEM),
    "which word": Prompt(
        question="{question}\n\nWhich of these words fits this message best: " + ", ".join(LABELS) + "?"
    ),
}
BEST = PROMPTS["examples as turns"]
spec = with_prompted(
    asked_by(gradus.one_turn(_train, ["final_answer"], judge=named, name="messages", test=_test), BEST),
    BEST,
    cluster=lambda episode: episode.outcome["columns"]["template"],
)
