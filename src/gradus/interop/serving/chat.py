"""Talking to a local model in the terminal."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from typing import Any

from gradus.core import Message, child_seed
from gradus.interop.serving.generation import ContinuousBatch, Generation, Sampled
from gradus.interop.serving.text import ReplyText, conversation_ids
from gradus.policies.local.conversation import prompt_ids
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.local.settings import free_sampling


def chat_loop(
    loaded: LoadedModel,
    *,
    ask: Callable[[], str | None],
    show: Callable[[str], None],
    system_prompt: str | None = None,
    sampling: SamplingConfig | None = None,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Ask, answer, and remember, until ``ask`` gives None. Returns the conversation.

    ``system_prompt``: None for the one that the model was trained with, empty for none.
    ``show`` gets the answer in pieces as it is sampled, and a line break at its end. ``/new`` forgets what was said.
    Raises ContextLengthError when the conversation no longer fits.
    """
    opening: list[dict[str, Any]] = []
    if system_prompt is not None:
        opening.append({"role": "system", "content": system_prompt})
    messages = list(opening)
    read: list[int] = []  # ids of the conversation so far, its answers as they were sampled
    batch = ContinuousBatch(loaded, rows=1)
    batch.start()
    try:
        tools, turn = loaded.settings.tools, 0
        while (said := ask()) is not None:
            if said.strip() == "/new":
                messages, read = list(opening), []
                continue
            messages.append({"role": "user", "content": said})
            if read:
                renderer, question = loaded.renderer.for_tools(tools), Message(role="user", content=said)
                read += prompt_ids(renderer, "", [question], later=True)
            else:
                read = conversation_ids(loaded, messages, tools)
            answer = _answer(batch, read, sampling or free_sampling(loaded.settings), child_seed(seed, turn), show)
            show("\n")
            messages.append({"role": "assistant", "content": loaded.renderer.decode(answer)})
            read += answer if answer[-1] in loaded.renderer.stop_ids else [*answer, loaded.renderer.stop_id]
            turn += 1
        return messages
    finally:
        batch.close()


def _answer(
    batch: ContinuousBatch, prompt: Sequence[int], sampling: SamplingConfig, seed: int, show: Callable[[str], None]
) -> list[int]:
    """The sampled ids of an answer; ``show`` gets its text in pieces."""
    arrived: queue.SimpleQueue[Sampled | Exception] = queue.SimpleQueue()
    budget = batch.room(prompt, None, sampling.max_new_tokens)
    batch.submit(Generation(prompt=list(prompt), sampling=sampling, budget=budget, seed=seed, tell=arrived.put))
    text = ReplyText(batch.loaded.tokenizer, batch.loaded.renderer)
    while not text.finish:
        token = arrived.get()
        if isinstance(token, Exception):
            raise token
        if piece := text.add(token):
            show(piece)
    return text.ids
