"""The synthetic world: several people, dated sessions, facts told in many ways, and everything that makes memory hard.

Facts change, are contradicted and set right, are taken back, rumoured, joked about and repeated, between small talk. The truth
is known, so that what a memory should do with each chunk is known, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import date, timedelta
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gradus.core import ConfigError, child_rng, child_seed
from gradus_worlds.memory.worlds.phrases import ATTRIBUTES, CHAT, WRAPPERS, Attribute, sayings
from gradus_worlds.memory.worlds.questions import Timeline, Told, ask, day_text
from gradus_worlds.memory.worlds.records import Chunk, Fact, World

FIRST_IDS = (32, 64)  # anywhere, so that who names an entry by its number must read it
# A name or a value is two syllables. To store it, a model must copy it: it cannot have learnt a test word by heart.
SYLLABLES: tuple[str, ...] = tuple(consonant + vowel for consonant in "bdgklmnrst" for vowel in "aeiou")
TEST_SHARE = 5  # one word in five is kept for testing


class SyntheticConfig(BaseModel):
    """Knobs of the synthetic world. Rates are weights of what an event is, where it is possible.

    ``chunks`` per world, ``people``, ``attributes`` each person has; ``events`` per chunk (mean, at most 3), ``chat`` lines of small talk
    per chunk; ``third_person``: share of facts told by somebody else; ``questions`` asked at the end.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    split: str = Field(default="train", pattern="^(train|test)$")
    chunks: int = Field(default=8, ge=1)
    people: int = Field(default=3, ge=3)
    attributes: int = Field(default=4, ge=2, le=len(ATTRIBUTES))
    events: float = Field(default=1.4, ge=0, le=3)
    chat: int = Field(default=2, ge=0, le=50)
    third_person: float = Field(default=0.25, ge=0, le=1)
    tell: float = Field(default=4.0, ge=0)
    change: float = Field(default=4.0, ge=0)
    correct: float = Field(default=0.7, ge=0)
    contradict: float = Field(default=0.4, ge=0)
    retract: float = Field(default=0.7, ge=0)
    rumour: float = Field(default=1.0, ge=0)
    joke: float = Field(default=0.7, ge=0)
    repeat: float = Field(default=0.5, ge=0)
    questions: int = Field(default=10, ge=1)


EVENTS = ("tell", "change", "correct", "contradict", "retract", "rumour", "joke", "repeat")


def synthetic_world(seed: int, **options: Any) -> World:
    """The world of ``seed`` under the given knobs (:class:`SyntheticConfig`)."""
    return _Writer(seed, synthetic_config(options)).world()


def synthetic_config(knobs: Mapping[str, Any]) -> SyntheticConfig:
    """Knobs as a record; a ConfigError says which cannot be used."""
    try:
        return SyntheticConfig(**knobs)
    except ValidationError as error:
        raise ConfigError(f"the synthetic world cannot be made so: {error}") from error


def reserved_words() -> frozenset[str]:
    """Words of the dialogue, which no invented word may be."""
    texts = [*CHAT]
    for attribute in ATTRIBUTES.values():
        texts += [*attribute.cues, attribute.noun, *(text for _, text in sayings(attribute))]
    return frozenset(word.strip(".,?'").lower() for text in texts for word in text.split()) | {"core", "date", "memory"}


@lru_cache(maxsize=2)
def words_of(split: str, reserved: Collection[str] = frozenset()) -> tuple[str, ...]:
    """All words of a split, ``train`` or ``test``, in lower case; words of the dialogue itself (``reserved``) are in neither."""
    test = split == "test"
    return tuple(
        first + second
        for first in SYLLABLES
        for second in SYLLABLES
        if first != second
        and first + second not in reserved
        and (child_seed(0, "lexicon", first + second) % TEST_SHARE == 0) == test
    )


class _Writer:
    """Writes one world, chunk by chunk, keeping the truth as it goes."""

    def __init__(self, seed: int, config: SyntheticConfig) -> None:
        self.seed, self.config = seed, config
        self.rng = child_rng(seed, "memory-synthetic", config.split)
        lexicon = words_of(config.split, _RESERVED)
        names = self.rng.sample(lexicon, config.people)
        self.people = [name.capitalize() for name in names]
        self.spare = [word for word in lexicon if word not in names]
        self.words = iter(self.rng.sample(self.spare, min(len(self.spare), 16 + 4 * config.chunks)))
        nouns = list(ATTRIBUTES)
        self.topics = {
            person: [ATTRIBUTES[noun] for noun in self.rng.sample(nouns, config.attributes)] for person in self.people
        }
        self.timeline = Timeline()

    def world(self) -> World:
        today = date(2030, 1, 1) + timedelta(days=self.rng.randrange(365))
        chunks: list[Chunk] = []
        for index in range(self.config.chunks):
            today += timedelta(days=self.rng.randint(1, 20))
            chunks.append(self._chunk(index, day_text(today)))
        questions = ask(self.timeline, self.people, self.config.questions, self.rng)
        return World(
            name=f"synthetic-{self.config.split}-{self.seed}",
            chunks=tuple(chunks),
            questions=tuple(questions),
            first_id=self.rng.randint(*FIRST_IDS),
        )

    def _chunk(self, index: int, today: str) -> Chunk:
        speakers = self.rng.sample(self.people, 2)
        blocks: list[list[str]] = []
        facts: list[Fact] = []
        busy: set[tuple[str, str]] = set()
        for _ in range(self._number_of_events()):
            made = self._event(speakers, busy, index, today)
            if made is not None:
                lines, fact = made
                blocks.append(lines)
                facts += [fact] if fact is not None else []
        blocks.extend([self._small_talk(speakers)] for _ in range(self.config.chat))
        self.rng.shuffle(blocks)
        return Chunk(text="\n".join(line for block in blocks for line in block), timestamp=today, facts=tuple(facts))

    def _number_of_events(self) -> int:
        """Binomial over three; at least one as long as nothing is known, so that no world is without a question to answer."""
        drawn = sum(self.rng.random() < self.config.events / 3 for _ in range(3))
        return drawn if self.timeline.current or not self.config.events else max(1, drawn)

    def _event(
        self, speakers: list[str], busy: set[tuple[str, str]], index: int, today: str
    ) -> tuple[list[str], Fact | None] | None:
        weights = {kind: getattr(self.config, kind) for kind in EVENTS}
        if weights["tell"] and not self.timeline.current:
            weights = {"tell": 1.0}
        while any(weights.values()):
            kind = self.rng.choices(list(weights), list(weights.values()))[0]
            slots = [slot for slot in self._slots_for(kind, speakers) if slot not in busy]
            if slots:
                person, noun = self.rng.choice(slots)
                busy.add((person, noun))
                return self._make(kind, person, ATTRIBUTES[noun], speakers, index, today)
            weights[kind] = 0.0
        return None

    def _slots_for(self, kind: str, speakers: list[str]) -> list[tuple[str, str]]:
        """Slots (person, noun) that an event of this kind can be about, given who is talking."""
        anyone = kind in ("tell", "change", "rumour", "repeat") and self.rng.random() < self.config.third_person
        people = self.people if anyone or kind == "rumour" else speakers
        slots = [(person, topic.noun) for person in people for topic in self.topics[person]]
        known = [slot for slot in slots if slot in self.timeline.current]
        if kind in ("change", "correct", "retract", "repeat"):
            return known
        if kind == "tell":
            return [slot for slot in slots if slot not in known]
        return slots

    def _make(
        self, kind: str, person: str, attribute: Attribute, speakers: list[str], index: int, today: str
    ) -> tuple[list[str], Fact | None]:
        slot = (person, attribute.noun)
        told = self.timeline.current.get(slot)
        value = told.value if kind == "repeat" and told else self._value(person, attribute)
        if kind == "contradict":
            lines = self._contradiction(person, attribute, speakers, told.value if told else value)
            value = told.value if told else value
        else:
            lines = [self._line(kind, person, attribute, value, speakers)]
        self.timeline.spoken(attribute.noun, value)
        if kind in ("rumour", "joke", "repeat") or (kind == "contradict" and told):
            return lines, None
        new = None if kind == "retract" else Told(value=value, since=today, chunk=index, text=lines[-1])
        self.timeline.set(slot, new, changed=kind == "change")
        return lines, Fact(value=new.value if new else None, slot=self.timeline.slot(person, attribute))

    def _line(self, kind: str, person: str, attribute: Attribute, value: str, speakers: list[str]) -> str:
        voices = WRAPPERS[kind]
        mine = (
            person in speakers
            and "mine" in voices
            and ("theirs" not in voices or self.rng.random() >= self.config.third_person)
        )
        texts = list(voices["mine" if mine else "theirs"])
        if kind == "tell":
            texts += attribute.mine if mine else attribute.theirs
        speaker = person if mine else self.rng.choice([name for name in speakers if name != person])
        return f"{speaker}: " + self.rng.choice(texts).format(n=person, v=value, a=attribute.noun)

    def _contradiction(self, person: str, attribute: Attribute, speakers: list[str], true: str) -> list[str]:
        """Somebody says something false of a person who is there and sets it right at once."""
        false = self._value(person, attribute, but=true)
        self.timeline.spoken(attribute.noun, false)
        other = next(name for name in speakers if name != person)
        texts = (*WRAPPERS["tell"]["theirs"], *attribute.theirs)
        wrong = f"{other}: " + self.rng.choice(texts).format(n=person, v=false, a=attribute.noun)
        return [wrong, self._line("correct", person, attribute, true, speakers)]

    def _value(self, person: str, attribute: Attribute, *, but: str | None = None) -> str:
        """A value that the slot does not hold, and not ``but``."""
        if attribute.noun == "friend":
            told = self.timeline.current.get((person, "friend"))
            taken = {person, but, told.value if told else None}
            return self.rng.choice([name for name in self.people if name not in taken])
        word = next(self.words, None) or self.rng.choice(self.spare)
        return word.capitalize() if attribute.proper else word

    def _small_talk(self, speakers: list[str]) -> str:
        speaker, other = self.rng.sample(speakers, 2)
        text = self.rng.choice(CHAT)
        word = self.rng.choice(self.spare) if "{w}" in text else ""
        return f"{speaker}: " + text.format(n=other, w=word)


_RESERVED = reserved_words()
