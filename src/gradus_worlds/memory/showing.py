"""What a policy sees of a chunk: the chunk, the core, and the entries that are related to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradus.core import Observation
from gradus_worlds.memory.store.memory import Hit, Memory
from gradus_worlds.memory.tools.writing import observation_text
from gradus_worlds.memory.worlds.records import Chunk

SHOWN = 6  # related entries, at most


def show_chunk(
    memory: Memory,
    chunk: Chunk,
    related: Sequence[Hit],
    refused: Sequence[str],
    *,
    index: int,
    chunks: int,
    **told: Any,
) -> Observation:
    """Chunk ``index`` of ``chunks``. ``related``: what :meth:`Memory.related` says of it. ``refused``: messages on the last calls."""
    data = {
        "index": index,
        "chunks": chunks,
        "timestamp": chunk.timestamp,
        "chunk": chunk.text,
        "core": memory.core,
        "entries": [{"id": hit.entry.id, "bank": hit.entry.bank, "content": hit.entry.content} for hit in related],
        "banks": list(memory.schema.banks),
        "entry_words": memory.schema.entry_words,
        "refused": list(refused),
    }
    text = observation_text(chunk.timestamp, chunk.text, memory.core, related, refused)
    return Observation(text=text, data=data, restart=True, **told)
