"""Episodes to training samples: the exact tokens that were read and sampled, and which of them are trained.

A training sample runs from a restart to the next; in most environments an episode is one sample. The calls of a foreign agent may
form several, each a path from a root to a leaf.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any, Self, cast

import torch
from torch import Tensor

from gradus.core import ConfigError, Episode, Group, Turn, TurnTokens

LegalIds = tuple[int, ...] | None  # that a grammar allows; None without a grammar
Legal = tuple[LegalIds, ...]  # of each trained token


def ints(values: Tensor) -> list[int]:
    """The numbers of an integer tensor (N,)."""
    return cast(list[int], values.tolist())


def split(values: Tensor, lengths: Sequence[int], *, dim: int = 0) -> tuple[Tensor, ...]:
    """Parts of a tensor, as long as ``lengths`` say."""
    return cast(tuple[Tensor, ...], values.split(list(lengths), dim=dim))


@dataclass(frozen=True, kw_only=True, eq=False)
class PerToken:
    """The figures of each trained token of a sample, A of them, which are cut together.

    Attributes:
        positions: (A,) where the trained tokens stand in the sample; each is predicted from the position before it.
        logprobs: (A,) float64, nats, as sampled.
        turns: (A,) index of the turn that a token belongs to within its episode.
        offsets: (A,) its place within its turn's action.
        legal: per token the ids that a grammar allowed, or None if none was in force.
        targets: (A,) ids to be learned at ``positions`` if they are not what stands there (an expert's actions in a student's episode).
        advantages: (A,) float64; None before credit is given, and in SFT.
        entropy: (A,) the share of the entropy bonus that a token gets; None for 1.
        soft: likely tokens at ``positions`` and their probabilities, (A, K) both, which distillation learns.
    """

    positions: Tensor
    logprobs: Tensor
    turns: Tensor
    offsets: Tensor
    legal: Legal | None = None
    targets: Tensor | None = None
    advantages: Tensor | None = None
    entropy: Tensor | None = None
    soft: tuple[Tensor, Tensor] | None = None

    @property
    def actions(self) -> int:
        """A, the number of trained tokens, stop tokens included."""
        return len(self.positions)

    @property
    def live(self) -> bool:
        """Says whether any token has an advantage; without one the policy gradient is exactly zero."""
        return self.advantages is not None and bool((self.advantages != 0.0).any())

    @property
    def credited(self) -> Tensor:
        """(A,) the advantages; only once credit is given."""
        assert self.advantages is not None
        return self.advantages

    @property
    def bonus(self) -> Tensor:
        """(A,) the share of the entropy bonus that each token gets."""
        return torch.ones(self.actions) if self.entropy is None else self.entropy

    def by_turn(self) -> list[tuple[int, Tensor]]:
        """Each turn that has trained tokens, in order, and the rows (n,) of these."""
        return [(turn, (self.turns == turn).nonzero()[:, 0]) for turn in sorted(set(ints(self.turns)))]

    def only(self, mask: Tensor) -> Self:
        """Returns the record with the tokens where ``mask`` (A,) bool is true."""
        cut: dict[str, Any] = {}
        for name in ("positions", "logprobs", "turns", "offsets", "targets", "advantages", "entropy"):
            values = getattr(self, name)
            cut[name] = None if values is None else values[mask]
        if self.legal is not None:
            cut["legal"] = tuple(compress(self.legal, ints(mask)))
        if self.soft is not None:
            ids, chances = self.soft
            cut["soft"] = (ids[mask], chances[mask])
        return replace(self, **cut)


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingSample(PerToken):
    """One unbroken stretch of tokens, length T, with A trained tokens in it: the record from episodes to the loss.

    Attributes:
        key: names samples that may share a prefix: the group, and the number of the restart.
        episode: index of the episode in the list that the samples were made from.
        ids: (T,) token ids.
        read: (R,) where the tokens stand that the environment showed after an action; None if they are not known.
    """

    key: tuple[int, int]
    episode: int
    ids: Tensor
    read: Tensor | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def learned_ids(self) -> Tensor:
        """(A,) the ids that are learned: ``targets``, or the tokens as they stand."""
        return self.ids[self.positions] if self.targets is None else self.targets

    @property
    def shown(self) -> Tensor:
        """(R,) where the tokens stand that the environment showed and that are computed."""
        return self.ids[:0] if self.read is None else self.read[self.read < self.reach]

    @property
    def reach(self) -> int:
        """The number of tokens that must be computed: the last trained one is predicted, never read."""
        return int(self.positions[-1])


Samples = Sequence[TrainingSample]
Episodes = Sequence[Episode]
Groups = Sequence[Group]


@dataclass(kw_only=True)
class Stretch:
    """One unbroken stretch of a conversation so far: its ids, which of them the environment showed, and the tokens that are trained.

    ``places``: position, turn and offset of each trained token. ``closes``: 1 behind an answer that a limit cut, for the token that closes
    it was neither sampled nor shown by the environment.
    """

    ids: list[int] = field(default_factory=list[int])
    read: list[int] = field(default_factory=list[int])
    places: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    logprobs: list[float] = field(default_factory=list[float])
    legal: list[LegalIds] = field(default_factory=list[LegalIds])
    closes: int = 0

    def show(self, ids: Sequence[int]) -> None:
        """Adds what is read before an answer; the environment showed it if it stands behind another one."""
        start = len(self.ids)
        if start:
            self.read.extend(range(start + self.closes, start + len(ids)))
        self.ids.extend(ids)

    def answer(self, ids: Sequence[int], turn: int, logprobs: Sequence[float]) -> None:
        """Adds an answer whose first tokens, as many as have log-probs, are trained."""
        start = len(self.ids)
        self.places.extend((start + offset, turn, offset) for offset in range(len(logprobs)))
        self.logprobs.extend(logprobs)
        self.ids.extend(ids)

    def sample(self, key: tuple[int, int], episode: int) -> TrainingSample:
        """The training sample of the whole stretch."""
        if self.places and self.places[0][0] == 0:
            raise ConfigError(
                "a training sample begins with a sampled token; the model must read something before it acts"
            )
        positions, turns, offsets = torch.tensor(self.places, dtype=torch.int64).reshape(-1, 3).T.contiguous()
        return TrainingSample(
            key=key,
            episode=episode,
            ids=torch.tensor(self.ids, dtype=torch.int64),
            positions=positions,
            logprobs=torch.tensor(self.logprobs, dtype=torch.float64),
            turns=turns,
            offsets=offsets,
            legal=tuple(self.legal) if any(entry is not None for entry in self.legal) else None,
            read=torch.tensor(self.read, dtype=torch.int64),
        )


def episode_samples(episode: Episode, *, index: int = 0, group: int | None = None) -> list[TrainingSample]:
    """Cuts one episode at its restarts. No text is rendered or tokenized here: ids come out as they were sampled.

    Raises:
        ConfigError: a turn carries no tokens (a scripted or remote policy acted: warm-start on such episodes with SFT).
    """
    if group is None:
        group = episode.group
    return [stretch.sample((group, number), index) for number, stretch in enumerate(_stretches(episode))]


def sampled_tokens(episode: Episode) -> int:
    """The number of tokens that were sampled in an episode."""
    return sum(len(turn.tokens.action_ids) for turn in episode.turns if turn.tokens)


def _stretches(episode: Episode) -> list[Stretch]:
    """The stretches of an episode, one for each training sample.

    The turns of an episode form a forest by token prefix. A prompt that begins with all that an earlier sample holds goes on with the
    longest such sample; every other restart is a sample of its own, in which the tokens of earlier turns are read and not trained again.
    """
    stretches: list[Stretch] = []
    current = Stretch()
    for number, turn in enumerate(episode.turns):
        if turn.undelivered:
            continue
        tokens = _sampled(turn, number, episode)
        context = list(tokens.context_ids)
        if tokens.restart or not stretches:
            # The calls of an agent may go on with any earlier conversation of its episode.
            begun = [stretch for stretch in stretches if context[: len(stretch.ids)] == stretch.ids]
            if begun:
                current = max(begun, key=lambda stretch: len(stretch.ids))
                context = context[len(current.ids) :]
            else:
                current = Stretch()
                stretches.append(current)
        current.show(context)
        current.answer(tokens.action_ids, number, tokens.logprobs)
        current.legal.extend(tokens.legal or (None,) * len(tokens.action_ids))
        current.closes = int(turn.cut)
    return stretches


def _sampled(turn: Turn, number: int, episode: Episode) -> TurnTokens:
    """The tokens of a turn. Raises ConfigError if it has none, or some without a log-prob."""
    tokens = turn.tokens
    if tokens is None:
        raise ConfigError(
            f"turn {number} of an episode by {episode.policy!r} carries no tokens; only what a local policy sampled "
            "can be trained on with GRPO (stored text can be trained on with SFT)"
        )
    count = len(tokens.action_ids)
    if len(tokens.logprobs) != count:
        raise ConfigError(
            f"turn {number} has {count} action tokens and {len(tokens.logprobs)} log-probs; expected "
            "one log-prob per sampled token, the stop token included"
        )
    return tokens
