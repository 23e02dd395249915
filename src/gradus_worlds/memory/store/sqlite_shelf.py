"""A memory's entries, log and index in one SQLite file; the index is FTS5's, the scores are those of :mod:`ranking`."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradus.core import StorageError
from gradus_worlds.memory.store.entries import Entry, Operation
from gradus_worlds.memory.store.ranking import Matches
from gradus_worlds.memory.store.shelf import content_key
from gradus_worlds.memory.text import INDEX, index_tokens

# `words` gets an entry's tokens as one text. The ascii tokenizer folds and splits nothing that they can hold. Its rows are not
# stored a second time, and lengths are counted by bank: each page that a change does not touch is one less to flush.
_TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE entries (id INTEGER PRIMARY KEY, bank TEXT NOT NULL, folded TEXT NOT NULL, body TEXT NOT NULL,
                      checksum INTEGER NOT NULL, UNIQUE (bank, folded));
CREATE TABLE operations (sequence INTEGER PRIMARY KEY, body TEXT NOT NULL, checksum INTEGER NOT NULL);
CREATE VIRTUAL TABLE words USING fts5(tokens, tokenize = 'ascii', content = '', columnsize = 0);
CREATE VIRTUAL TABLE occurrences USING fts5vocab(words, instance);
"""
_PRAGMAS = (
    "page_size = 1024",
    "locking_mode = EXCLUSIVE",
    "journal_mode = WAL",
    "synchronous = FULL",
    "wal_autocheckpoint = 4000",
)
_OCCURRENCES = """SELECT doc, bank, COUNT(*) FROM occurrences JOIN entries ON entries.id = doc WHERE term = ?
                  GROUP BY doc"""


class SqliteShelf:
    """As :class:`~gradus_worlds.memory.store.shelf.Shelf`. One process may hold the file at a time.

    Every commit is flushed to the disk (WAL, synchronous = FULL). Rows carry checksums, which every reading compares.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # No thread check: whoever shares a memory between threads must see to it that they take turns.
        self._database = sqlite3.connect(path, isolation_level=None, timeout=0, check_same_thread=False)
        try:
            for pragma in _PRAGMAS:
                self._database.execute(f"PRAGMA {pragma}")
            with self.transaction():
                if not self._all("SELECT name FROM sqlite_schema LIMIT 1"):
                    for statement in _TABLES.split(";"):
                        self._database.execute(statement)
        except BaseException:
            self._database.close()
            raise

    def close(self) -> None:
        """Bring everything into the one file and let it go."""
        self._database.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What is done inside is kept as a whole, or not at all."""
        if self._database.in_transaction:
            yield
            return
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    def check(self) -> None:
        """Read everything once. Raises StorageError if the file is damaged."""
        problem = self._all("PRAGMA integrity_check(1)")[0][0]
        if problem != "ok":
            raise self._damaged(problem)
        _ = self.entries, self.operations

    def fact(self, name: str, default: str) -> str:
        """A value that was kept by :meth:`keep_fact`."""
        rows = self._all("SELECT value FROM facts WHERE name = ?", name)
        return rows[0][0] if rows else default

    def keep_fact(self, name: str, value: str) -> None:
        """Keep a value by name."""
        self._database.execute("REPLACE INTO facts VALUES (?, ?)", (name, value))

    @property
    def core(self) -> str:
        return json.loads(self.fact("core", '""'))

    @core.setter
    def core(self, text: str) -> None:
        self.keep_fact("core", json.dumps(text))

    @property
    def next_id(self) -> int:
        return self._counts()["next_id"]

    def begin_at(self, first_id: int) -> None:
        """Number the entries of an empty file from ``first_id``."""
        self.keep_fact("counts", json.dumps({"next_id": first_id, "banks": {}}))

    def _counts(self) -> dict[str, Any]:
        """``next_id``, and of each bank the number of its entries and tokens."""
        return json.loads(self.fact("counts", '{"next_id": 1, "banks": {}}'))

    @property
    def sequence(self) -> int:
        return self._all("SELECT coalesce(max(sequence), 0) FROM operations")[0][0]

    @property
    def entries(self) -> dict[int, Entry]:
        rows = self._all("SELECT id, body, checksum FROM entries ORDER BY id")
        return {entry_id: Entry(**self._read(body, checksum)) for entry_id, body, checksum in rows}

    @property
    def operations(self) -> list[Operation]:
        rows = self._all("SELECT body, checksum FROM operations ORDER BY sequence")
        return [Operation.from_json(self._read(body, checksum)) for body, checksum in rows]

    def get(self, entry_id: int) -> Entry | None:
        rows = self._all("SELECT body, checksum FROM entries WHERE id = ?", entry_id)
        return Entry(**self._read(*rows[0])) if rows else None

    def id_of(self, key: tuple[str, str]) -> int | None:
        rows = self._all("SELECT id FROM entries WHERE bank = ? AND folded = ?", *key)
        return rows[0][0] if rows else None

    def put(self, entry: Entry) -> None:
        old = self.get(entry.id)
        if old is not None:
            self._forget(old)
        body, checksum = _written(entry.to_json())
        self._database.execute(
            "INSERT INTO entries VALUES (?, ?, ?, ?, ?)", (entry.id, *content_key(entry), body, checksum)
        )
        self._index(entry)

    def _index(self, entry: Entry) -> None:
        tokens = index_tokens(entry.content)
        self._database.execute("INSERT INTO words (rowid, tokens) VALUES (?, ?)", (entry.id, " ".join(tokens)))
        self._count(entry, 1, len(tokens))

    @property
    def indexed(self) -> bool:
        """Whether the index has the tokens that entries have now."""
        return self.fact("index", "1") == INDEX

    def index_anew(self) -> None:
        """Make the index from the entries: what is indexed by other tokens is not found, and cannot be taken out."""
        self._database.execute("INSERT INTO words (words) VALUES ('delete-all')")
        self.keep_fact("counts", json.dumps({**self._counts(), "banks": {}}))
        for entry in self.entries.values():
            self._index(entry)
        self.keep_fact("index", INDEX)

    def drop(self, entry_id: int) -> None:
        entry = self.get(entry_id)
        assert entry is not None
        self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        tokens = index_tokens(entry.content)
        self._database.execute("DELETE FROM entries WHERE id = ?", (entry.id,))
        self._database.execute(
            "INSERT INTO words (words, rowid, tokens) VALUES ('delete', ?, ?)", (entry.id, " ".join(tokens))
        )
        self._count(entry, -1, -len(tokens))

    def _count(self, entry: Entry, entries: int, tokens: int) -> None:
        counts = self._counts()
        before = counts["banks"].get(entry.bank, (0, 0))
        counts["banks"][entry.bank] = (before[0] + entries, before[1] + tokens)
        counts["next_id"] = max(counts["next_id"], entry.id + 1)
        self.keep_fact("counts", json.dumps(counts))

    def log(self, operation: Operation) -> None:
        row = (operation.sequence, *_written(operation.to_json()))
        self._database.execute("INSERT INTO operations VALUES (?, ?, ?)", row)

    def matches(self, tokens: Sequence[str], banks: Sequence[str]) -> Matches:
        postings: dict[str, dict[int, int]] = {}
        bank_of: dict[int, str] = {}
        for token in set(tokens):
            for entry_id, bank, count in self._all(_OCCURRENCES, token):
                postings.setdefault(token, {})[entry_id] = count
                bank_of[entry_id] = bank
        counted = self._counts()["banks"]
        return Matches(
            postings=postings,
            bank_of=bank_of,
            lengths={bank: counted[bank][1] for bank in banks if bank in counted and counted[bank][1]},
            documents=sum(n for n, _ in counted.values()),
        )

    def _all(self, query: str, *values: Any) -> list[Any]:
        try:
            return self._database.execute(query, values).fetchall()
        except sqlite3.ProgrammingError as error:
            raise StorageError(f"the memory in {self.path.parent} cannot be read: {error}") from error

    def _read(self, body: str, checksum: int) -> dict[str, Any]:
        if zlib.crc32(body.encode()) != checksum:
            raise self._damaged(f"the row {body[:60]!r} is not what was written")
        return json.loads(body)

    def _damaged(self, why: str) -> StorageError:
        return StorageError(
            f"{self.path} is damaged: {why}; copy it from a backup, or import an export into a new folder"
        )


def _written(value: dict[str, Any]) -> tuple[str, int]:
    """(JSON in ASCII, its checksum)."""
    body = json.dumps(value, separators=(",", ":"))
    return body, zlib.crc32(body.encode())
