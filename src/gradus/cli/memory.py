"""`gradus memory`: keep and query a memory on disk, outside any training."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gradus.commands.guests import Command, Json, Temperature, next_command, note, print_json, problem
from gradus.core import EnvironmentFault
from gradus.core.printing import printable

if TYPE_CHECKING:
    from gradus.commands.memory import CallResult, DurableMemory

app = typer.Typer(
    help="Keep and query a memory on disk: every change is flushed before it is confirmed.", no_args_is_help=True
)

_AGENT = typer.Argument(
    ..., help="A run folder, a model folder, remote:MODEL, or a policy of the memory environment, such as append-only."
)
_MEMORY = typer.Option(None, "--memory", help="The memory's folder; `memory` in the agent's folder otherwise.")
_FOLDER = typer.Argument(..., help="The memory's folder; made at the first change.")
_CATEGORY = typer.Argument(..., help="The bank, such as values; `gradus memory banks` lists them.")
_ID = typer.Argument(..., help="The number of an entry.")
_SCHEMA = typer.Option(None, "--schema", help="Banks of a new memory: nine-banks (default) or paper.")


def _open(folder: Path, schema: str | None = None, *, create: bool = False) -> DurableMemory:
    from gradus.commands.memory import DurableMemory, find_schema

    return DurableMemory(folder, find_schema(schema) if schema else None, create=create)


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
    from gradus.commands.memory import learn as learn_text

    learned = learn_text(
        agent, file, memory=memory, chunk_words=chunk_words, temperature=temperature, seed=seed, tell=_tell
    )
    typer.echo(
        f"{learned.read} of {learned.chunks} chunks read ({learned.before} before), {learned.calls} calls, {learned.refused} refused; "
        f"{learned.entries} entries in {learned.memory}"
    )
    if learned.new_words:
        some = ", ".join(learned.new_words[:8]) + (", ..." if len(learned.new_words) > 8 else "")
        note(
            f"note: {len(learned.new_words)} of {learned.words} different words are new to this model ({some}); it spells them "
            "letter by letter, and what it writes of them may be wrong. Look with `gradus memory show`"
        )
    if learned.problem:
        way_out = "the same command goes on after what was read"
        if "ContextLengthError" in learned.problem:
            way_out = f"give a --chunk-words below {chunk_words}, or cut that chunk if it is a line of a .jsonl file; {way_out}"
        raise EnvironmentFault(f"the agent stopped: {learned.problem}; {way_out}")
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
        None, "--reader", help="Who reads: rule, or remote:MODEL (the default if the agent is one)."
    ),
    json_file: Json = None,
) -> None:
    """Answer a question from what an agent kept, and show the entries that the answer was read from."""
    from gradus.commands.memory import ask as ask_memory
    from gradus.commands.memory import memory_of

    answered = ask_memory(agent, question, memory=memory, reader=reader)
    if _on_one_line(answered.to_json(), json_file):
        return
    typer.echo(printable(answered.answer))
    note(answered.why)
    for each in answered.notes:
        note(
            f"  {'core' if each.id is None else each.id}  {each.text}{f'  (since {each.timestamp})' if each.timestamp else ''}"
        )
    next_command("memory", "show", memory_of(agent, memory))


@app.command(cls=Command)
def insert(
    folder: Path = _FOLDER,
    category: str = _CATEGORY,
    content: str = typer.Argument(..., help="What to remember, at most 48 words."),
    timestamp: str | None = typer.Option(None, help="When it holds from; now by default."),
    importance: float = typer.Option(0.5, help="From 0 to 1."),
    schema: str | None = _SCHEMA,
) -> None:
    """Keep a new entry and print its id."""
    with _open(folder, schema, create=True) as memory:
        typer.echo(memory.insert(category, content, timestamp=timestamp, importance=importance).id)


@app.command(cls=Command)
def update(
    folder: Path = _FOLDER,
    category: str = _CATEGORY,
    entry_id: int = _ID,
    content: str = typer.Argument(..., help="What it says from now on."),
) -> None:
    """Write an entry anew."""
    with _open(folder) as memory:
        typer.echo(printable(memory.update(category, entry_id, content).content))


@app.command(cls=Command)
def delete(folder: Path = _FOLDER, category: str = _CATEGORY, entry_id: int = _ID) -> None:
    """Forget an entry; its id is never used again."""
    with _open(folder) as memory:
        typer.echo(printable(f"deleted: {memory.delete(category, entry_id).content}"))


@app.command(cls=Command)
def core(
    folder: Path = _FOLDER,
    content: str | None = typer.Argument(None, help="The new core, at most 512 tokens; print it if left out."),
    schema: str | None = _SCHEMA,
) -> None:
    """Show or rewrite the core summary."""
    with _open(folder, schema, create=content is not None) as memory:
        typer.echo(printable(memory.core if content is None else memory.set_core(content)))


@app.command(cls=Command)
def call(
    folder: Path = _FOLDER,
    text: str = typer.Argument("-", help="Tool calls as a model writes them; - reads them from standard input."),
    schema: str | None = _SCHEMA,
) -> None:
    """Carry out a model's tool calls; prints one JSON line for each, and exits 1 if one was refused."""
    from gradus.commands.memory import run_calls

    with _open(folder, schema, create=True) as memory:
        results = run_calls(memory, sys.stdin.read() if text == "-" else text)
    for result in results:
        typer.echo(json.dumps(result.to_json()))
    if not all(result.ok for result in results):
        raise typer.Exit(1)


@app.command(cls=Command)
def search(
    folder: Path = _FOLDER,
    query: str = typer.Argument(..., help="What to look for."),
    banks: int = typer.Option(3, min=1, help="Best banks to look into."),
    entries: int = typer.Option(5, min=1, help="Entries to return."),
    json_file: Json = None,
) -> None:
    """Find entries: BM25 over banks, then over the entries within them."""
    with _open(folder) as memory:
        hits = memory.search(query, banks=banks, entries=entries)
    scored = [{**hit.entry.to_json(), "score": hit.score, "bank_score": hit.bank_score} for hit in hits]
    if _on_one_line(scored, json_file):
        return
    _table(
        ("id", "category", "score", "content", "since"),
        [
            (hit.entry.id, hit.entry.bank, f"{hit.score:.2f}", hit.entry.content, hit.entry.timestamp or "")
            for hit in hits
        ],
    )


@app.command(cls=Command)
def show(folder: Path = _FOLDER, json_file: Json = None) -> None:
    """Show the core and all entries."""
    with _open(folder) as memory:
        state = memory.state()
    if _on_one_line(state, json_file):
        return
    if state["core"]:
        typer.echo(printable(f"core: {state['core']}") + "\n")
    rows = [(entry["id"], entry["bank"], entry["content"], entry["timestamp"] or "") for entry in state["entries"]]
    _table(("id", "category", "content", "since"), rows)


@app.command(cls=Command)
def log(
    folder: Path = _FOLDER,
    last: int = typer.Option(0, min=0, help="Only the last so many; 0 for all."),
    json_file: Json = None,
) -> None:
    """Show the operations that made the memory what it is; printed JSON has a line for each."""
    with _open(folder) as memory:
        operations = memory.operations[-last:] if last else memory.operations
    lines = [operation.to_json() for operation in operations]
    if json_file == "-":  # one line an operation
        for line in lines:
            typer.echo(json.dumps(line))
        return
    print_json(lines, json_file)
    rows = [
        (
            operation.sequence,
            operation.at or "",
            operation.kind,
            operation.entry.id if operation.entry else "",
            operation.entry.content if operation.entry else operation.core or "",
        )
        for operation in operations
    ]
    _table(("operation", "at", "kind", "id", "content"), rows)


@app.command("import", cls=Command)
def import_(
    folder: Path = _FOLDER,
    file: Path = typer.Argument(
        ..., help="An exported memory, or JSON lines {category, content, timestamp?, importance?}."
    ),
    schema: str | None = _SCHEMA,
) -> None:
    """Take in entries from a file; what is there already is not taken twice."""
    from gradus.commands.memory import import_file

    with _open(folder, schema, create=True) as memory:
        summary = import_file(memory, file)
    typer.echo(
        f"{summary.inserted} entries taken in, {summary.duplicates} there already, {len(summary.refused)} refused"
    )
    if summary.core_left_out:
        note("note: the file's core is left out, because this memory has one; `gradus memory core` writes it anew")
    for refusal in summary.refused:
        problem(refusal, "yellow")
    if summary.refused:
        raise typer.Exit(1)


@app.command(cls=Command)
def export(
    folder: Path = _FOLDER, file: Path | None = typer.Argument(None, help="Where to; standard output if left out.")
) -> None:
    """Write the memory and its log as one JSON file."""
    with _open(folder) as memory:
        if file is None:
            typer.echo(json.dumps(memory.to_json()))
        else:
            memory.save(file)


@app.command(cls=Command)
def banks(schema: str = typer.Option("nine-banks", "--schema", help="nine-banks or paper.")) -> None:
    """List the banks of a schema."""
    from gradus.commands.memory import find_schema

    _table(("category", "what belongs there"), list(find_schema(schema).banks.items()))


def _on_one_line(value: object, json_file: str | None) -> bool:
    """Print or write JSON if it was asked for; whether it was printed, on one line, in place of what a person reads."""
    if json_file == "-":
        typer.echo(json.dumps(value))
        return True
    print_json(value, json_file)
    return False


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from gradus.core.terminal import Terminal

    table = Table(*columns, box=None, header_style="bold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))  # brackets in what was kept are no markup
    Terminal().print(table)
