"""One episode as a policy read and said it, in token ids, and conversations of messages as the pieces that a policy is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jinja2.exceptions import TemplateError

from gradus.core import Message, Observation, PolicyError, Turn
from gradus.core.calls import write_calls
from gradus.policies.local.renderers import ChatRenderer
from gradus.policies.local.text_ids import TokenIds
from gradus.policies.local.tool_renderer import Messages, ToolRenderer

Speaker = ChatRenderer | ToolRenderer


@dataclass(frozen=True, kw_only=True)
class _AnswerEnd:
    """Where an answer ends: behind the first ``length`` ids of a training sequence."""

    sequence: list[int]
    length: int
    cut: bool  # it lacks a stop token


@dataclass
class Conversation:
    """The token ids of one episode so far. ``ids``: of the training sequence that the last answer stands in."""

    ids: list[int] = field(default_factory=list[int])
    _ends: list[_AnswerEnd] = field(default_factory=list[_AnswerEnd])

    def context(self, renderer: Speaker, system_prompt: str, observation: Observation) -> tuple[TokenIds, bool]:
        """Return the ids that the next answer's prompt adds to :attr:`ids`, and whether it starts anew: then they are the complete prompt.

        An earlier answer of one's own is never tokenized again.
        """
        if not observation.restart and self._ends:
            context = renderer.following(observation.shown)
            # A cut answer has no stop token; the frame needs one, and nobody sampled it: it is context.
            return ((renderer.stop_id, *context) if self._ends[-1].cut else context), False
        request = observation.asked
        if request is None or request.after is None:
            return opening_ids(renderer, system_prompt, observation), True
        end = self._ends[request.after]
        earlier = (*end.sequence[: end.length], *((renderer.stop_id,) if end.cut else ()))
        return (*earlier, *prompt_ids(renderer, "", observation.messages[request.known :], later=True)), True

    def add(self, context: Sequence[int], action: Sequence[int], *, restart: bool, cut: bool) -> None:
        """Take down a prompt and its answer."""
        if restart:
            self.ids = []
        self.ids += [*context, *action]
        self._ends.append(_AnswerEnd(sequence=self.ids, length=len(self.ids), cut=cut))


def opening_ids(renderer: Speaker, system_prompt: str, seen: Observation | Turn) -> TokenIds:
    """Return the ids of a complete prompt: of an environment's first observation, or of a conversation that a foreign agent sent."""
    if seen.asked is None or not seen.messages:
        return renderer.first(system_prompt, seen.shown)
    return prompt_ids(renderer, system_prompt, seen.messages)


def prompt_ids(renderer: Speaker, system_prompt: str, messages: Messages, *, later: bool = False) -> TokenIds:
    """Return the ids of a conversation up to where the model speaks, in the pieces that a policy is trained on.

    A system message in front takes the place of the system prompt. ``later``: ids of one's own stand before it, and end with an
    answer. What has no such pieces (two users in a row, without tools) is left to the chat template. Raises PolicyError if that cannot
    render it.
    """
    turns = list(messages)
    system = turns.pop(0).content if turns[0].role == "system" else system_prompt
    if not turns or turns[-1].role == "assistant":
        raise PolicyError("expected a conversation whose last message is the user's or a tool's")
    try:
        if isinstance(renderer, ChatRenderer) and not later and not _alternate(turns):
            if renderer.plain:
                raise PolicyError("this model has no chat template: give system, user and assistant in turn")
            return renderer.conversation(system, turns)
        ids: list[int] = []
        unanswered: list[Message] = []
        for message in turns:
            if message.role != "assistant":
                unanswered.append(message)
                continue
            ids += _prompt(renderer, system, unanswered, later or bool(ids))
            ids += _answer(renderer, message)
            unanswered = []
        return (*ids, *_prompt(renderer, system, unanswered, later or bool(ids)))
    except TemplateError as error:
        raise PolicyError(f"the chat template cannot render these messages: {error}") from error


def _alternate(messages: Messages) -> bool:
    """Says whether user and assistant speak in turn."""
    roles = [message.role for message in messages]
    return roles == [("user", "assistant")[place % 2] for place in range(len(roles))]


def _prompt(renderer: Speaker, system: str, messages: Messages, later: bool) -> TokenIds:
    content: str | Messages = messages
    if isinstance(renderer, ChatRenderer) and [message.role for message in messages] == ["user"]:
        content = messages[0].content
    return renderer.following(content) if later else renderer.first(system, content)


def _answer(renderer: Speaker, message: Message) -> TokenIds:
    """Ids of an earlier answer, as training has them. A reply's text begins with what the model said in front of its answer."""
    text = message.content.removeprefix(renderer.lead)
    if message.calls:
        text = f"{text}\n{write_calls(message.calls)}".strip()
    return renderer.encode_answer(text)
