"""Where a memory keeps its entries: in the process, for an episode. A memory on disk has the same methods over SQLite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from gradus_worlds.memory.store.entries import Entry, Operation
from gradus_worlds.memory.store.ranking import Matches
from gradus_worlds.memory.text import index_tokens


def content_key(entry: Entry) -> tuple[str, str]:
    """What two entries may not share: the bank and the text without case."""
    return entry.bank, entry.content.casefold()


@dataclass(kw_only=True)
class Shelf:
    """Core, live entries, log of operations, and the postings of the entries' tokens."""

    next_id: int = 1
    core: str = ""
    sequence: int = 0
    entries: dict[int, Entry] = field(default_factory=dict[int, Entry])
    operations: list[Operation] = field(default_factory=list[Operation])
    _by_content: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    _postings: dict[str, dict[int, int]] = field(default_factory=dict[str, dict[int, int]])
    _lengths: Counter[str] = field(default_factory=Counter[str])

    def get(self, entry_id: int) -> Entry | None:
        """A live entry."""
        return self.entries.get(entry_id)

    def id_of(self, key: tuple[str, str]) -> int | None:
        """The live entry with this :func:`content_key`."""
        return self._by_content.get(key)

    def put(self, entry: Entry) -> None:
        """Keep an entry, in place of the one with its id."""
        old = self.entries.get(entry.id)
        if old is not None:
            self._forget(old)
        self.entries[entry.id] = entry
        self._by_content[content_key(entry)] = entry.id
        tokens = index_tokens(entry.content)
        for token, count in Counter(tokens).items():
            self._postings.setdefault(token, {})[entry.id] = count
        self._lengths[entry.bank] += len(tokens)
        self.next_id = max(self.next_id, entry.id + 1)

    def drop(self, entry_id: int) -> None:
        """Forget an entry."""
        self._forget(self.entries.pop(entry_id))

    def _forget(self, entry: Entry) -> None:
        self._by_content.pop(content_key(entry), None)
        tokens = index_tokens(entry.content)
        for token in set(tokens):
            del self._postings[token][entry.id]
        self._lengths[entry.bank] -= len(tokens)

    def log(self, operation: Operation) -> None:
        """Note that an operation was carried out."""
        self.sequence = operation.sequence
        self.operations.append(operation)

    def matches(self, tokens: Sequence[str], banks: Sequence[str]) -> Matches:
        """The entries that hold any of ``tokens``."""
        postings = {token: held for token in set(tokens) if (held := self._postings.get(token))}
        return Matches(
            postings=postings,
            bank_of={entry_id: self.entries[entry_id].bank for held in postings.values() for entry_id in held},
            lengths={bank: self._lengths[bank] for bank in banks if self._lengths[bank]},
            documents=len(self.entries),
        )
