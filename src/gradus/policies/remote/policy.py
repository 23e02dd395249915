"""Any chat model behind the OpenAI protocol as a teacher or a policy: a hosted API, vLLM, llama.cpp, Ollama, `gradus serve`."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import openai

from gradus.core import (
    Action,
    ConfigError,
    ContextLengthError,
    EpisodeStart,
    Message,
    PolicyError,
    Request,
    StopReason,
    ToolCall,
    child_seed,
)
from gradus.core.calls import read_message, write_calls
from gradus.core.money import OutOfMoney, Price
from gradus.core.replies import UNREADABLE, bounded_client
from gradus.core.servers import ChatOptions
from gradus.core.values import Json, JsonDict
from gradus.core.waiting import wait_for
from gradus.policies.remote.client import Record, RemoteAnswer, RemoteUsage, brief, call_record, read_answer

PROBE: tuple[Record, ...] = ({"role": "user", "content": "Answer with the word ready."},)


class RemotePolicy:
    """A chat model that answers each observation as one turn of a conversation.

    Args:
        model: its name on the server.
        base_url, api_key: those of OPENAI_BASE_URL and OPENAI_API_KEY if they are None; a server of one's own needs no key.
        concurrency: calls in flight at once.
        retries: further attempts at an answer after a rate limit, a server's error, a lost connection or a timeout, by the
            official client.
        timeout: seconds for one attempt.
        price: US dollars per million tokens; without it costs are None.
        temperature, max_tokens: None leaves them to the server.
        options: sent with every request as they are (``{"reasoning_effort": "low"}``, or ``{"seed": None}`` for none).
        probe: the first ``start`` sends one short request, so that a wrong address, key or model name is one ``PolicyError``
            and not one failure for each episode.

    Each request has a seed, derived from the episode's key and the turn, so that members of a group differ and a repeated run asks
    the same. ``usage`` counts over the policy's life.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        concurrency: int = 8,
        retries: int = 4,
        timeout: float = 120.0,
        price: Price | None = None,
        temperature: float | None = 1.0,
        max_tokens: int | None = 512,
        options: Json | None = None,
        probe: bool = True,
    ) -> None:
        can_answer = bool(model) and (max_tokens is None or max_tokens >= 1)
        if not can_answer or min(concurrency, retries + 1) < 1 or timeout <= 0:
            raise ConfigError(
                "a remote policy needs a model's name, concurrency, timeout and max_tokens above 0, and retries from 0, got "
                f"{model!r}, {concurrency}, {timeout}, {max_tokens} and {retries}"
            )
        self.model = model
        self.name = f"remote:{model}"
        self.base_url = base_url or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
        self.usage = RemoteUsage(price=price)
        self._api_key = api_key or os.environ.get("OPENAI_API_KEY")
        self.concurrency = concurrency
        self._retries = retries
        self._timeout = timeout
        self.patience = timeout * (retries + 1)  # seconds for an answer
        self.options = {"temperature": temperature, "max_tokens": max_tokens, **(options or {})}
        self.takes = ChatOptions(model)
        self._probed = not probe

    def start(self, episodes: Sequence[EpisodeStart]) -> RemoteSession:
        """Open conversations. Raises ``PolicyError`` if the server cannot be reached or refuses."""
        session = RemoteSession(self, self._client(), episodes)
        if self._probed:
            return session
        try:
            session.probe()
        except PolicyError as error:
            session.close()
            raise PolicyError(
                f"{self.name} at {self.base_url} did not answer a first short request: {error}. "
                "Check the address (OPENAI_BASE_URL), the key (OPENAI_API_KEY) and the model's name"
            ) from None
        # Once per policy, not once per evaluation.
        self._probed = True
        return session

    def _client(self) -> openai.AsyncOpenAI:
        if self._api_key is None and "api.openai.com" in self.base_url:
            raise PolicyError(
                f"{self.name} needs an API key for {self.base_url}, got none; set OPENAI_API_KEY, "
                "or OPENAI_BASE_URL for a server of your own"
            )
        return openai.AsyncOpenAI(
            api_key=self._api_key or "none",  # the client insists on one; a server of one's own ignores it
            base_url=self.base_url,
            max_retries=self._retries,
            timeout=self._timeout,
            http_client=cast(Any, bounded_client()),
        )


@dataclass
class _Chat:
    """One episode's conversation."""

    start: EpisodeStart
    messages: list[Record] = field(default_factory=list[Record])
    turn: int = 0

    def observe(self, request: Request) -> None:
        """Add the new observation; a restart forgets the earlier turns."""
        if not self.turn or request.observation.restart:
            # A first turn, or a restart: the conversation begins again.
            system = self.start.system_prompt
            self.messages = [{"role": "system", "content": system}] if system else []
        new = request.observation.shown
        if isinstance(new, str):
            new = (Message(role="user", content=new),)
        results = [message.call_id for message in new if message.role == "tool"]
        if self.messages and "tool_calls" in self.messages[-1]:
            self.messages[-1] = _with_results(self.messages[-1], results)
        self.messages += map(_record, new)

    def answer_record(self, text: str) -> Record:
        """An answer as a record; calls that stand in its text become those of the record, for their results refer to them."""
        message = Message(role="assistant", content=text)
        if self.start.tools:
            with_calls = read_message(text)
            if not any(call.fault for call in with_calls.calls):
                message = with_calls
        return _record(message)


class RemoteSession:
    """Conversations in progress, one for each row."""

    def __init__(self, policy: RemotePolicy, client: openai.AsyncOpenAI, episodes: Sequence[EpisodeStart]) -> None:
        self._policy = policy
        self._client = client
        self._chats = [_Chat(start) for start in episodes]
        self._slots = asyncio.Semaphore(policy.concurrency)

    def probe(self) -> None:
        """Ask for a word. Raises PolicyError if no answer comes."""
        wait_for(self._ask(PROBE))

    def act(self, requests: Sequence[Request]) -> Sequence[Action]:
        """Answer all requests, several at a time; a row whose call finally failed carries the failure."""

        async def act_all() -> Sequence[Action]:
            return await asyncio.gather(*map(self._act, requests))

        return wait_for(act_all())

    def replace_action(self, row: int, text: str) -> None:
        """Put what was really answered in place of the row's last answer."""
        chat = self._chats[row]
        if chat.messages and chat.messages[-1]["role"] == "assistant":
            chat.messages[-1] = chat.answer_record(text)

    def close(self) -> None:
        """Close connections; may be called twice."""
        wait_for(self._client.close())

    async def _act(self, request: Request) -> Action:
        chat = self._chats[request.row]
        chat.observe(request)
        seed = child_seed(0, *chat.start.key, chat.turn, "remote") % 2**31  # 31 bits: what every server takes
        chat.turn += 1
        try:
            answer = await self._ask(chat.messages, seed, chat.start.tools)
        except PolicyError as error:
            return Action.failed(error)
        record = chat.answer_record(answer.text)
        if answer.calls:
            # Calls that came as calls go back as calls; those in the text were read by answer_record.
            record["tool_calls"] = list(answer.calls)
        chat.messages.append(record)
        return _action(answer)

    async def _ask(
        self, messages: Sequence[Record], seed: int | None = None, tools: Sequence[Json] = ()
    ) -> RemoteAnswer:
        """One answer to a conversation. Raises PolicyError if none comes, ContextLengthError if the conversation is too long."""
        policy = self._policy
        conversation = cast(Any, list(messages))
        options = {"seed": seed, **policy.options, "tools": [dict(tool) for tool in tools] or None}

        def create(body: JsonDict) -> Any:
            return self._client.chat.completions.create(model=policy.model, messages=conversation, extra_body=body)

        longest = cast(int | None, options.get("max_completion_tokens") or options.get("max_tokens"))
        ceiling = policy.usage.ceiling([conversation, options["tools"]], longest)
        try:
            async with self._slots, asyncio.timeout(policy.patience):
                # Waiting for a slot does not count: the time limit begins inside it.
                with policy.usage.account.promise(ceiling):
                    reply = await policy.takes.ask(create, options)
                    return read_answer(reply, policy.usage, self._clean, ceiling)
        except OutOfMoney as error:
            raise PolicyError(str(error)) from None
        except (TimeoutError, openai.OpenAIError, *UNREADABLE) as error:
            cause = f" ({error.__cause__})" if error.__cause__ else ""
            message = f"{policy.model}: {type(error).__name__}: {error}{cause}"
            reason = brief(self._clean(message))
            code = getattr(error, "code", None)
            if code == "context_length_exceeded" or "context length" in reason.lower():
                raise ContextLengthError(reason) from None
            raise PolicyError(reason) from None

    def _clean(self, text: str) -> str:
        """Returns a server's message, without the key."""
        key = self._client.api_key
        return text.replace(key, "[key]") if len(key) > 7 else text


def _with_results(answer: Record, results: Sequence[str]) -> Record:
    """An answer whose calls got these results, by id.

    Calls that got none were not carried out: they go back as text, for servers refuse a call without a result.
    """
    calls: list[Record] = answer["tool_calls"]
    if len(calls) == len(results):  # the environment numbers calls that came without an id
        calls = [{**call, "id": call_id} for call, call_id in zip(calls, results, strict=True)]
    answered = [call for call in calls if call["id"] in results]
    lines = [_read_call(call)[0] for call in calls if call["id"] not in results]
    if lines:
        content = filter(None, [answer["content"], *lines])
        answer = {**answer, "content": "\n".join(content)}
    if answered:
        return {**answer, "tool_calls": answered}
    return {"role": answer["role"], "content": answer["content"]}


def _read_call(record: Record) -> tuple[str, ToolCall]:
    """A call as a line of text, and as what can be read of it."""
    function = record["function"]
    name = function["name"]
    arguments = function["arguments"]
    line = f'{{"name": {json.dumps(name)}, "arguments": {arguments or "{}"}}}'
    calls = read_message(line, "json").calls
    if not calls:
        error = f"the call of {name} has no arguments in JSON"
        return f"{name} {arguments}", ToolCall(name="", fault="malformed", error=error)
    call = calls[0]
    if call.fault is None:
        return write_calls([call]), call
    return f"{name} {arguments}", call


def _record(message: Message) -> Record:
    """A message as the protocol has it."""
    record: Record = {"role": message.role, "content": message.content}
    if message.role == "tool":
        record["tool_call_id"] = message.call_id
    elif message.calls:
        record["content"] = message.content or None
        record["tool_calls"] = [
            call_record(call.id, call.name, json.dumps(dict(call.arguments))) for call in message.calls
        ]
    return record


def _action(answer: RemoteAnswer) -> Action:
    """Returns what was said. Calls that came apart from the text stand behind it, in the plain form."""
    text = answer.text
    calls: list[ToolCall] = []
    for record in answer.calls:
        line, call = _read_call(record)
        text = f"{text}\n{line}" if text else line
        end = len(text)
        start = end - len(line)
        calls.append(replace(call, id=record["id"], start=start, end=end))
    return Action(
        text=text,
        message=Message(role="assistant", content=answer.text, calls=tuple(calls)) if calls else None,
        usage=answer.usage,
        stop=StopReason.TOKEN_LIMIT if answer.cut else None,
    )
