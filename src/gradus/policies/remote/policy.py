"""Any chat model behind the OpenAI protocol as a teacher or a policy: a hosted API, vLLM, llama.cpp, Ollama, `gradus serve`."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from anyio.from_thread import start_blocking_portal

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
from gradus.core.servers import ChatOptions
from gradus.policies.remote.client import Price, RemoteUsage, Reply, brief, read_answer

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Record = dict[str, Any]  # a message as the protocol has it
PROBE: tuple[Record, ...] = ({"role": "user", "content": "Answer with the word ready."},)


class RemotePolicy:
    """A chat model that answers each observation as one turn of a conversation.

    ``base_url`` and ``api_key`` default to OPENAI_BASE_URL and OPENAI_API_KEY; a server of one's own needs no key.
    ``concurrency``: calls in flight at once. ``retries``: further attempts at an answer after a rate limit, a server's error, a
    lost connection or a timeout, by the official client. ``timeout``: seconds for one attempt. ``price``: US dollars per million tokens; without
    it costs are None. ``temperature`` or ``max_tokens`` None leaves them to the server. Each request has a seed, derived from the
    episode's key and the turn, so that members of a group differ and a repeated run asks the same.
    ``options`` are sent with every request as they are (``{"reasoning_effort": "low"}``, or ``{"seed": None}`` for none).

    ``usage`` counts over the policy's whole life. The first ``start`` sends one short request, so that a wrong address, key or
    model name is one ``PolicyError`` and not one failure for each episode; ``probe`` False leaves it out.
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
        options: Mapping[str, Any] | None = None,
        probe: bool = True,
    ) -> None:
        if not model or concurrency < 1 or retries < 0 or timeout <= 0 or (max_tokens is not None and max_tokens < 1):
            raise ConfigError(
                "a remote policy needs a model's name, concurrency, timeout and max_tokens above 0, and retries from 0, got "
                f"{model!r}, {concurrency}, {timeout}, {max_tokens} and {retries}"
            )
        self.model, self.name = model, f"remote:{model}"
        self.base_url = base_url or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
        self.usage = RemoteUsage(price=price)
        self._api_key = api_key or os.environ.get("OPENAI_API_KEY")
        self.concurrency = concurrency
        self._retries, self._timeout = retries, timeout
        self.patience = timeout * (retries + 1)  # seconds for an answer
        self.options = {"temperature": temperature, "max_tokens": max_tokens, **(options or {})}
        self.takes = ChatOptions(model)
        self._probed = not probe

    def start(self, episodes: Sequence[EpisodeStart]) -> RemoteSession:
        """Open conversations. Raises ``PolicyError`` if the server cannot be reached or refuses."""
        session = RemoteSession(self, self._client(), episodes)
        if not self._probed:
            try:
                session.probe()
            except PolicyError as error:
                session.close()
                raise PolicyError(
                    f"{self.name} at {self.base_url} did not answer a first short request: {error}. "
                    "Check the address (OPENAI_BASE_URL), the key (OPENAI_API_KEY) and the model's name"
                ) from None
            self._probed = True
        return session

    def _client(self) -> AsyncOpenAI:
        import openai

        from gradus.core.replies import bounded_client

        key = self._api_key
        if key is None:
            if "api.openai.com" in self.base_url:
                raise PolicyError(
                    f"{self.name} needs an API key for {self.base_url}, got none; set OPENAI_API_KEY, "
                    "or OPENAI_BASE_URL for a server of your own"
                )
            key = "none"  # the client insists on one; a server of one's own ignores it
        return openai.AsyncOpenAI(
            api_key=key,
            base_url=self.base_url,
            max_retries=self._retries,
            timeout=self._timeout,
            http_client=bounded_client(),
        )


class RemoteSession:
    """Conversations in progress, one for each row. They are held in a thread of their own, so that ``act`` works in a notebook too."""

    def __init__(self, policy: RemotePolicy, client: AsyncOpenAI, episodes: Sequence[EpisodeStart]) -> None:
        self._policy, self._client, self._episodes = policy, client, episodes
        self._slots = asyncio.Semaphore(policy.concurrency)
        self._messages: dict[int, list[Record]] = {}
        self._turns: dict[int, int] = {}
        self._open = ExitStack()
        self._portal = self._open.enter_context(start_blocking_portal())
        self._open.callback(lambda: self._portal.call(client.close))

    def probe(self) -> None:
        """Ask for a word. Raises PolicyError if no answer comes."""
        self._portal.call(self._ask, PROBE)

    def act(self, requests: Sequence[Request]) -> Sequence[Action]:
        """Answer all requests, several at a time; a row whose call finally failed carries the failure."""
        answers = self._portal.start_task_soon(self._act_all, requests)
        try:
            return answers.result()
        except BaseException:
            answers.cancel()  # after Ctrl-C no call goes on in the background
            raise

    def replace_action(self, row: int, text: str) -> None:
        """Put what was really answered in place of the row's last answer."""
        messages = self._messages.get(row, [])
        if messages and messages[-1]["role"] == "assistant":
            messages[-1] = self._said(row, text)

    def close(self) -> None:
        """Close connections; may be called twice."""
        self._open.close()

    async def _act_all(self, requests: Sequence[Request]) -> Sequence[Action]:
        return await asyncio.gather(*map(self._act, requests))

    async def _act(self, request: Request) -> Action:
        row, messages = request.row, self._conversation(request)
        turn = self._turns.get(row, 0)
        self._turns[row] = turn + 1
        start = self._episodes[row]
        seed = child_seed(0, *start.key, turn, "remote") % 2**31  # 31 bits: what every server takes
        try:
            reply = await self._ask(messages, seed, start.tools)
        except PolicyError as error:
            return Action.failed(error)
        said = self._said(row, reply.text)
        messages.append({**said, "tool_calls": [dict(call) for call in reply.calls]} if reply.calls else said)
        return _action(reply)

    async def _ask(
        self, messages: Sequence[Record], seed: int | None = None, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Reply:
        """One answer to a conversation. Raises PolicyError if none comes, ContextLengthError if the conversation is too long."""
        import openai

        from gradus.core.replies import UNREADABLE

        policy, conversation = self._policy, cast(Any, [dict(message) for message in messages])
        options = {"seed": seed, **policy.options, "tools": [dict(tool) for tool in tools] or None}

        def create(body: dict[str, Any]) -> Any:
            return self._client.chat.completions.create(model=policy.model, messages=conversation, extra_body=body)

        try:
            async with self._slots, asyncio.timeout(policy.patience):
                return read_answer(await policy.takes.ask(create, options), policy.usage, self._clean)
        except (TimeoutError, openai.OpenAIError, *UNREADABLE) as error:
            cause = f" ({error.__cause__})" if error.__cause__ else ""
            said = brief(self._clean(f"{policy.model}: {type(error).__name__}: {error}{cause}"))
            long = getattr(error, "code", None) == "context_length_exceeded" or "context length" in said.lower()
            raise (ContextLengthError if long else PolicyError)(said) from None

    def _clean(self, text: str) -> str:
        """Returns a server's message, without the key."""
        key = self._client.api_key
        return text.replace(key, "[key]") if len(key) > 7 else text

    def _said(self, row: int, text: str) -> Record:
        """An answer as a record; calls that stand in its text become those of the record, for their results refer to them."""
        message = read_message(text) if self._episodes[row].tools else Message(role="assistant", content=text)
        readable = all(call.fault is None for call in message.calls)
        return _record(message if readable else Message(role="assistant", content=text))

    def _conversation(self, request: Request) -> list[Record]:
        """The row's messages with the new observation as the last one; a restart forgets the earlier turns."""
        messages = self._messages.get(request.row)
        if messages is None or request.observation.restart:
            system = self._episodes[request.row].system_prompt
            messages = [{"role": "system", "content": system}] if system else []
            self._messages[request.row] = messages
        shown = request.observation.shown
        seen = (Message(role="user", content=shown),) if isinstance(shown, str) else shown
        results = [each.call_id for each in seen if each.role == "tool"]
        if messages and messages[-1].get("tool_calls"):
            messages[-1] = _answered(messages[-1], results)
        messages += map(_record, seen)
        return messages


def _answered(said: Record, results: Sequence[str]) -> Record:
    """An answer whose calls got these results, by id. Calls that got none were not carried out: they go back as text, for servers
    refuse a call without a result."""
    calls: list[Record] = said["tool_calls"]
    if len(calls) == len(results):  # the environment numbers calls that came without an id
        calls = [{**call, "id": call_id} for call, call_id in zip(calls, results, strict=True)]
    kept = [call for call in calls if call["id"] in results]
    lost = [_written(call)[0] for call in calls if call["id"] not in results]
    text = "\n".join(filter(None, [said["content"], *lost])) if lost else said["content"]
    return {**said, "content": text, "tool_calls": kept} if kept else {"role": said["role"], "content": text}


def _written(call: Mapping[str, Any]) -> tuple[str, ToolCall]:
    """A call as a line of text, and as what can be read of it."""
    name, written = call["function"]["name"], call["function"]["arguments"]
    line = f'{{"name": {json.dumps(name)}, "arguments": {written or "{}"}}}'
    read = next(iter(read_message(line, "json").calls), None)
    read = read or ToolCall(name="", fault="malformed", error=f"the call of {name} has no arguments in JSON")
    return write_calls([read]) if read.fault is None else f"{name} {written}", read


def _record(message: Message) -> Record:
    """A message as the protocol has it."""
    if message.role == "tool":
        return {"role": "tool", "content": message.content, "tool_call_id": message.call_id}
    if message.calls:
        calls = [
            {
                "id": each.id,
                "type": "function",
                "function": {"name": each.name, "arguments": json.dumps(dict(each.arguments))},
            }
            for each in message.calls
        ]
        return {"role": message.role, "content": message.content or None, "tool_calls": calls}
    return {"role": message.role, "content": message.content}


def _action(reply: Reply) -> Action:
    """Returns what was said. Calls that came apart from the text stand behind it, in the plain form."""
    text, calls = reply.text, list[ToolCall]()
    for each in reply.calls:
        line, call = _written(each)
        text = f"{text}\n{line}" if text else line
        calls.append(replace(call, id=each["id"], start=len(text) - len(line), end=len(text)))
    return Action(
        text=text,
        message=Message(role="assistant", content=reply.text, calls=tuple(calls)) if calls else None,
        usage=reply.usage,
        stop=StopReason.TOKEN_LIMIT if reply.cut else None,
    )
