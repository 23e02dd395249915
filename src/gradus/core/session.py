"""What objects of this session are called that no file holds: rows, environments, reward functions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

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
        self._own: Any = threading.local()

    def __setitem__(self, name: str, value: T) -> None:
        self._last[name] = value
        if not hasattr(self._own, "named"):
            self._own.named = {}
        self._own.named[name] = value

    def get(self, name: str) -> T | None:
        """What this thread calls so, or whoever named it last; None if nobody did."""
        return getattr(self._own, "named", {}).get(name, self._last.get(name))

    def __contains__(self, name: str) -> bool:
        return name in self._last

    def __iter__(self) -> Iterator[str]:
        return iter([*self._last])
