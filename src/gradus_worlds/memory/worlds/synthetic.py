"""The synthetic world: several people, dated sessions, facts told in many ways, and everything that makes memory hard.

Facts change, are contradicted and set right, are taken back, rumoured, joked about and repeated, between small talk. The truth
is known, so that what a memory should do with each chunk is known, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from datetime import date, timedelta
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gradus.core import ConfigError, child_rng, child_seed, frozen_record
from gradus_worlds.memory.worlds.phrases import ATTRIBUTES, CHAT, WRAPPERS, sayings
from gradus_worlds.memory.worlds.questions import HeldValue, Key, Timeline, ask, day_text
from gradus_worlds.memory.worlds.records import Chunk, Evidence, Fact, World

FIRST_IDS = (32, 64)  # anywhere, so that a model that names an entry by its number must read it
# A name or a value is two syllables. To store it, a model must copy it: it cannot have learnt a test word by heart.
SYLLABLES: tuple[str, ...] = tuple(consonant + vowel for consonant in "bdgklmnrst" for vowel in "aeiou")
TEST_SHARE = 5  # one word in five is kept for testing
EVENTS = ("tell", "change", "correct", "contradict", "retract", "rumour", "joke", "repeat")
NO_FACT = ("rumour", "joke", "repeat")  # events that a memory should not keep

Rate = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class SyntheticConfig(BaseModel):
    """Knobs of the synthetic world."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # The words that names and values are made of.
    split: str = Field(default="train", pattern="^(train|test)$")
    # Chunks of a world.
    chunks: int = Field(default=8, ge=1)
    people: int = Field(default=3, ge=3)
    # Attributes of each person.
    attributes: int = Field(default=4, ge=2, le=len(ATTRIBUTES))
    # Events of a chunk, on average.
    events: float = Field(default=1.4, ge=0, le=3)
    # Lines of small talk of a chunk.
    chat: int = Field(default=2, ge=0, le=50)
    # Share of facts that somebody else tells.
    third_person: Share = 0.25
    # Weights of what an event is, where it is possible.
    tell: Rate = 4.0
    change: Rate = 4.0
    correct: Rate = 0.7
    contradict: Rate = 0.4
    retract: Rate = 0.7
    rumour: Rate = 1.0
    joke: Rate = 0.7
    repeat: Rate = 0.5
    # Questions asked at the end.
    questions: int = Field(default=10, ge=1)


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
    texts = [*CHAT, "core", "date", "memory"]
    for attribute in ATTRIBUTES.values():
        texts += [*attribute.cues, attribute.noun]
        texts += [text for _, text in sayings(attribute)]
    words = " ".join(texts).split()
    return frozenset(word.strip(".,?'").lower() for word in words)


@lru_cache(maxsize=2)
def words_of(split: str, reserved: Collection[str] = frozenset()) -> tuple[str, ...]:
    """All words of a split, ``train`` or ``test``, in lower case; words of the dialogue itself (``reserved``) are in neither."""
    invented = [first + second for first in SYLLABLES for second in SYLLABLES if first != second]
    return tuple(word for word in invented if word not in reserved and _split_of(word) == split)


def _split_of(word: str) -> str:
    return "train" if child_seed(0, "lexicon", word) % TEST_SHARE else "test"


@frozen_record
class _Session:
    """One chunk while it is written."""

    index: int
    today: str
    # Who talks.
    speakers: Sequence[str]
    # Slots that were spoken of: a chunk has one event for each.
    busy: set[Key] = field(default_factory=set[Key])
    # What is to be kept.
    facts: list[Fact] = field(default_factory=list[Fact])


class _Writer:
    """Writes one world, chunk by chunk, keeping the truth as it goes."""

    def __init__(self, seed: int, config: SyntheticConfig) -> None:
        self.seed = seed
        self.config = config
        self.rng = child_rng(seed, "memory-synthetic", config.split)
        lexicon = words_of(config.split, _RESERVED)
        names = self.rng.sample(lexicon, config.people)
        self.people = [name.capitalize() for name in names]
        self.spare = [word for word in lexicon if word not in names]
        # New words first: two values of one slot should differ.
        new_words = min(len(self.spare), 16 + 4 * config.chunks)
        self.words = iter(self.rng.sample(self.spare, new_words))
        nouns = list(ATTRIBUTES)
        self.slots: list[Key] = []
        for person in self.people:
            drawn = self.rng.sample(nouns, config.attributes)
            self.slots += [(person, noun) for noun in drawn]
        self.timeline = Timeline()

    def world(self) -> World:
        today = date(2030, 1, 1) + timedelta(days=self.rng.randrange(365))
        chunks: list[Chunk] = []
        for index in range(self.config.chunks):
            today += timedelta(days=self.rng.randint(1, 20))
            speakers = self.rng.sample(self.people, 2)
            chunks.append(self._chunk(_Session(index=index, today=day_text(today), speakers=speakers)))
        questions = ask(self.timeline, self.people, self.config.questions, self.rng)
        return World(
            name=f"synthetic-{self.config.split}-{self.seed}",
            chunks=tuple(chunks),
            questions=tuple(questions),
            first_id=self.rng.randint(*FIRST_IDS),
        )

    def _chunk(self, session: _Session) -> Chunk:
        blocks = [self._event(session) for _ in range(self._number_of_events())]
        blocks = [block for block in blocks if block]
        blocks += [self._small_talk(session) for _ in range(self.config.chat)]
        self.rng.shuffle(blocks)
        return Chunk(text="\n".join(blocks), timestamp=session.today, facts=tuple(session.facts))

    def _number_of_events(self) -> int:
        """Binomial over three; at least one as long as nothing is known, so that no world is without a question to answer."""
        share = self.config.events / 3
        drawn = sum(self.rng.random() < share for _ in range(3))
        # A change or a rumour needs a fact that it is about.
        must_tell = self.config.events > 0 and not self.timeline.current
        return max(1, drawn) if must_tell else drawn

    def _event(self, session: _Session) -> str:
        """The lines of an event of some kind that is possible; an empty text if none is."""
        weights = {kind: getattr(self.config, kind) for kind in EVENTS}
        if weights["tell"] and not self.timeline.current:
            weights = {"tell": 1.0}
        while any(weights.values()):
            # A kind that is not possible now is drawn no more.
            (kind,) = self.rng.choices(list(weights), list(weights.values()))
            slots = [slot for slot in self._slots_for(kind, session) if slot not in session.busy]
            if slots:
                slot = self.rng.choice(slots)
                session.busy.add(slot)
                return self._lines(kind, slot, session)
            weights[kind] = 0.0
        return ""

    def _slots_for(self, kind: str, session: _Session) -> list[Key]:
        """Slots that an event of this kind can be about, given who is talking."""
        of_absent = kind in ("tell", "change", "rumour", "repeat") and self.rng.random() < self.config.third_person
        people = self.people if of_absent or kind == "rumour" else session.speakers
        slots = [slot for person in people for slot in self.slots if slot[0] == person]
        current = self.timeline.current
        # What is changed or taken back must be known, and what is told must be new.
        if kind in ("change", "correct", "retract", "repeat"):
            return [slot for slot in slots if slot in current]
        if kind == "tell":
            return [slot for slot in slots if slot not in current]
        return slots

    def _lines(self, kind: str, slot: Key, session: _Session) -> str:
        """Says what an event says, and keeps the truth and the facts up to date."""
        held = self.timeline.current.get(slot)
        contradicts = kind == "contradict"
        value = held.value if held and kind == "repeat" else self._value(slot)
        # The draw stays, though it is not used: without it the rest of every world would be another.
        if held and contradicts:
            value = held.value
        lines: list[str] = []
        if contradicts:
            lines.append(self._falsehood(slot, value, session))
            kind = "correct"
        lines.append(self._line(kind, slot, value, session))
        self.timeline.spoken(slot, value)
        # A falsehood about what is known is set right at once, so nothing has changed.
        is_unchanged = contradicts and held is not None
        if kind not in NO_FACT and not is_unchanged:
            evidence = Evidence(chunk=session.index, text=lines[-1])
            new = None if kind == "retract" else HeldValue(value=value, since=session.today, evidence=evidence)
            self.timeline.set(slot, new, changed=kind == "change")
            kept = None if new is None else value
            session.facts.append(Fact(value=kept, slot=self.timeline.slot(slot)))
        return "\n".join(lines)

    def _line(self, kind: str, slot: Key, value: str, session: _Session) -> str:
        person, noun = slot
        voices = WRAPPERS[kind]
        mine = person in session.speakers and "mine" in voices
        if mine and "theirs" in voices:
            mine = self.rng.random() >= self.config.third_person
        voice = "mine" if mine else "theirs"
        texts = [*voices[voice]]
        if kind == "tell":
            texts += getattr(ATTRIBUTES[noun], voice)
        others = [name for name in session.speakers if name != person]
        speaker = person if mine else self.rng.choice(others)
        return self._said_by(speaker, texts, slot, value)

    def _falsehood(self, slot: Key, truth: str, session: _Session) -> str:
        """Somebody says something false of a person who is present."""
        person, noun = slot
        value = self._value(slot, but=truth)
        self.timeline.spoken(slot, value)
        speaker = next(name for name in session.speakers if name != person)
        texts = [*WRAPPERS["tell"]["theirs"], *ATTRIBUTES[noun].theirs]
        return self._said_by(speaker, texts, slot, value)

    def _said_by(self, speaker: str, texts: Sequence[str], slot: Key, value: str) -> str:
        person, noun = slot
        text = self.rng.choice(texts).format(n=person, v=value, a=noun)
        return f"{speaker}: {text}"

    def _value(self, slot: Key, *, but: str | None = None) -> str:
        """A value that the slot does not hold, and not ``but``."""
        person, noun = slot
        if noun == "friend":
            held = self.timeline.current.get(slot)
            taken = {person, but, held.value if held else None}
            return self.rng.choice([name for name in self.people if name not in taken])
        # A long world has more values than the new words that were drawn for it.
        word = next(self.words, None) or self.rng.choice(self.spare)
        return word.capitalize() if ATTRIBUTES[noun].proper else word

    def _small_talk(self, session: _Session) -> str:
        speaker, listener = self.rng.sample(session.speakers, 2)
        template = self.rng.choice(CHAT)
        word = self.rng.choice(self.spare) if "{w}" in template else ""
        text = template.format(n=listener, w=word)
        return f"{speaker}: {text}"


_RESERVED = reserved_words()
