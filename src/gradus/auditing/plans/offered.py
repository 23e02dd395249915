"""Answers that an environment itself offers: its own texts are the vocabulary of a policy that cannot read.

A form is what a text marks by brackets or quotes, lists behind a colon, or describes by a JSON schema. Each word of a form may be another
word of its kind that the texts show: a number another number, a letter another letter. What the environment says to such answers is text too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import Any

from gradus.auditing.plans.plan import TurnPolicy
from gradus.core import EnvironmentSpec, Episode, EpisodeStart, Observation, Task, child_rng
from gradus.core.values import Json
from gradus.rollouts import roll_out

_MARKED = re.compile(r"\[[^\[\]\n]{1,30}\]|`([^`\n]{1,30})`|(?<!\w)'([^'\n]{1,30})'(?!\w)|\"([^\"\n]{1,30})\"")
_LISTED = re.compile(r":\s*((?:[\w-]{1,20}(?:,\s*(?:or |and )?| or )){1,20}[\w-]{1,20})")
_SEPARATOR = re.compile(r",\s*(?:or |and )?| or ")
_TOKEN = re.compile(r"\d+|[^\W\d_]+")
_WORD = re.compile(r"[^\W\d_]{2,}")
_LETTER = re.compile(r"\b[^\W\d_]\b")
_NUMBER = re.compile(r"\b\d{1,2}\b")
_FILLED = 24  # answers of one form
_FORMS = 16
_OFFERED = 48
_ROUNDS = 2  # the replies to the first answers show further forms
_NONSENSE = ("", "?!")
_FOLLOWING = 6  # further answers of an episode that begins with one
# Of fields without a list of values: by their kind in JSON Schema.
_VALUES: Mapping[str, Sequence[Any]] = {
    "integer": (0, 1),
    "number": (0, 1),
    "boolean": (True, False),
    "array": ([],),
    "object": ({},),
}


def offered_answers(spec: EnvironmentSpec, *, seed: int) -> list[str]:
    """Returns answers that the environment's texts offer, those that it understands first; none if answers are declared, or a task has one turn.

    An answer is understood if it is valid and its reply is not what nonsense gets.
    """
    declared = spec.language.grammar or spec.audit.random_answers
    if declared or spec.foreign or spec.max_turns < 2:
        return []
    # An environment may call an answer valid and reply that it did not understand.
    episodes = _begun_with(spec, [[text] for text in _NONSENSE], [], seed)
    # Nonsense may also end an episode, with another text than its first refusal.
    refusals = {reply for episode in episodes for turn in episode.turns for reply in _replies(episode, turn.index)}
    answers: list[str] = []
    understood: list[str] = []
    for _ in range(_ROUNDS):
        new = [text for text in answers_in(episodes) if text not in answers]
        answers += new[:_OFFERED]
        rng = child_rng(seed, "offered", len(answers))
        untaken = [text for text in answers if text not in understood]
        rows: list[list[str]] = []
        for text in untaken[:_OFFERED]:
            # Some answers are understood only behind others.
            before = rng.sample(understood, k=min(2, len(understood)))
            rows.append([*before, text])
        episodes += _begun_with(spec, rows, understood, seed)
        taken: set[str] = set()
        for episode in episodes:
            for turn in episode.turns:
                if turn.valid and not refusals & _replies(episode, turn.index):
                    taken.add(turn.action)
        understood = [text for text in answers if text in taken]
    # Another answer of their form may be understood in another state.
    forms = set(map(_form, understood))
    alike = [text for text in answers if _form(text) in forms]
    return list(dict.fromkeys([*understood, *alike] if understood else answers))[:_OFFERED]


def _form(text: str) -> str:
    """Returns an answer with a sign for the kind of each word."""

    def sign(word: re.Match[str]) -> str:
        # One letter is a name, as that of a tower; several are a word.
        return "9" if word[0].isdigit() else "a" * min(2, len(word[0]))

    return _TOKEN.sub(sign, text)


def _begun_with(
    spec: EnvironmentSpec, first: Sequence[Sequence[str]], further: Sequence[str], seed: int
) -> list[Episode]:
    """Rolls out an episode that begins with each row of answers, and goes on with further ones in a random order."""

    def answer(start: EpisodeStart, turn: int, observation: Observation, text: str) -> str:
        begun = first[start.group]
        if turn < len(begun):
            return begun[turn]
        if turn > _FOLLOWING or not further:
            return ""
        return child_rng(seed, *start.key, "offered", turn).choice(further)

    tasks: list[Task] = [spec.train_task(0)] * len(first)
    return roll_out(spec, TurnPolicy(answer, name="offered"), tasks, seed=seed, key=("audit", "offered")).episodes


def _replies(episode: Episode, turn: int) -> set[str]:
    """Returns what was shown after a turn: as it stands, without the answer that it repeats first, and without any of its words."""
    text = episode.final.text if episode.final else ""
    if turn + 1 < len(episode.turns):
        text = episode.turns[turn + 1].observation
    answer = episode.turns[turn].action
    # Replacing nothing would do so between all letters.
    return {text, text.replace(answer, "", 1), text.replace(answer, "")} if answer else {text}


def answers_in(episodes: Iterable[Episode]) -> list[str]:
    """Returns the answers that the texts and tools of episodes offer."""
    texts: list[str] = []
    for episode in episodes:
        texts += [*map(json.dumps, episode.tools), episode.system_prompt]
        texts += [turn.observation for turn in episode.turns]
        texts += [turn.error or "" for turn in episode.turns]
        if episode.final:
            texts.append(episode.final.text)
    return answers_offered(list(dict.fromkeys(texts)))


def answers_offered(texts: Sequence[str]) -> list[str]:
    """Returns what texts describe by a schema, then the forms that they mark or list, as they stand and filled with other words.

    >>> answers_offered(["Type the towers, as in '[A C]'. A: 3 2 1, B:, C:"])[:3]
    ['[A C]', '[A A]', '[A B]']
    """
    everything = "\n".join(texts)
    marked: list[str] = []
    for match in _MARKED.finditer(everything):
        inside = filter(None, match.groups())
        marked.append(next(inside, match[0]))  # brackets belong to the answer, quotes do not
    for match in _LISTED.finditer(everything):
        marked += _SEPARATOR.split(match[1])
    forms = list(dict.fromkeys(marked))[:_FORMS]
    letters = list(dict.fromkeys(_LETTER.findall(everything)))
    words = list(dict.fromkeys(_WORD.findall(" ".join(forms))))
    # One below and one above what is shown: a limit is a place for faults.
    numbers = list(map(int, _NUMBER.findall(everything)))
    lowest = max(0, min(numbers, default=0) - 1)
    digits = list(map(str, range(lowest, max(numbers, default=0) + 2)))
    answers = [*_described(everything), *forms]
    for form in forms:
        answers += _filled(form, letters, words, digits)
    return list(dict.fromkeys(answers))


def _filled(form: str, letters: Sequence[str], words: Sequence[str], digits: Sequence[str]) -> list[str]:
    """Returns a form with other words of the same kind, evenly over all combinations."""
    tokens = _TOKEN.findall(form)
    choices: list[Sequence[str]] = []
    for token in tokens:
        if token.isdigit():
            choices.append(digits)
        elif len(token) == 1:
            choices.append([letter for letter in letters if letter.isupper() == token.isupper()])
        else:
            choices.append([*words, *letters])
    template = _TOKEN.sub("\0", form)
    filled = _evenly(template, choices)
    # Several words may be the names of numbers, as in [row column].
    if len(tokens) > 1 and not any(map(str.isdigit, tokens)):
        filled += _evenly(template, [digits] * len(tokens))
    return filled


def _evenly(template: str, choices: Sequence[Sequence[str]]) -> list[str]:
    """Returns some combinations of the choices, evenly over all, in the places of a template."""
    total = prod(map(len, choices)) if choices else 0
    indices = range(0, total, 1 + total // _FILLED)
    return [_combination(template, choices, index) for index in indices]


def _combination(template: str, choices: Sequence[Sequence[str]], index: int) -> str:
    """Returns the template with the combination of that number, the last place counted first."""
    for values in reversed(choices):
        index, place = divmod(index, len(values))
        template = values[place].join(template.rsplit("\0", 1))
    return template


def _described(text: str) -> list[str]:
    """Returns answers by the JSON schemas in a text: calls of tools, and objects with the fields of an action."""
    answers: list[str] = []
    for match in re.finditer(r"\{", text):
        with suppress(ValueError, AttributeError, TypeError):  # it only looks like a schema
            schema: Any = json.JSONDecoder().raw_decode(text, match.start())[0]
            name = schema.get("name")
            parameters = schema.get("parameters", schema.get("input_schema"))  # of OpenAI's or of Anthropic's tools
            objects = _objects(parameters or schema)
            if isinstance(name, str) and parameters is not None:
                objects = [{"name": name, "arguments": values} for values in objects or [{}]]
            answers += map(json.dumps, objects)
    return answers


def _objects(schema: Json) -> list[Json]:
    """Returns objects that a schema allows, the first with the first value of each field, the next with the second; none without fields."""
    fields: Json = schema.get("properties") or {}
    values: dict[str, Sequence[Any]] = {}
    for name, field in fields.items():
        # Behind a reference stands what pydantic writes for an enumeration.
        name_of_kind = field.get("$ref", "").rpartition("/")[2]
        kind = schema.get("$defs", {}).get(name_of_kind, field)
        values[name] = kind.get("enum") or _VALUES.get(kind.get("type"), ("", name))
    most = min(_FILLED, max(map(len, values.values()), default=0))

    def nth(index: int) -> Json:
        return {name: options[index % len(options)] for name, options in values.items()}

    return list(map(nth, range(most)))
