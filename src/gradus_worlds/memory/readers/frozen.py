"""The reader that answers in its own words: the entry that fits best, or a frozen language model.

One of the two answers `gradus memory ask` and stands as ``reader`` beside ``strict`` in every evaluation. A language model is also what
the reward counts.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, ValidationError

from gradus.core import ConfigError, Policy, PolicyError, read_text, without_thoughts
from gradus.core.kept import KeptAnswers, content_key, is_drawn
from gradus_worlds.memory.readers.reading import Notes, Reading, ShownText, judge, judge_text, search_notes
from gradus_worlds.memory.store.index import weight_shares
from gradus_worlds.memory.store.memory import Memory
from gradus_worlds.memory.text import index_tokens, normalize, token_counts
from gradus_worlds.memory.worlds.records import UNKNOWN, Question

MARGIN = 0.25  # of the question's weight: the names of speakers do not reach it, one rare word of three does
REMOTE = "remote:"
_PROMPT = (
    "Answer the question from the memory alone, in as few words as possible, without a sentence around it. "
    f"If the memory does not say, answer: {UNKNOWN}"
)
_NO_ANSWER = (UNKNOWN, "i do not know", "i don t know")


@dataclass(frozen=True, kw_only=True)
class Answered:
    """``answer`` is ``unknown`` if the memory does not say. ``why``: how it was read. ``notes``: what the reader was shown.

    ``error`` says why there is no answer. ``agrees``: a second answer to the same question was the same; None if it was asked once.
    """

    answer: str
    why: str
    notes: Notes = ()
    error: str | None = None
    agrees: bool | None = None

    def reading(self, question: Question) -> Reading:
        """The answer as judged by the gold answers."""
        if normalize(self.answer).startswith(_NO_ANSWER):
            return judge(question, UNKNOWN, self.why, self.notes)
        return judge_text(question, self.answer, self.why, self.notes)


Reader = Callable[[Memory, Sequence[str]], list[Answered]]
"""From a memory and questions to an answer each."""


def best_entries(memory: Memory, questions: Sequence[str]) -> list[Answered]:
    """Answers each question with the entry that has most of the weight of its words; with nothing below a margin."""
    return [_best_entry(memory, question) for question in questions]


def _best_entry(memory: Memory, question: str) -> Answered:
    texts = [ShownText(id=entry.id, text=entry.content, timestamp=entry.timestamp) for entry in memory.entries.values()]
    if memory.core:
        texts.append(ShownText(id=None, text=memory.core))
    documents = {place: token_counts(note.text) for place, note in enumerate(texts)}
    shares = weight_shares(documents, index_tokens(question))
    # The newer one first of two that fit as well, and the core behind all entries.
    order = sorted(shares, key=lambda place: (-shares[place], texts[place].id is None, -place))
    notes = [texts[place] for place in order[:5] if shares[place] >= MARGIN]
    if not notes:
        return Answered(answer=UNKNOWN, why="no entry has enough of the question's words")
    return Answered(answer=notes[0].text, why="the entry that fits best", notes=notes)


class ReaderConfig(BaseModel):
    """How a language model reads a memory."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(description="A model folder, a GGUF file, or remote:MODEL behind any OpenAI-compatible server.")
    entries: int = Field(default=10, ge=1, description="Entries that it is shown with a question.")
    max_tokens: int = Field(default=48, ge=1, description="Longest answer; thoughts count too.")
    recheck: float = Field(
        default=0.1, ge=0, le=1, description="Share of questions that a server is asked twice, to measure its noise."
    )
    cache: str | None = Field(default=None, description="A file that keeps answers by their content.")
    base_url: str | None = Field(default=None, description="The server; OPENAI_BASE_URL if unset.")
    concurrency: int = Field(default=8, ge=1, description="Requests at once.")
    price: tuple[NonNegativeFloat, NonNegativeFloat] | None = Field(
        default=None, description="US dollars of a million prompt tokens, and of a million completion tokens."
    )
    budget: float | None = Field(default=None, gt=0, description="US dollars after which nothing more is asked.")


class Prompt(NamedTuple):
    """One request: the text, and 1 for the second time that it is asked."""

    text: str
    sample: int


class ModelReader:
    """A frozen language model that sees the question and what the two-layer search brings back."""

    def __init__(self, config: ReaderConfig) -> None:
        self.config = config
        self.is_remote = config.model.startswith(REMOTE)
        if config.budget is not None and config.price is None:
            raise ConfigError(
                "a reader's budget needs price = [dollars per million prompt tokens, and completion tokens]"
            )
        self._kept = KeptAnswers(config.cache, "answer")

    @cached_property
    def policy(self) -> Policy:
        """The model, loaded when it is first asked."""
        from gradus import one_turn
        from gradus.commands.guests import make_policy
        from gradus.core.money import Price

        config = self.config
        row = {"question": "?"}  # an environment lends the model its settings
        spec = one_turn([row], judge=lambda row, text: 0.0, test=[row])
        server = {}
        if self.is_remote:
            price = None if config.price is None else Price(prompt=config.price[0], completion=config.price[1])
            server = {"base_url": config.base_url, "concurrency": config.concurrency, "price": price}
        policy = make_policy(spec, config.model, temperature=0.0, max_new_tokens=config.max_tokens, remote=server)
        usage = getattr(policy, "usage", None)
        if usage is not None:
            usage.account.limit = config.budget
        return policy

    @property
    def servers(self) -> Sequence[Policy]:
        """The policy, if a server is paid for its answers."""
        return [self.policy] if self.is_remote else []

    def __call__(self, memory: Memory, questions: Sequence[str]) -> list[Answered]:
        """Answer each question from what the search finds for it. What was asked before is not asked again."""
        shown = [search_notes(memory, question, entries=self.config.entries) for question in questions]
        texts = [_prompt(question, notes) for question, notes in zip(questions, shown, strict=True)]
        prompts = [Prompt(text, sample) for text in dict.fromkeys(texts) for sample in range(self._times(text))]
        errors = self._ask([prompt for prompt in prompts if self._key(prompt) not in self._kept])
        return [self._answered(text, notes, errors) for text, notes in zip(texts, shown, strict=True)]

    def _times(self, text: str) -> int:
        """Counts how often a question is asked. A local model at temperature 0 only repeats itself."""
        return 1 + (self.is_remote and is_drawn(self._key(Prompt(text, -1)), self.config.recheck))

    def _ask(self, prompts: Sequence[Prompt]) -> dict[Prompt, str]:
        """Ask, and keep what was answered; returns the errors of those without an answer."""
        from gradus.commands.guests import ask_policy

        if not prompts:
            return {}
        try:
            keys = [(prompt.text, prompt.sample) for prompt in prompts]
            actions = ask_policy(self.policy, [prompt.text for prompt in prompts], system_prompt=_PROMPT, keys=keys)
        except PolicyError as error:
            return dict.fromkeys(prompts, str(error))
        errors: dict[Prompt, str] = {}
        for prompt, action in zip(prompts, actions, strict=True):
            if action.failure is None:
                lines = without_thoughts(action.text).strip().splitlines()
                self._kept.keep(self._key(prompt), lines[0].strip() if lines else UNKNOWN)
            else:
                errors[prompt] = action.failure.message
        return errors

    def _answered(self, text: str, notes: Notes, errors: dict[Prompt, str]) -> Answered:
        first, again = Prompt(text, 0), Prompt(text, 1)
        if first in errors:
            error = f"the reader {self.config.model} gave no answer: {errors[first]}"
            return Answered(answer="", why=error, notes=notes, error=error)
        answer = self._kept[self._key(first)]
        second = self._kept.get(self._key(again)) if self._times(text) > 1 else None
        agrees = None if second is None else normalize(second) == normalize(answer)
        return Answered(answer=answer, why=f"{self.config.model} read {len(notes)} texts", notes=notes, agrees=agrees)

    def _key(self, prompt: Prompt) -> str:
        config = self.config
        return content_key([config.model, self._changed, config.base_url, config.max_tokens, _PROMPT, prompt])

    @cached_property
    def _changed(self) -> int:
        """When a local model was last written: other weights give other answers."""
        folder = Path(self.config.model).expanduser()
        files = [folder, *folder.rglob("*.safetensors")] if folder.exists() else []
        return max((file.stat().st_mtime_ns for file in files), default=0)


def _prompt(question: str, notes: Notes) -> str:
    listed = "\n".join(f"- [{note.timestamp or 'no date'}] {note.text}" for note in notes) or "- (nothing)"
    return f"Memory:\n{listed}\n\nQuestion: {question}"


def model_reader(name: str) -> ModelReader:
    """The reader of a name: a model folder, a GGUF file, ``remote:MODEL``, or a TOML file with the fields of :class:`ReaderConfig`.

    Raises ConfigError.
    """
    config = ReaderConfig(model=name)
    if name.endswith(".toml"):
        try:
            config = ReaderConfig.model_validate(tomllib.loads(read_text(Path(name))))
        except (ValidationError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{name} is no reader: {error}") from error
    server = config.base_url or os.environ.get("OPENAI_BASE_URL")
    return _reader_of(config.model_copy(update={"base_url": server}))


@lru_cache(maxsize=4)
def _reader_of(config: ReaderConfig) -> ModelReader:
    """One reader for all that name it: its model is loaded once, and its budget is that of the process."""
    return ModelReader(config)
