"""Episodes to training samples: the exact tokens that were read and sampled, and which of them are trained.

A training sample runs from a restart to the next; in most environments an episode is one sample. The calls of a foreign agent may
form several, each a path from a root to a leaf.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradus.core import ConfigError, Episode, TurnTokens

Legal = tuple[tuple[int, ...] | None, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingSample:
    """One unbroken stretch of tokens, length T, with A trained tokens in it: the record from episodes to the loss.

    ``ids`` (T,) token ids. ``positions`` (A,) where the trained tokens stand in ``ids``; each is predicted from the position
    before it. ``logprobs`` (A,) float64, nats, as sampled. ``turns`` (A,) index of the turn that a token belongs to within
    its episode; ``offsets`` (A,) its place within its turn's action. ``legal``: per token the ids a grammar allowed, or None
    if none was in force. ``key`` names samples that may share a prefix (group and number of the restart); ``episode`` is the
    index of the episode in the list the samples were made from. ``targets`` (A,): ids to be learned at ``positions`` if they
    are not what stands there (an expert's actions in a student's episode). ``advantages`` (A,) float64; None before credit is
    given, and in SFT. ``entropy`` (A,): the share of the entropy bonus that a token gets; None for 1. ``read`` (R,): where the
    tokens stand that the environment showed after an action; None if they are not known. ``soft``: likely tokens at ``positions`` and
    their probabilities, (A, K) both, which distillation learns.
    """

    key: tuple[int, int]
    episode: int
    ids: Tensor
    positions: Tensor
    logprobs: Tensor
    turns: Tensor
    offsets: Tensor
    legal: Legal | None = None
    targets: Tensor | None = None
    advantages: Tensor | None = None
    entropy: Tensor | None = None
    read: Tensor | None = None
    soft: tuple[Tensor, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def actions(self) -> int:
        """A, the number of trained tokens, stop tokens included."""
        return len(self.positions)

    def only(self, kept: Tensor) -> TrainingSample:
        """The sample with the trained tokens that are ``kept``, (A,) bool."""
        legal = (
            None
            if self.legal is None
            else tuple(each for each, keep in zip(self.legal, kept.tolist(), strict=True) if keep)
        )
        chosen = {
            name: None if (value := getattr(self, name)) is None else value[kept]
            for name in ("positions", "logprobs", "turns", "offsets", "targets", "advantages", "entropy")
        }
        soft = None if self.soft is None else (self.soft[0][kept], self.soft[1][kept])
        return replace(self, legal=legal, soft=soft, **chosen)

    @property
    def live(self) -> bool:
        """Says whether any token has an advantage; without one the policy gradient is exactly zero."""
        return self.advantages is not None and bool((self.advantages != 0.0).any())


def episode_samples(episode: Episode, *, index: int = 0, group: int | None = None) -> list[TrainingSample]:
    """Cut one episode at its restarts. No text is rendered or tokenized here: ids come out as they were sampled.

    Raises ConfigError if a turn carries no tokens (a scripted or remote policy acted: warm-start on such episodes with SFT).
    """
    group = episode.group if group is None else group
    return [_sample(stretch, (group, number), index) for number, stretch in enumerate(_stretches(episode)) if stretch]


def _stretches(episode: Episode) -> Iterator[list[tuple[int, TurnTokens, bool]]]:
    """Yields the turns of each training sample: number, tokens, and whether a limit cut the answer.

    The turns of an episode form a forest by token prefix. A prompt that begins with all that an earlier sample holds goes on with the
    longest such sample; every other restart is a sample of its own, in which the tokens of earlier turns are read and not trained again.
    """
    samples: list[tuple[list[int], list[tuple[int, TurnTokens, bool]]]] = []
    last = 0  # the sample of the turn before
    for number, turn in enumerate(episode.turns):
        tokens = turn.tokens
        if tokens is None:
            raise ConfigError(
                f"turn {number} of an episode by {episode.policy!r} carries no tokens; only what a local policy sampled "
                "can be trained on with GRPO (stored text can be trained on with SFT)"
            )
        context = list(tokens.context_ids)
        if tokens.restart or not samples:
            begun = [place for place, (ids, _) in enumerate(samples) if context[: len(ids)] == ids]
            last = max(begun, key=lambda place: len(samples[place][0]), default=len(samples))
            if begun:
                context = context[len(samples[last][0]) :]
            else:
                samples.append(([], []))
        ids, turns = samples[last]
        turns.append((number, replace(tokens, context_ids=tuple(context)), turn.cut))
        ids += [*context, *tokens.action_ids]
    yield from (turns for _, turns in samples)


def _sample(stretch: Sequence[tuple[int, TurnTokens, bool]], key: tuple[int, int], episode: int) -> TrainingSample:
    ids: list[int] = []
    positions: list[int] = []
    logprobs: list[float] = []
    turns: list[int] = []
    offsets: list[int] = []
    legal: list[tuple[int, ...] | None] = []
    read: list[int] = []
    # One behind an answer that a limit cut: the token that closes it was neither sampled nor shown by the environment.
    closes = 0
    for number, tokens, cut in stretch:
        count = len(tokens.action_ids)
        if len(tokens.logprobs) != count:
            raise ConfigError(
                f"turn {number} has {count} action tokens and {len(tokens.logprobs)} log-probs; expected "
                "one log-prob per sampled token, the stop token included"
            )
        if ids:
            read.extend(range(len(ids) + closes, len(ids) + len(tokens.context_ids)))
        ids.extend(tokens.context_ids)
        positions.extend(range(len(ids), len(ids) + count))
        logprobs.extend(tokens.logprobs)
        turns.extend([number] * count)
        offsets.extend(range(count))
        legal.extend(tokens.legal if tokens.legal is not None else (None,) * count)
        ids.extend(tokens.action_ids)
        closes = int(cut)
    if positions and positions[0] == 0:
        raise ConfigError("a training sample begins with a sampled token; the model must read something before it acts")
    return TrainingSample(
        key=key,
        episode=episode,
        ids=torch.tensor(ids, dtype=torch.int64),
        positions=torch.tensor(positions, dtype=torch.int64),
        logprobs=torch.tensor(logprobs, dtype=torch.float64),
        turns=torch.tensor(turns, dtype=torch.int64),
        offsets=torch.tensor(offsets, dtype=torch.int64),
        legal=tuple(legal) if any(entry is not None for entry in legal) else None,
        read=torch.tensor(read, dtype=torch.int64),
    )
