"""`gradus memory`: an agent reads one's own text, keeps a memory of it on disk, and answers questions from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gradus.commands.guests import (
    Command,
    Json,
    Temperature,
    make_policy,
    next_command,
    note,
    path_text,
    print_json,
    printable,
)
from gradus.core import Condition, ConfigError, EnvironmentFault, EnvironmentSpec, Grader

if TYPE_CHECKING:
    from gradus_worlds.memory.learning import OwnText
    from gradus_worlds.memory.readers.asking import Answered
    from gradus_worlds.memory.tools.running import CallResult

app = typer.Typer(help="Let an agent keep a memory of your text, and ask it.", no_args_is_help=True)

_AGENT = typer.Argument(
    ..., help="A run folder, a model folder, remote:MODEL, or a policy of the memory environment, such as append-only."
)
_MEMORY = typer.Option(None, "--memory", help="The memory's folder; `memory` in the agent's folder otherwise.")
_REMOTE = "remote:"


@app.command(cls=Command)
def learn(
    agent: str = _AGENT,
    file: Path = typer.Argument(..., help="Your text (.txt, .md), or .jsonl with a chunk {text, timestamp?} a line."),
    memory: Path | None = _MEMORY,
    chunk_words: int = typer.Option(80, min=10, help="Words of a chunk at most; a blank line ends one, too."),
    temperature: Temperature = None,
    seed: int = typer.Option(0, "--seed", help="Seed of the agent's answers."),
) -> None:
    """Let an agent read your text and keep a memory of it; the same command goes on where it was stopped."""
    learned = learn_text(
        agent, file, memory=memory, chunk_words=chunk_words, temperature=temperature, seed=seed, tell=_tell
    )
    typer.echo(
        f"{learned.read} of {learned.chunks} chunks read ({learned.before} before), {learned.calls} calls, {learned.refused} refused; "
        f"{learned.entries} entries in {learned.memory}"
    )
    if learned.problem:
        raise EnvironmentFault(
            f"the agent stopped: {learned.problem}; the same command goes on after what was read. A chunk that is too long for the model "
            f"gets shorter with a --chunk-words below {chunk_words}"
        )
    next_command("memory", "ask", agent, "...", *(["--memory", memory] if memory else []))


def _tell(read: int, chunks: int, results: Sequence[CallResult]) -> None:
    """One line for each chunk: what became of its calls."""
    for result in results:
        done = result.content or (f"entry {result.entry_id}" if result.entry_id is not None else "")
        said = f"{result.name.removeprefix('memory_')} {done}" if result.ok else f"refused: {result.message}"
        typer.echo(f"chunk {read} of {chunks}: {printable(said.strip())}")


@app.command(cls=Command)
def ask(
    agent: str = _AGENT,
    question: str = typer.Argument(..., help="Your question."),
    memory: Path | None = _MEMORY,
    reader: str | None = typer.Option(
        None, "--reader", help="remote:MODEL answers from the memory; without it the entries that fit best are printed."
    ),
    json_file: Json = None,
) -> None:
    """Answer a question from what an agent kept: the entry that fits best, or what a language model makes of the entries."""
    answered = ask_memory(agent, question, memory=memory, reader=reader)
    if not print_json(answered.to_json(), json_file):
        return
    typer.echo(printable(answered.answer))
    note(answered.why)
    for each in answered.notes:
        note(
            f"  {'core' if each.id is None else each.id}  {each.text}{f'  (since {each.timestamp})' if each.timestamp else ''}"
        )
    next_command("memory", "show", memory_of(agent, memory))


@app.command(cls=Command)
def show(folder: Path = typer.Argument(..., help="The memory's folder."), json_file: Json = None) -> None:
    """Show the core and all entries."""
    from rich.table import Table
    from rich.text import Text

    from gradus.core.terminal import Terminal
    from gradus_worlds.memory.store.durable import DurableMemory

    with DurableMemory(folder, create=False) as memory:
        state = memory.state()
    if not print_json(state, json_file):
        return
    if state["core"]:
        typer.echo(printable(f"core: {state['core']}") + "\n")
    table = Table("id", "category", "content", "since", box=None, header_style="bold")
    for entry in state["entries"]:
        cells = (entry["id"], entry["bank"], entry["content"], entry["timestamp"] or "")
        table.add_row(*(Text(str(cell)) for cell in cells))  # brackets in what was kept are not markup
    Terminal().print(table)


@dataclass(frozen=True, kw_only=True)
class Learned:
    """The result of reading a text. ``problem``: why the agent stopped before its end; the same call goes on there."""

    memory: Path
    read: int
    chunks: int
    before: int
    calls: int
    refused: int
    entries: int
    problem: str | None = None


def learn_text(
    agent: str | Path,
    file: str | Path,
    *,
    memory: str | Path | None = None,
    chunk_words: int = 80,
    temperature: float | None = None,
    seed: int = 0,
    tell: Callable[[int, int, Sequence[CallResult]], None] | None = None,
) -> Learned:
    """Let an agent read a text and keep a memory of it. What it has read already is not read again.

    ``agent``: a run folder, a model folder, ``remote:MODEL``, or a policy that comes with the memory environment. ``memory``: its
    folder; ``memory`` inside the agent's folder by default. ``tell`` gets (chunks read, all, what became of the last calls).
    """
    from gradus import roll_out
    from gradus_worlds.memory.learning import FIRST_ID, OwnText, read_chunks
    from gradus_worlds.memory.policies import scripted_policies
    from gradus_worlds.memory.spec import load
    from gradus_worlds.memory.store.durable import DurableMemory

    chunks = read_chunks(Path(file), chunk_words)
    folder = memory_of(agent, memory)
    spec = load()
    # The synthetic worlds' append-only reads their grammar alone; of any other text it would keep nothing.
    spec = replace(spec, policies={**spec.policies, "append-only": scripted_policies()["append-only"]})
    policy = make_policy(spec, path_text("agent", agent), temperature=temperature)
    with DurableMemory(folder, first_id=FIRST_ID) as kept:
        text = OwnText(kept, chunks, tell)
        before, problem = text.read, None
        if text.unread:
            (episode,) = roll_out(_own(spec, text), policy, episodes=1, condition="own", seed=seed).episodes
            failure = episode.failure
            problem = f"{failure.stage}: {failure.type}: {failure.message}" if failure else None
        return Learned(
            memory=folder,
            read=text.read,
            chunks=len(chunks),
            before=before,
            calls=len(text.results),
            refused=sum(not each.ok for each in text.results),
            entries=len(kept.entries),
            problem=problem,
        )


def _own(spec: EnvironmentSpec, text: OwnText) -> EnvironmentSpec:
    """The environment of one's own text: one episode, of which nothing is asked, so nothing is paid."""
    nothing = Grader(name="nothing", compute=lambda episodes: [None] * len(episodes))
    own = Condition(name="own", seeds=(0,), summary="your text")
    return replace(
        spec,
        make=lambda: text,
        max_turns=len(text.unread),
        metrics=None,
        graders={"nothing": nothing},
        default_grader="nothing",
        conditions={"own": own},
    )


def ask_memory(
    agent: str | Path, question: str, *, memory: str | Path | None = None, reader: str | None = None
) -> Answered:
    """Answer a question from a memory alone. ``agent`` and ``memory`` as for :func:`learn_text`.

    ``reader``: ``remote:MODEL`` for a language model, the default if the agent is one. Without it the entry that fits best is the answer.
    """
    from gradus_worlds.memory.readers.asking import answer
    from gradus_worlds.memory.readers.remote import remote_chat
    from gradus_worlds.memory.store.durable import DurableMemory

    chosen = reader or (path_text("agent", agent) if str(agent).startswith(_REMOTE) else None)
    model = (chosen or "").removeprefix(_REMOTE)
    if chosen is not None and model in ("", chosen):
        raise ConfigError(f"expected remote:MODEL as the reader, got {chosen!r}")
    with DurableMemory(memory_of(agent, memory), create=False) as kept:
        return answer(kept, question, remote_chat(model) if model else None)


def memory_of(agent: str | Path, memory: str | Path | None = None) -> Path:
    """The folder of an agent's memory: the one that was given, or ``memory`` inside the agent's own folder."""
    if memory is not None:
        return Path(memory)
    if Path(agent).is_dir():
        return Path(agent) / "memory"
    raise ConfigError(f"{agent} is not a folder that can hold a memory; say with --memory FOLDER where it is kept")
