"""What objects of this session are called that no file holds: rows, environments, reward functions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class SessionNames(Generic[T]):
    """Name -> object. What a thread named itself comes first, so that runs in several threads do not take each other's; then
    what was named last.

    >>> names = SessionNames()
    >>> names["rows"] = [1]
    >>> names.get("rows"), names.get("others"), list(names)
    ([1], None, ['rows'])
    """

    def __init__(self) -> None:
        self._last: dict[str, T] = {}
        self._own = threading.local()

    def __setitem__(self, name: str, value: T) -> None:
        self._last[name] = value
        self._mine()[name] = value

    def get(self, name: str) -> T | None:
        """What this thread calls so, or whoever named it last; None if nobody did."""
        return self._mine().get(name, self._last.get(name))

    def _mine(self) -> dict[str, T]:
        named: dict[str, T] = vars(self._own)
        return named

    def __contains__(self, name: str) -> bool:
        return name in self._last

    def __iter__(self) -> Iterator[str]:
        return iter([*self._last])
