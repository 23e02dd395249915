"""Policies that take turns with one place for a model, so that an evaluation holds one model, however many it compares."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gradus.core import EpisodeStart

if TYPE_CHECKING:  # without a model no torch is needed
    from gradus.policies.local.loading import LoadedModel
    from gradus.policies.local.policy import LocalPolicy, LocalSession


class ModelShelf:
    """Place for one model: what is there is let go before another one is loaded."""

    def __init__(self) -> None:
        self._key: Hashable = None
        self._loaded: LoadedModel | None = None

    def take(self, key: Hashable, load: Callable[[], LoadedModel]) -> LoadedModel:
        """The model called ``key``, loaded if it is not the one that is there."""
        if self._loaded is None or key != self._key:
            self._loaded = None
            # Two models at once may not fit into memory.
            gc.collect()  # adapters and their model refer to each other
            self._loaded = load()
            self._key = key
        return self._loaded


class ShelvedPolicy:
    """A :class:`~gradus.policies.local.policy.LocalPolicy` whose model is loaded when it rolls out.

    ``key``: which model; policies with the same key share it. ``make``: what becomes of it. ``system_prompt``: what it reads in place of the
    environment's.
    """

    def __init__(
        self,
        shelf: ModelShelf,
        key: Hashable,
        load: Callable[[], LoadedModel],
        make: Callable[[LoadedModel], LocalPolicy],
        *,
        name: str,
        system_prompt: str | None = None,
    ) -> None:
        self._shelf = shelf
        self._system_prompt = system_prompt
        self._key = key
        self._load = load
        self._make = make
        self.name = name
        self._tokenizer: Any = None

    @property
    def loaded(self) -> LoadedModel:
        """The model, loaded now if another one is on the shelf."""
        return self._shelf.take(self._key, self._load)

    @property
    def tokenizer(self) -> Any:
        """The model's, kept when the model is gone."""
        self._tokenizer = self._tokenizer or self.loaded.tokenizer
        return self._tokenizer

    def start(self, episodes: Sequence[EpisodeStart]) -> LocalSession:
        """Open a session for episodes that are rolled out at once."""
        loaded = self.loaded
        self._tokenizer = loaded.tokenizer
        if self._system_prompt is not None:
            episodes = [replace(episode, system_prompt=self._system_prompt) for episode in episodes]
        return self._make(loaded).start(episodes)
