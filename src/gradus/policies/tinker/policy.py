"""A policy that samples on a server of the Tinker API: token ids go out, token ids and log-probs come back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from gradus.core import Action, ConfigError, EpisodeStart, PolicyError, Request, child_seed
from gradus.policies.local.conversation import Conversation, PendingTurn
from gradus.policies.local.loading import LoadedTokenizer
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.local.text_ids import TokenIds
from gradus.policies.tinker.service import TinkerService

_PROMPTS = "give log-probs of a prompt, which grpo.kl_coef and a teacher need"
_SEEDS = 2**31  # the smallest range of seeds among the servers


@dataclass
class TokenCounts:
    """Tokens that a server has read as prompts, sampled, and trained on; what a service charges for."""

    prompt: int = 0
    sampled: int = 0
    trained: int = 0

    def clear(self) -> None:
        """Sets all counts to 0."""
        self.prompt = self.sampled = self.trained = 0

    def as_costs(self) -> dict[str, Any]:
        """Returns what ``costs.json`` stores of a stage; nothing if the server was not asked."""
        counts = {"prompt_tokens": self.prompt, "sampled_tokens": self.sampled, "server_trained_tokens": self.trained}
        return counts if any(counts.values()) else {}

    def cost(self, price: tuple[float, float, float] | None) -> float:
        """US dollars, by the ``price`` of a million prompt, sampled and trained tokens; 0 without one."""
        if price is None:
            return 0.0
        prompt, sampled, trained = price
        return (self.prompt * prompt + self.sampled * sampled + self.trained * trained) / 1e6


class TinkerPolicy:
    """Weights that a server holds, as a policy whose episodes can be trained on.

    Args:
        service: the server.
        client: its sampling client, of the weights that are sampled from.
        words: tokenizer and renderer of the same model; they make the prompts.
        sampling: how tokens are drawn. Log-probs are those before temperature, top_k and top_p.
        counts: where prompt and sampled tokens are counted.

    Raises:
        ConfigError: a grammar is set, which no server enforces.
    """

    def __init__(
        self,
        service: TinkerService,
        client: Any,
        words: LoadedTokenizer,
        sampling: SamplingConfig,
        *,
        name: str = "tinker",
        counts: TokenCounts | None = None,
    ) -> None:
        if sampling.masks:
            raise ConfigError("a server enforces no grammar; set sampling.grammar and sampling.constrain = false")
        self.service = service
        self.client = client
        self.words = words
        self.sampling = sampling
        self.name = name
        self.counts = TokenCounts() if counts is None else counts

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.words.tokenizer

    def start(self, episodes: Sequence[EpisodeStart]) -> TinkerSession:
        """Open a session; the server keeps nothing of it."""
        return TinkerSession(self, episodes)

    def ask(self, prompt: Sequence[int], answers: int, budget: int, seed: int) -> Any:
        """Asks for so many answers to one prompt; returns the client's future."""
        types = self.service.sdk.types
        sampling = self.sampling
        options = types.SamplingParams(
            max_tokens=budget,
            temperature=0.0 if sampling.greedy else sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k or -1,
            stop=sorted(self.words.renderer.stop_ids),
            seed=seed % _SEEDS,
        )
        with self.service.explained("sample"):
            return self.client.sample(types.ModelInput.from_ints(list(prompt)), answers, options)

    def read(self, future: Any, prompt: int) -> list[tuple[list[int], list[float]]]:
        """Ids and log-probs of each answer of a future; counts them. Raises PolicyError for answers that cannot be trained on."""
        sequences = self.service.result(future, "sample").sequences
        answers = [_answer(sequence) for sequence in sequences]
        self.counts.prompt += prompt
        self.counts.sampled += sum(len(ids) for ids, _ in answers)
        return answers

    def prompt_logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probs of the tokens of each sequence behind its first one. Raises ConfigError if the server gives none."""
        types = self.service.sdk.types
        with self.service.explained(_PROMPTS):
            futures = [self.client.compute_logprobs(types.ModelInput.from_ints(list(ids))) for ids in sequences]
        scored = [self.service.result(future, _PROMPTS) for future in futures]
        self.counts.prompt += sum(map(len, sequences))
        for ids, values in zip(sequences, scored, strict=True):
            # The first token has none: nothing predicts it.
            if not values or len(values) != len(ids) or any(value is None for value in values[1:]):
                raise ConfigError(
                    f"{self.service.url} gives no log-probs of a prompt, which KL and a teacher need; set grpo.kl_coef = 0, or "
                    "choose another server"
                )
        return [list(map(float, values[1:])) for values in scored]


def _answer(sequence: Any) -> tuple[list[int], list[float]]:
    ids = [int(token) for token in sequence.tokens]
    logprobs = [float(value) for value in sequence.logprobs or ()]
    if not ids or len(ids) != len(logprobs) or not all(map(isfinite, logprobs)):
        raise PolicyError(
            f"the server sampled {len(ids)} tokens with {len(logprobs)} log-probs; expected one finite log-prob for each token"
        )
    return ids, logprobs


class TinkerSession:
    """Episodes at once. Rows that ask the same prompt share one request, so that the server reads it once."""

    def __init__(self, policy: TinkerPolicy, episodes: Sequence[EpisodeStart]) -> None:
        self._policy = policy
        self._conversations = [Conversation(start, policy.words.renderer) for start in episodes]

    def act(self, requests: Sequence[Request]) -> list[Action]:
        """Answers all, in order; a request that fails fails its own rows. Raises ServerLost if the server goes away."""
        actions: dict[int, Action] = {}
        asked: dict[tuple[TokenIds, int], list[tuple[int, PendingTurn]]] = {}  # prompt and room -> who asks it
        for place, request in enumerate(requests):
            try:
                turn = self._conversations[request.row].pending(request.observation)
                room = turn.room(self._policy.sampling.max_new_tokens, self._policy.words.context, "server")
            except PolicyError as error:
                actions[place] = Action.failed(error)
            else:
                asked.setdefault((turn.prompt, room), []).append((place, turn))
        # All are asked before the first is read, so that the server works on them together.
        futures: list[Any] = []
        for (prompt, room), members in asked.items():
            _, first = members[0]
            seed = child_seed(0, *first.key, first.number)
            futures.append(self._policy.ask(prompt, len(members), room, seed))
        for future, ((prompt, _), members) in zip(futures, asked.items(), strict=True):
            try:
                answers = self._policy.read(future, len(prompt))
            except PolicyError as error:
                actions |= {place: Action.failed(error) for place, _ in members}
                continue
            for (place, turn), (ids, logprobs) in zip(members, answers, strict=True):
                conversation = self._conversations[requests[place].row]
                actions[place] = conversation.add_answer(turn, ids, logprobs)
        return [actions[place] for place in range(len(requests))]

    def close(self) -> None:
        """Does nothing: requests hold no state."""
