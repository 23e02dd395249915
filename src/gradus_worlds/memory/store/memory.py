"""The memory: its schema of banks and limits, a core, entries, the checks on every change, and the log that rebuilds it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gradus.core import GradusError, StorageError, beginning, frozen_record
from gradus_worlds.memory.store.index import BANK_B, ENTRY_B, bm25
from gradus_worlds.memory.text import count_tokens, count_words, index_tokens, token_counts


@frozen_record
class Schema:
    """The banks of a memory and its limits. What is too long is refused."""

    name: str
    # Name -> what belongs there.
    banks: Mapping[str, str]
    # Most words and punctuation marks of the core.
    core_tokens: int = 512
    # Most words of an entry.
    entry_words: int = 48


NINE_BANKS = Schema(
    name="nine-banks",
    banks={
        "sensory_lifestyle": "tastes, food, clothes, habits",
        "culture_entertainment": "music, books, films, sport",
        "cognition_work": "work, study, skills",
        "values": "beliefs, causes, aims",
        "physiology_health": "body, health, sleep",
        "resource_economic": "money, things owned",
        "social_interpersonal": "family, friends, colleagues",
        "spatiotemporal_context": "places, dates, journeys",
        "psychological_defense": "fears, moods, coping",
    },
)

# The banks of the Mem-alpha paper, arXiv 2509.25911: a core summary, facts, and events in time.
PAPER = Schema(
    name="paper",
    banks={"semantic": "facts that hold regardless of time", "episodic": "events, each with its time"},
)
SCHEMAS: Mapping[str, Schema] = {schema.name: schema for schema in (NINE_BANKS, PAPER)}


@frozen_record
class Entry:
    """One short note of a memory."""

    id: int
    bank: str
    content: str
    # When it holds from, as the dialogue says.
    timestamp: str | None = None
    # Index of the chunk that it came from.
    source: int | None = None
    # The dates of the chunks at which it was inserted and last changed.
    created: str | None = None
    updated: str | None = None


@frozen_record
class Operation:
    """One line of the log."""

    # insert, update, delete or core
    kind: str
    # The date of the chunk at which it happened.
    at: str | None = None
    # The entry as it is behind the operation; before a delete.
    entry: Entry | None = None
    core: str | None = None


_OPERATIONS = TypeAdapter(list[Operation])


class RefusedCall(GradusError):
    """A tool call that was not carried out; the message is what the policy is told."""


@frozen_record
class Hit:
    """An entry that a search found."""

    entry: Entry
    # BM25 over the entries of all banks, so that scores of two banks can be compared.
    score: float


class Memory:
    """A core summary and banks of entries. Ids count up from ``first_id`` and are never used again.

    Every change is one :class:`Operation`; :attr:`operations` rebuild the same memory. A change that
    breaks a rule raises :class:`RefusedCall` and leaves everything as it was.
    """

    def __init__(self, schema: Schema = NINE_BANKS, *, first_id: int = 1) -> None:
        self.schema = schema
        self.first_id = first_id
        self.today: str | None = None  # the date of the chunk that is read; what is written gets it
        self.core = ""
        self.next_id = first_id
        self.entries: dict[int, Entry] = {}  # live ones by id, in the order in which they were inserted
        self.operations: list[Operation] = []

    @property
    def words(self) -> int:
        """Words in the core and all live entries."""
        texts = [self.core, *(entry.content for entry in self.entries.values())]
        return sum(map(count_words, texts))

    def insert(
        self,
        bank: str,
        content: str,
        *,
        timestamp: str | None = None,
        source: int | None = None,
    ) -> Entry:
        """Keep a new entry and return it with its id. White space in ``content`` is evened out, nothing else is changed."""
        self._check_bank(bank)
        content = self._checked_content(content)
        self._check_new(bank, content)
        if timestamp is not None:
            timestamp = _plain(timestamp)
            if len(timestamp) > 64:
                raise RefusedCall(f"a timestamp has at most 64 characters, got {len(timestamp)}")
        entry = Entry(
            id=self.next_id,
            bank=bank,
            content=content,
            timestamp=timestamp or self.today,
            source=source,
            created=self.today,
            updated=self.today,
        )
        self.apply(Operation(kind="insert", at=self.today, entry=entry))
        return entry

    def update(self, bank: str, entry_id: int, content: str, *, source: int | None = None) -> Entry:
        """Write an entry anew; it keeps its id and its creation time, and holds from now on."""
        entry = self._entry(bank, entry_id)
        content = self._checked_content(content)
        if content == entry.content:
            raise RefusedCall(f"entry {entry_id} says exactly that already")
        self._check_new(bank, content, but=entry_id)
        changed = replace(
            entry,
            content=content,
            updated=self.today,
            timestamp=self.today or entry.timestamp,
            source=entry.source if source is None else source,
        )
        self.apply(Operation(kind="update", at=self.today, entry=changed))
        return changed

    def delete(self, bank: str, entry_id: int) -> Entry:
        """Forget an entry and return what it was."""
        entry = self._entry(bank, entry_id)
        self.apply(Operation(kind="delete", at=self.today, entry=entry))
        return entry

    def named(self, bank: str, content: str) -> Entry:
        """The one entry of a bank with this content, or else the one that holds it: a stretch of whole words, in any case."""
        self._check_bank(bank)
        content = _plain(content)
        if not content:
            raise RefusedCall("old_content is empty ; name the entry by words of it")
        exact = self._saying(bank, content)
        if exact is not None:
            return exact
        # Whole words only: "Ann" must not name an entry about Anna.
        stretch = re.compile(rf"(?<!\w){re.escape(content.lower())}(?!\w)")
        holders = [entry for entry in self.entries.values() if stretch.search(entry.content.lower())]
        in_bank = [entry for entry in holders if entry.bank == bank]
        if len(in_bank) > 1:
            ids = " ".join(str(entry.id) for entry in in_bank[:4])
            raise RefusedCall(f"{len(in_bank)} entries hold {beginning(content, 40)} ; name more of one: {ids}")
        if not in_bank:
            elsewhere = f" ; entry {holders[0].id} of {holders[0].bank} does" if holders else ""
            raise RefusedCall(f"no entry of {bank} holds {beginning(content, 40)}{elsewhere}")
        return in_bank[0]

    def set_core(self, content: str) -> str:
        """Write the core anew; an empty text clears it."""
        content = _plain(content)
        tokens = count_tokens(content)
        if tokens > self.schema.core_tokens:
            raise RefusedCall(f"the core has at most {self.schema.core_tokens} tokens, got {tokens}")
        if content == self.core:
            raise RefusedCall("the core says exactly that already")
        self.apply(Operation(kind="core", at=self.today, core=content))
        return content

    def search(self, query: str, *, banks: int = 3, entries: int = 5) -> list[Hit]:
        """Two layers of BM25: the ``banks`` best banks, then the ``entries`` best entries within them, best first."""
        # In the order of the schema, which decides between banks of one score.
        documents: dict[str, Counter[str]] = {bank: Counter() for bank in self.schema.banks}
        for entry in self.entries.values():
            documents[entry.bank].update(token_counts(entry.content))
        # An empty bank would lower the mean length of a bank.
        used = {bank: counts for bank, counts in documents.items() if counts}
        scores = bm25(used, index_tokens(query), BANK_B)
        ranked = sorted((bank for bank in used if bank in scores), key=lambda bank: -scores[bank])
        best = ranked[:banks]
        hits = [hit for hit in self._hits(query) if hit.entry.bank in best]
        return hits[:entries]

    def related(self, text: str, *, entries: int = 5) -> list[Hit]:
        """The entries of any bank that a text is about, best first: what one may want to change after reading it."""
        return self._hits(text)[:entries]

    def _hits(self, query: str) -> list[Hit]:
        """All entries that share a token with the query, best first, the newer one first of two with the same score."""
        documents = {entry.id: token_counts(entry.content) for entry in self.entries.values()}
        scores = bm25(documents, index_tokens(query), ENTRY_B)
        # Rounded, so that the last bits of a sum do not decide which of two entries comes first.
        hits = [Hit(entry=self.entries[number], score=round(score, 5)) for number, score in scores.items()]
        return sorted(hits, key=lambda hit: (-hit.score, -hit.entry.id))

    def apply(self, operation: Operation) -> None:
        """Carry out one operation, whose checks are made, and write it into the log."""
        self.operations.append(operation)
        entry = operation.entry
        if entry is None:
            self.core = operation.core or ""
            return
        if operation.kind == "delete":
            del self.entries[entry.id]
            return
        self.entries[entry.id] = entry
        self.next_id = max(self.next_id, entry.id + 1)

    def state(self) -> dict[str, Any]:
        """Core and live entries as JSON values, without the log."""
        return {"core": self.core, "entries": [dict(vars(entry)) for entry in self.entries.values()]}

    def to_json(self) -> dict[str, Any]:
        """Everything, the log included."""
        return {
            "schema": asdict(self.schema),
            "first_id": self.first_id,
            **self.state(),
            "operations": [asdict(operation) for operation in self.operations],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Memory:
        """The inverse of :meth:`to_json`. The log is replayed and must lead to the entries that stand beside it."""
        try:
            memory = cls(Schema(**data["schema"]), first_id=data["first_id"])
            # Compared below: a file that was edited by hand is refused and not guessed at.
            state = {"core": data["core"], "entries": data["entries"]}
            for operation in _OPERATIONS.validate_python(data["operations"]):
                memory.apply(operation)
        except (KeyError, TypeError, ValidationError) as error:
            raise StorageError(f"a saved memory lacks or garbles {error}") from error
        if memory.state() != state:
            raise StorageError("a saved memory's entries differ from what its log rebuilds; one of the two was edited")
        return memory

    def _check_bank(self, bank: str) -> None:
        if bank not in self.schema.banks:
            raise RefusedCall(f"unknown category {beginning(bank, 40)} ; there are {' '.join(self.schema.banks)}")

    def _entry(self, bank: str, entry_id: int) -> Entry:
        self._check_bank(bank)
        entry = self.entries.get(entry_id)
        if entry is None:
            if self.first_id <= entry_id < self.next_id:
                raise RefusedCall(f"entry {entry_id} was deleted")
            raise RefusedCall(f"there is no entry {entry_id}")
        if entry.bank != bank:
            raise RefusedCall(f"entry {entry_id} is in {entry.bank} , not in {bank}")
        return entry

    def _checked_content(self, content: str) -> str:
        content = _plain(content)
        if not content:
            raise RefusedCall("content is empty")
        words = count_words(content)
        if words > self.schema.entry_words:
            raise RefusedCall(f"an entry has at most {self.schema.entry_words} words, got {words}")
        return content

    def _check_new(self, bank: str, content: str, *, but: int | None = None) -> None:
        twin = self._saying(bank, content)
        if twin is not None and twin.id != but:
            raise RefusedCall(f"entry {twin.id} says that already")

    def _saying(self, bank: str, content: str) -> Entry | None:
        """The entry of a bank with this content, in any case."""
        folded = content.casefold()
        for entry in self.entries.values():
            if entry.bank == bank and entry.content.casefold() == folded:
                return entry
        return None


def _plain(text: str) -> str:
    """A text with its white space evened out."""
    return " ".join(text.split())
