"""Stored episodes to training samples for SFT: text becomes ids here, once, by the renderer that the policy will use."""

from __future__ import annotations

from dataclasses import replace

from gradus.core import ConfigError, ContextLengthError, Episode
from gradus.core.records import FAULTS
from gradus.policies.local.conversation import opening_ids
from gradus.policies.local.loading import LoadedTokenizer
from gradus.training.data.sequences import Episodes, Stretch, TrainingSample


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


def _cut(loaded: LoadedTokenizer, episode: Episode, number: int) -> list[TrainingSample]:
    renderer = loaded.renderer.for_tools(episode.tools)
    conversations: list[Stretch] = []
    for index, turn in enumerate(episode.turns):
        if turn.asked is not None:  # a foreign agent may offer other tools in each call
            renderer = loaded.renderer.for_tools(turn.asked.tools)
        if turn.restart or not conversations:
            conversations.append(Stretch())
            conversations[-1].show(opening_ids(renderer, episode.system_prompt, turn))
        else:
            conversations[-1].show(renderer.following(turn.shown))
        answer = renderer.encode_answer(turn.action)
        # A limit cut the answer, so nobody said the stop token behind it: the next turn reads it, and it is not learned.
        learned = len(answer) - turn.cut if turn.valid else 0
        conversations[-1].answer(answer, index, [0.0] * learned)
    # The key is the same for all: any two samples may share a prefix, such as the system prompt.
    return [conversation.sample((0, 0), number) for conversation in conversations if conversation.places]
