"""A memory on disk, outside any training: every change is flushed before it is confirmed.

>>> import tempfile
>>> from gradus.commands.memory import DurableMemory
>>> with DurableMemory(tempfile.mkdtemp(), create=True) as memory:
...     entry = memory.insert("values", "prefers tea to coffee")
...     [hit.entry.content for hit in memory.search("tea")]
['prefers tea to coffee']
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradus.commands.given import checked_sampling, path_text
from gradus.core import ConfigError, Policy, Task
from gradus_worlds.memory import DurableMemory, find_schema, import_file, run_calls
from gradus_worlds.memory.learning import CHUNK_WORDS, FIRST_ID, OwnText, read_chunks
from gradus_worlds.memory.policies import scripted_policies
from gradus_worlds.memory.readers.asking import Answered, read_plainly
from gradus_worlds.memory.store.durable import utc_now
from gradus_worlds.memory.tools.running import CallResult

__all__ = [
    "Answered",
    "CallResult",
    "DurableMemory",
    "Learned",
    "ask",
    "find_schema",
    "import_file",
    "learn",
    "memory_of",
    "run_calls",
]

_REMOTE = "remote:"


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What became of a text. ``problem``: why the agent stopped before its end; the same call goes on there.

    ``words`` and ``new_words``: different words of the text, and those of them that the agent's tokenizer spells by letters.
    """

    memory: Path
    read: int
    chunks: int
    before: int
    calls: int
    refused: int
    entries: int
    words: int
    new_words: Sequence[str]
    problem: str | None = None


def learn(
    agent: str | Path,
    file: str | Path,
    *,
    memory: str | Path | None = None,
    chunk_words: int = CHUNK_WORDS,
    temperature: float | None = None,
    seed: int = 0,
    tell: Callable[[int, int, Sequence[CallResult]], None] | None = None,
) -> Learned:
    """Let an agent read a text and keep a memory of it. What it has read already is not read again.

    ``agent``: a run folder, a model folder, ``remote:MODEL``, or a policy that comes with the memory environment. ``memory``: its
    folder; ``memory`` inside the agent's folder by default. ``tell`` gets (chunks read, all, what became of the last calls).
    """
    from dataclasses import replace

    from gradus.commands.environments import load_environment
    from gradus.rollouts import roll_out
    from gradus.runs.policies import make_policy

    chunks = read_chunks(Path(file), chunk_words)
    folder = memory_of(agent, memory)
    spec = load_environment("memory")
    # The synthetic worlds' append-only reads their grammar alone; of any other text it would keep nothing.
    spec = replace(spec, policies={**spec.policies, "append-only": scripted_policies()["append-only"]})
    policy = make_policy(spec, path_text("agent", agent), **checked_sampling({"temperature": temperature}))
    texts: list[OwnText] = []
    counts = [0, 0]

    def heard(read: int, all_chunks: int, results: Sequence[CallResult]) -> None:
        counts[0] += len(results)
        counts[1] += sum(not each.ok for each in results)
        if tell is not None:
            tell(read, all_chunks, results)

    with DurableMemory(folder, clock=lambda: texts[0].today() or utc_now(), first_id=FIRST_ID) as kept:
        text = OwnText(kept, chunks, heard, name=Path(file).name)
        texts.append(text)
        before, problem = len(chunks) - text.unread, None
        if text.unread:
            own = replace(spec, make=lambda: text, max_turns=text.unread, metrics=None)
            task = Task(environment=spec.name, seed=seed, condition="own")
            (episode,) = roll_out(own, policy, [task], seed=seed, key=("learn",)).episodes
            failure = episode.failure
            problem = f"{failure.stage}: {failure.type}: {failure.message}" if failure else None
        written = sorted({word for chunk in chunks for word in chunk.text.split()})
        return Learned(
            memory=folder,
            read=len(chunks) - text.unread,
            chunks=len(chunks),
            before=before,
            calls=counts[0],
            refused=counts[1],
            entries=len(kept.entries),
            words=len({plain for word in written for plain in _letters(word)}),
            new_words=_spelled(policy, written),
            problem=problem,
        )


def ask(agent: str | Path, question: str, *, memory: str | Path | None = None, reader: str | None = None) -> Answered:
    """Answer a question from a memory alone. ``agent`` and ``memory`` as for :func:`learn`.

    ``reader``: ``remote:MODEL`` for a language model (the default if the agent is one), ``rule`` for a rule that looks for an entry
    with the question's name and one more of its words.
    """
    from gradus_worlds.memory.readers.remote import remote_chat

    chosen = reader or (path_text("agent", agent) if str(agent).startswith(_REMOTE) else "rule")
    if chosen != "rule" and not (chosen.startswith(_REMOTE) and chosen != _REMOTE):
        raise ConfigError(f"expected rule or remote:MODEL as the reader, got {chosen!r}")
    chat = None if chosen == "rule" else remote_chat(chosen.removeprefix(_REMOTE))
    with DurableMemory(memory_of(agent, memory), create=False) as kept:
        return read_plainly(kept, question, chat)


def memory_of(agent: str | Path, memory: str | Path | None = None) -> Path:
    """The folder of an agent's memory: the one that was given, or ``memory`` inside the agent's own folder."""
    if memory is not None:
        return Path(memory)
    if Path(agent).is_dir():
        return Path(agent) / "memory"
    raise ConfigError(f"{agent} is no folder that could hold a memory; say with --memory FOLDER where it is kept")


def _spelled(policy: Policy, words: Sequence[str]) -> list[str]:
    """The words that a local model's tokenizer has neither as a whole nor in syllables, as they are written; none if the policy is another one.

    A mark may be part of a word that it has, as in ``haha.``, so a word is looked at with its marks and named without.
    """
    tokenizer = getattr(getattr(policy, "loaded", None), "tokenizer", None)
    if tokenizer is None:
        return []
    pieces = [[piece.strip("▁Ġ") for piece in tokenizer.tokenize(word)] for word in words]
    spelled = [
        word
        for word, parts in zip(words, pieces, strict=True)
        if any(len(part) == 1 and part.isalpha() for part in parts)
    ]
    return sorted({plain for word in spelled for plain in _letters(word)})


def _letters(word: str) -> list[str]:
    """The stretches of at least two letters in it."""
    return re.findall(r"[^\W\d_]{2,}", word)
