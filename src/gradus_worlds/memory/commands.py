"""`gradus memory`: an agent reads one's own text, keeps a memory of it on disk, and answers questions from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from gradus.commands.guests import Temperature, next_command, note, printable

if TYPE_CHECKING:
    from gradus_worlds.memory.learning import Calls

app = App(name="memory", help="Let an agent keep a memory of your text, and ask it.")

_Agent = Annotated[
    str,
    Parameter(
        help="A run folder, a model folder, remote:MODEL, or a policy of the memory environment, such as append-only."
    ),
]
_Memory = Annotated[Path | None, Parameter(help="The memory's folder; `memory` in the agent's folder otherwise.")]


@app.command
def learn(
    agent: _Agent,
    file: Annotated[Path, Parameter(help="Your text.")],
    *,
    memory: _Memory = None,
    temperature: Temperature = None,
) -> None:
    """Let an agent read your text and keep a memory of it; the same command goes on where it was stopped."""
    from gradus_worlds.memory.learning import learn_text

    text = learn_text(agent, file, memory=memory, temperature=temperature, tell=_tell)
    print(
        f"{text.read} chunks read ({text.before} before), {text.calls} calls, {text.refused} refused; "
        f"{text.entries} entries in {text.memory}"
    )
    next_command("memory", "ask", agent, "...", *(["--memory", memory] if memory else []))


def _tell(read: int, chunks: int, calls: Calls) -> None:
    """One line for each call of a chunk: what became of it."""
    for call in calls:
        message = f"refused: {call['message']}"
        if call["ok"]:
            message = f"{call['name'].removeprefix('memory_')} {call['content'] or ''}"
        print(f"chunk {read} of {chunks}: {printable(message.strip())}")


@app.command
def ask(
    agent: _Agent,
    question: Annotated[str, Parameter(help="Your question.")],
    *,
    memory: _Memory = None,
    reader: Annotated[
        str | None,
        Parameter(
            help="A language model that answers: a model folder, a GGUF file, remote:MODEL, or a TOML file of its settings."
        ),
    ] = None,
) -> None:
    """Answer a question from what an agent kept: the entry that fits best, or what a language model makes of the entries."""
    from gradus_worlds.memory.learning import ask_memory
    from gradus_worlds.memory.worlds.records import UNKNOWN

    reading = ask_memory(agent, question, memory=memory, reader=reader)
    print("I do not know" if reading.answer == UNKNOWN else printable(reading.answer))
    note(reading.why)
    for text in reading.notes:
        since = f"  (since {text.timestamp})" if text.timestamp else ""
        note(f"  {'core' if text.id is None else text.id}  {text.text}{since}")
