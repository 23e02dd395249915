"""Talking to a local model in the terminal."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator

from gradus.core import child_seed
from gradus.interop.serving.conversation import conversation_ids
from gradus.interop.serving.generation import ContinuousBatch, Generation, Sampled
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.local.settings import free_sampling

__all__ = ["chat_loop"]


def chat_loop(
    loaded: LoadedModel,
    *,
    ask: Callable[[], str | None],
    show: Callable[[str], None],
    system_prompt: str = "",
    sampling: SamplingConfig | None = None,
    seed: int = 0,
) -> list[dict[str, str]]:
    """Ask, answer, and remember, until ``ask`` gives None. Returns the conversation.

    ``show`` gets the answer in pieces as it is sampled, and a line break at its end. ``/new`` forgets what was said.
    Raises ContextLengthError when the conversation no longer fits.
    """
    opening = [{"role": "system", "content": system_prompt}] if system_prompt else []
    messages = list(opening)
    batch = ContinuousBatch(loaded, rows=1)
    batch.start()
    try:
        turn = 0
        while (said := ask()) is not None:
            if said.strip() == "/new":
                messages = list(opening)
                continue
            messages.append({"role": "user", "content": said})
            answer = ""
            for piece in _answer(batch, messages, sampling or free_sampling(loaded.settings), child_seed(seed, turn)):
                show(piece)
                answer += piece
            show("\n")
            messages.append({"role": "assistant", "content": answer})
            turn += 1
        return messages
    finally:
        batch.close()


def _answer(
    batch: ContinuousBatch, messages: list[dict[str, str]], sampling: SamplingConfig, seed: int
) -> Iterator[str]:
    prompt = conversation_ids(batch.loaded, messages)
    budget = batch.room(prompt, None, sampling.max_new_tokens)
    arrived: queue.SimpleQueue[Sampled | Exception] = queue.SimpleQueue()
    settings = sampling.model_copy(update={"max_new_tokens": budget})
    batch.submit(Generation(prompt=prompt, sampling=settings, seed=seed, tell=arrived.put))
    ids: list[int] = []
    shown = ""
    while True:
        token = arrived.get()
        if isinstance(token, Exception):
            raise token
        if token.finish != "stop":
            ids.append(token.id)
        text = batch.loaded.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if token.finish is not None or not text.endswith("\ufffd"):
            yield text[len(shown) :]
            shown = text
        if token.finish is not None:
            return
