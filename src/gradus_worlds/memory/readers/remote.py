"""A chat model behind the OpenAI protocol as the reader: a hosted API, vLLM, llama.cpp, Ollama or `gradus serve`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from gradus.core import ChatOptions, EnvironmentFault
from gradus_worlds.memory.readers.reading import Chat

KEPT = 65_536  # answers; temperature 0 gives the same one again, and many memories show a reader the same notes


def remote_chat(
    model: str,
    *,
    timeout: float = 60.0,
    retries: int = 4,
) -> Chat:
    """A function from messages to what ``model`` answers, at temperature 0 if it takes one; an answer is asked for once and kept.

    The server is that of OPENAI_BASE_URL, which may need no OPENAI_API_KEY. ``timeout``: seconds for an attempt. ``retries``: further attempts after a rate limit, a server's error or a lost connection. What fails for
    good raises EnvironmentFault: that episode has no result, and is not counted as a wrong answer.
    """
    made: list[Any] = []  # the client, once it is needed
    takes = ChatOptions(model)

    def client() -> Any:
        if not made:
            import openai

            key = os.environ.get("OPENAI_API_KEY") or "none"
            made.append(openai.OpenAI(api_key=key, timeout=timeout, max_retries=retries))
        return made[0]

    @lru_cache(maxsize=KEPT)
    def ask(conversation: tuple[tuple[str, str], ...]) -> str:
        import openai

        messages = [{"role": role, "content": content} for role, content in conversation]
        try:
            reply = _create(client(), takes, model=model, messages=messages)
        except (openai.OpenAIError, ValueError) as error:
            raise EnvironmentFault(f"the reader {model!r} gave no answer: {error}") from error
        return _text(model, reply)

    def chat(messages: Sequence[Mapping[str, str]]) -> str:
        return ask(tuple((message["role"], message["content"]) for message in messages))

    return chat


def _create(client: Any, takes: ChatOptions, **asked: Any) -> Any:
    import openai

    while True:
        options = takes.accepted({"temperature": 0})
        try:
            return client.chat.completions.create(**asked, **options)
        except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
            if not takes.learn(options, error):
                raise


def _text(model: str, reply: Any) -> str:
    """Returns what the first choice says; servers that answer 200 with something else are not rare."""
    choices = getattr(reply, "choices", None)
    text = getattr(getattr(choices[0], "message", None), "content", None) if choices else None
    if not isinstance(text, str):
        raise EnvironmentFault(f"expected a chat completion from the reader {model!r}, got {str(reply)[:200]!r}")
    return text
