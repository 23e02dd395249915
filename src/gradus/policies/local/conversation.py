"""One episode as a policy read and said it, in token ids, and conversations of messages as the pieces that a policy is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jinja2.exceptions import TemplateError

from gradus.core import Message, Observation, PolicyError, Renderer, Turn
from gradus.core.calls import write_calls
from gradus.policies.local.renderers import ChatRenderer
from gradus.policies.local.tool_renderer import ToolRenderer

Speaker = ChatRenderer | ToolRenderer


@dataclass
class Conversation:
    """The token ids of one episode so far. ``ids``: of the training sequence that the last answer stands in."""

    ids: list[int] = field(default_factory=list[int])
    cut: bool = False  # the last answer lacks a stop token
    _ends: list[tuple[list[int], int, bool]] = field(default_factory=list[tuple[list[int], int, bool]])

    def context(self, renderer: Speaker, system_prompt: str, seen: Observation) -> tuple[tuple[int, ...], bool]:
        """Return the ids that the next answer's prompt adds to :attr:`ids`, and whether it starts anew: then they are the whole prompt.

        An earlier answer of one's own is never tokenized again.
        """
        if not seen.restart and self._ends:
            context = renderer.following(seen.shown)
            # A cut answer has no stop token; the frame needs one, and nobody sampled it: it is context.
            return ((renderer.stop_id, *context) if self.cut else context), False
        if seen.asked is None or seen.asked.after is None:
            return opening_ids(renderer, system_prompt, seen), True
        chain, length, cut = self._ends[seen.asked.after]
        before = [*chain[:length], *((renderer.stop_id,) if cut else ())]
        return (*before, *prompt_ids(renderer, "", seen.messages[seen.asked.known :], later=True)), True

    def add(self, context: Sequence[int], action: Sequence[int], *, restart: bool, cut: bool) -> None:
        """Take down a prompt and its answer."""
        if restart:
            self.ids = list(context)
        else:
            self.ids.extend(context)
        self.ids.extend(action)
        self.cut = cut
        self._ends.append((self.ids, len(self.ids), cut))


def opening_ids(renderer: Renderer, system_prompt: str, seen: Observation | Turn) -> tuple[int, ...]:
    """Return the ids of a whole prompt: of an environment's first observation, or of a conversation that a foreign agent sent."""
    if seen.asked is None or not seen.messages or not isinstance(renderer, Speaker):
        return renderer.first(system_prompt, seen.shown)
    return prompt_ids(renderer, system_prompt, seen.messages)


def prompt_ids(
    renderer: Speaker, system_prompt: str, messages: Sequence[Message], *, later: bool = False
) -> tuple[int, ...]:
    """Return the ids of a conversation up to where the model speaks, in the pieces that a policy is trained on.

    A system message in front takes the place of the system prompt. ``later``: ids of one's own stand before it, and end with an
    answer. What has no such pieces (two users in a row, without tools) is left to the chat template. Raises PolicyError if that cannot
    render it.
    """
    said = list(messages)
    system = said.pop(0).content if said[0].role == "system" else system_prompt
    if not said or said[-1].role == "assistant":
        raise PolicyError("expected a conversation whose last message is the user's or a tool's")
    chat = renderer.chat if isinstance(renderer, ToolRenderer) else renderer
    plain = isinstance(renderer, ChatRenderer)
    if plain and not later and not _in_turn(said):
        if chat.plain:
            raise PolicyError("this model has no chat template: give system, user and assistant in turn")
        try:
            return chat.conversation(system, said)
        except TemplateError as error:
            raise PolicyError(f"the chat template cannot render these messages: {error}") from error
    ids: list[int] = []
    heard: list[Message] = []
    for message in said:
        if message.role != "assistant":
            heard.append(message)
            continue
        ids += [*_heard(renderer, system, heard, later or bool(ids)), *_answered(renderer, message)]
        heard = []
    return (*ids, *_heard(renderer, system, heard, later or bool(ids)))


def _in_turn(said: Sequence[Message]) -> bool:
    return [each.role for each in said] == [("user", "assistant")[place % 2] for place in range(len(said))]


def _heard(renderer: Speaker, system: str, messages: Sequence[Message], later: bool) -> Sequence[int]:
    try:
        one = isinstance(renderer, ChatRenderer) and len(messages) == 1 and messages[0].role == "user"
        said = messages[0].content if one else messages
        return renderer.following(said) if later else renderer.first(system, said)
    except TemplateError as error:
        raise PolicyError(f"the chat template cannot render these messages: {error}") from error


def _answered(renderer: Speaker, message: Message) -> Sequence[int]:
    """Ids of an earlier answer, as training has them. A reply's text begins with what the model said in front of its answer."""
    chat = renderer.chat if isinstance(renderer, ToolRenderer) else renderer
    text = message.content.removeprefix(chat.lead)
    if message.calls:
        text = f"{text}\n{write_calls(message.calls)}".strip()
    return renderer.encode_answer(text)
