"""Stored episodes to training samples for SFT: text becomes ids here, once, by the renderer that the policy will use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from gradus.core import ConfigError, ContextLengthError, Episode
from gradus.core.records import FAULTS
from gradus.policies.local.conversation import opening_ids
from gradus.policies.local.loading import LoadedTokenizer
from gradus.training.data.sequences import Episodes, TrainingSample


def text_only(episode: Episode) -> Episode:
    """The episode with what ``text_sequences`` and the splits read: about a quarter of the memory."""
    turns = [
        replace(
            turn,
            data={},
            spans=(),
            action_data={},
            tokens=None,
            usage=None,
            error=None,
        )
        for turn in episode.turns
    ]
    return replace(
        episode,
        turns=tuple(turns),
        outcome={},
        final=None,
        reward=None,
        metrics={},
    )


def text_sequences(loaded: LoadedTokenizer, episodes: Episodes) -> list[TrainingSample]:
    """Training samples of what was said in episodes, by whatever policy; failed episodes are left out.

    The answer's own tokens and a stop token are trained, nothing else. An invalid turn is read as history but not trained: a student
    should not learn to be wrong.

    Raises:
        ContextLengthError: an episode does not fit the model's context; nothing is cut silently.
    """
    samples: list[TrainingSample] = []
    for number, episode in enumerate(episodes):
        if episode.stop not in FAULTS:
            samples += _cut(loaded, episode, number)
    if not samples:
        why = "they hold no valid answer"
        failures = [episode.failure for episode in episodes if episode.failure]
        if failures:
            why = f"{len(failures)} failed, as with {failures[0].type}: {failures[0].message}"
        raise ConfigError(f"none of the {len(episodes)} episodes can be trained on: {why}")
    for sample in samples:
        if loaded.context is not None and len(sample) > loaded.context:
            raise ContextLengthError(
                f"episode {sample.episode} has {len(sample)} tokens, but the model's context holds {loaded.context}; "
                "choose a model with a longer context, or teach shorter episodes"
            )
    return samples


LearnedToken = tuple[int, int, int, int]  # position, turn, offset and id


@dataclass(kw_only=True)
class _Conversation:
    """The ids of a conversation so far, which of them the environment showed, and the tokens to be learned."""

    ids: list[int]
    read: list[int] = field(default_factory=list[int])
    learned: list[LearnedToken] = field(default_factory=list[LearnedToken])

    def show(self, ids: Sequence[int]) -> None:
        """Add what the environment shows."""
        self.read.extend(range(len(self.ids), len(self.ids) + len(ids)))
        self.ids.extend(ids)

    def answer(
        self,
        ids: Sequence[int],
        turn: int,
        learned: int,
    ) -> None:
        """Add an answer whose first ``learned`` tokens are trained."""
        start = len(self.ids)
        for offset, token in enumerate(ids[:learned]):
            self.learned.append((start + offset, turn, offset, token))
        self.ids.extend(ids)

    def sample(self, number: int) -> TrainingSample:
        """``key`` is the same for all: any two samples may share a prefix, such as the system prompt."""
        columns = torch.tensor(self.learned, dtype=torch.int64).reshape(-1, 4)
        return TrainingSample(
            key=(0, 0),
            episode=number,
            ids=torch.tensor(self.ids, dtype=torch.int64),
            positions=columns[:, 0],
            logprobs=torch.zeros(len(columns), dtype=torch.float64),
            turns=columns[:, 1],
            offsets=columns[:, 2],
            targets=columns[:, 3],
            read=torch.tensor(self.read, dtype=torch.int64),
        )


def _cut(loaded: LoadedTokenizer, episode: Episode, number: int) -> list[TrainingSample]:
    renderer = loaded.renderer.for_tools(episode.tools)
    conversations: list[_Conversation] = []
    for index, turn in enumerate(episode.turns):
        if turn.asked is not None:  # a foreign agent may offer other tools in each call
            renderer = loaded.renderer.for_tools(turn.asked.tools)
        if turn.restart or not conversations:
            conversations.append(_Conversation(ids=list(opening_ids(renderer, episode.system_prompt, turn))))
        else:
            conversations[-1].show(renderer.following(turn.shown))
        answer = renderer.encode_answer(turn.action)
        learned = len(answer) if turn.valid else 0
        # A limit cut the answer, so nobody said the stop token behind it: the next turn reads it, and it is not learned.
        if turn.valid and turn.cut:
            learned -= 1
        conversations[-1].answer(answer, index, learned)
    return [conversation.sample(number) for conversation in conversations if conversation.learned]
