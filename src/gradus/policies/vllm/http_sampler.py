"""A policy that samples on a server which gives token ids and log-probs: vLLM's OpenAI dialect, spoken by ``gradus serve`` too.

Prompts go out as token ids and answers come back as token ids, so tokens are never made twice and what was sampled can be
trained on. vLLM gives log-probs before temperature unless it is started with ``--logprobs-mode processed_logprobs``; do that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar, cast

import openai

from gradus.core import Action, ConfigError, ContextLengthError, EpisodeStart, PolicyError, Request, child_seed
from gradus.core.servers import is_loopback
from gradus.core.values import Json, JsonDict
from gradus.policies.local.conversation import Conversation
from gradus.policies.local.renderers import ChatRenderer
from gradus.policies.local.sampling import SamplingConfig

T = TypeVar("T")
Body = JsonDict  # of a request


class HttpSampler:
    """The one model behind ``base_url`` (as in ``http://localhost:8000/v1``) as a policy whose episodes can be trained on.

    Args:
        renderer: of the same tokenizer as the server's model; it makes the prompts.
        concurrency: requests under way at once; a server batches them.
        retries: further attempts when the server is busy or the connection breaks, with growing pauses.

    Raises:
        ConfigError: the server cannot be asked, has none or several models, or gives no token ids or no log-probs. Such a server can
            still roll out, evaluate and teach as ``remote:MODEL``.
    """

    def __init__(
        self,
        *,
        base_url: str,
        renderer: ChatRenderer,
        sampling: SamplingConfig,
        api_key: str | None = None,
        concurrency: int = 64,
        timeout: float = 300.0,
        retries: int = 4,
        name: str | None = None,
    ) -> None:
        if sampling.masks:
            raise ConfigError("a server enforces no grammar; set sampling.grammar and sampling.constrain = false")
        self.renderer = renderer
        self.sampling = sampling
        self.concurrency = concurrency
        self._base = base_url.rstrip("/")
        # A proxy of the environment would be in the way of a server on this machine.
        http = openai.DefaultHttpxClient(trust_env=not is_loopback(base_url))
        self._client = openai.OpenAI(
            api_key=api_key or "none", base_url=self._base, max_retries=retries, timeout=timeout, http_client=http
        )
        self.model, self.context = self._served()
        self.name = name or f"{self.model} at {base_url}"
        # Before a run loads data or audits: a server without log-probs is of no use to it.
        self._check()

    def start(self, episodes: Sequence[EpisodeStart]) -> HttpSession:
        """Open a session; the server keeps nothing of it but, with prefix caching, its keys and values."""
        return HttpSession(self, episodes)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def reload(self, folder: Path | None = None) -> None:
        """Let the server read weights from ``folder`` (the one it serves, if None), and forget what it computed with the old ones.

        These are vLLM's development routes (VLLM_SERVER_DEV_MODE=1); ``gradus serve`` has the first. The folder is the
        server's: both must see the same files. Raises PolicyError if the server does not take the weights.
        """
        root = self._base.removesuffix("/v1")
        body: Body = {"method": "reload_weights"}
        if folder is not None:
            body["kwargs"] = {"weights_path": str(folder.resolve())}
        try:
            self._post(f"{root}/collective_rpc", body)
        except openai.APIStatusError as error:
            raise PolicyError(
                f"{root} did not take the new weights: {_reason(error)}; use `gradus serve --weights FOLDER`, or vLLM started "
                "with VLLM_SERVER_DEV_MODE=1, on files that both see"
            ) from error
        try:
            self._post(f"{root}/reset_prefix_cache", {})
        except openai.NotFoundError:
            return  # a server without a prefix cache has no such route
        except openai.APIStatusError as error:
            raise PolicyError(f"{root} kept its prefix cache of the old weights: {_reason(error)}") from error

    def complete(
        self,
        prompt: Sequence[int],
        budget: int,
        seed: int,
        *,
        stop: Sequence[str] = (),
    ) -> Json:
        """One completion of token ids: the server's choice, with ``token_ids`` and ``logprobs``."""
        sampling = self.sampling
        body: Body = {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": budget,
            "temperature": 0.0 if sampling.greedy else sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            # A server's generation_config.json may name others; what is not sent would be its defaults.
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop_token_ids": sorted(self.renderer.stop_ids),
            "seed": seed % 2**63,
            "logprobs": 0,
            "return_token_ids": True,
        }
        if stop:
            body["stop"] = list(stop)
        return self._ask(f"{self._base}/completions", body, lambda answer: dict(answer["choices"][0]))

    def score(self, ids: Sequence[int], words: int) -> list[dict[int, float]]:
        """Log-probs of the ``words`` likeliest tokens at each place of ``ids``, and of the one that stands there; none at the first (vLLM)."""
        body: Body = {"model": self.model, "prompt": list(ids), "max_tokens": 1, "prompt_logprobs": words}

        def read(answer: Any) -> list[dict[int, float]]:
            return [_scores(place or {}) for place in answer["choices"][0]["prompt_logprobs"]]

        return self._ask(f"{self._base}/completions", body, read)

    def rendered(self, question: str) -> list[int]:
        """The token ids of a conversation that begins with ``question``, as the server's own template writes them (vLLM)."""
        messages = [{"role": "user", "content": question}]
        body: Body = {"model": self.model, "messages": messages, "add_generation_prompt": True}
        address = f"{self._base.removesuffix('/v1')}/tokenize"
        return self._ask(address, body, lambda answer: [int(token) for token in answer["tokens"]])

    def _ask(self, address: str, body: Body, read: Callable[[Any], T]) -> T:
        """Returns what ``read`` finds in the answer to a post. PolicyError if there was none, a refusal, or something else."""
        try:
            answer = self._post(address, body)
        except openai.APIStatusError as error:
            reason = _reason(error)
            # vLLM says it in its message alone; there is no code for it.
            too_long = error.status_code == 400 and "context" in reason.lower()
            kind = ContextLengthError if too_long else PolicyError
            raise kind(f"{address} answered {reason}") from error
        try:
            return read(answer)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise PolicyError(f"{address} gave something else than was asked for: {str(answer)[:200]}") from error

    def _post(self, address: str, body: Body) -> object:
        """Post; the client asks again if that may help. PolicyError if there was no answer, APIStatusError if it was a refusal."""
        try:
            return self._client.post(address, body=body, cast_to=object)
        except openai.APIStatusError:
            raise
        except (openai.OpenAIError, ValueError) as error:
            cause = error.__cause__ or error
            raise PolicyError(f"{address} could not be reached: {type(cause).__name__}: {cause}") from error

    def _served(self) -> tuple[str, int | None]:
        """The name of the server's model, and the longest sequence that it takes, if the server says so."""
        try:
            cards = list(self._client.with_options(max_retries=0, timeout=10.0).models.list())
        except (openai.OpenAIError, ValueError) as error:
            raise ConfigError(
                f"{self._base}/models does not list models: {error}; start `gradus serve MODEL` or vLLM, and give its address with /v1 "
                "as sampler_url"
            ) from error
        if len(cards) != 1:
            names = ", ".join(card.id for card in cards)
            raise ConfigError(
                f"{self._base}/models lists {len(cards)} models ({names}); start a server that has one model"
            )
        return cards[0].id, getattr(cards[0], "max_model_len", None)

    def _check(self) -> None:
        """Asks for one token before anything is begun, so that a server that cannot do it is refused at once."""
        try:
            _sampled(self.complete(self.renderer.first("", "hello"), 1, 0))
        except PolicyError as error:
            raise ConfigError(f"{self._base} cannot be the sampler: {error}") from error


def _reason(error: openai.APIStatusError) -> str:
    """The status and the server's own words."""
    body = cast(object, error.body)
    message = cast(Body, body).get("message") if isinstance(body, dict) else None
    return f"{error.status_code}: {str(message or error.response.text)[:300]}"


def _scores(place: Json) -> dict[int, float]:
    return {int(token): float(word["logprob"]) for token, word in place.items()}


def _sampled(choice: Json) -> tuple[list[int], list[float]]:
    """Token ids and log-probs of a choice. PolicyError if either is missing or they do not belong together."""
    try:
        ids = [int(token) for token in choice["token_ids"]]
        logprobs = [float(value) for value in choice["logprobs"]["token_logprobs"]]
    except (KeyError, TypeError, ValueError):
        ids = []
        logprobs = []
    complete = len(ids) == len(logprobs) > 0
    if not complete or not all(map(isfinite, logprobs)):
        raise PolicyError(
            "the server gives no token ids with one finite log-prob for each, without which nothing can be trained on; use vLLM (0.10 or "
            "newer) or `gradus serve`, or let this server teach and evaluate as remote:MODEL"
        )
    return ids, logprobs


class HttpSession:
    """Episodes at once: every turn of every row is one request, ``concurrency`` of them at once."""

    def __init__(self, sampler: HttpSampler, episodes: Sequence[EpisodeStart]) -> None:
        self._sampler = sampler
        self._conversations = [Conversation(start, sampler.renderer) for start in episodes]
        workers = min(sampler.concurrency, max(1, len(episodes)))
        self._pool = ThreadPoolExecutor(max_workers=workers)

    def act(self, requests: Sequence[Request]) -> list[Action]:
        """Answer all, in order; a request that fails fails its own row."""
        return list(self._pool.map(self._answer, requests))

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _answer(self, request: Request) -> Action:
        conversation = self._conversations[request.row]
        sampler = self._sampler
        try:
            turn = conversation.pending(request.observation)
            budget = turn.room(sampler.sampling.max_new_tokens, sampler.context, "server")
            seed = child_seed(0, *turn.key, turn.number)
            choice = sampler.complete(turn.prompt, budget, seed, stop=turn.request.stop)
            ids, logprobs = _sampled(choice)
        except PolicyError as error:
            return Action.failed(error)
        return conversation.add_answer(turn, ids, logprobs)
