"""Answers that were paid for once: kept by the content of what was asked, in a file if one is named."""

from __future__ import annotations

import json
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from gradus.core.files import read_text
from gradus.core.values import JsonDict


def content_key(content: object) -> str:
    """Return a name of a request by all that its answer depends on.

    >>> content_key(["model", "question", 0]) == content_key(["model", "question", 1])
    False
    """
    return blake2b(json.dumps(content, default=str).encode(), digest_size=16).hexdigest()


def is_drawn(key: str, share: float) -> bool:
    """Say whether a key is among a ``share`` of all keys; by its content, so that a resumed run draws the same ones."""
    return int(key[:8], 16) / 2**32 < share


class AnswerCache(JsonDict):
    """Answers by key, and the file of JSON lines that keeps them, each line with ``key`` and the answer as ``field``."""

    def __init__(self, file: str | None, field: str) -> None:
        super().__init__()
        self._file = Path(file).expanduser() if file else None
        self._field = field
        if self._file is None or not self._file.exists():
            return
        for line in read_text(self._file).splitlines():
            with suppress(ValueError, KeyError, TypeError):  # a killed process may leave half a line
                record = json.loads(line)
                self[record["key"]] = record[field]

    def keep(self, key: str, answer: Any) -> None:
        """Add an answer, and write it down at once: a run that is killed has paid for it."""
        self[key] = answer
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, self._field: answer}) + "\n")
