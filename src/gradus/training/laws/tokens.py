"""Sampled tokens, again from the episodes: each is trained once, at its place, behind what the policy had read, and all of them are the text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import repeat
from typing import Any, cast

from gradus.core import Renderer, Turn
from gradus.training.data.sequences import Groups, Samples, TrainingSample, ints
from gradus.training.laws.credit import group_members
from gradus.training.laws.runner import NotMeasured, Pair, Pairs, holds

_EPISODES = 8  # whose text is looked at
Token = tuple[int, int, int, int, float]  # episode, turn, place within the answer, id, log-prob


def tokens_again(groups: Groups, samples: Samples, every: int) -> Pairs:
    """The trained tokens of answers, and what stands before them; one in so many (``every``) episodes is looked at."""
    members = group_members(groups)
    place = "the episodes that are trained, of those that are graded: one that earned 0 is not missing"
    yield Pair(len({sample.episode for sample in samples}), len(members), place)
    trained, sampled = Counter[Token](), Counter[Token]()
    for sample in samples:
        number = sample.episode
        if number % every:
            continue
        member = members[number]
        yield Pair(sample.key[0], member.group, f"episode {number}: the group of its sample")
        turns, offsets, ids = map(ints, (sample.turns, sample.offsets, sample.ids[sample.positions]))
        logprobs = cast(list[float], sample.logprobs.tolist())
        trained.update(zip(repeat(number), turns, offsets, ids, logprobs, strict=False))
        yield from _contexts_again(member.episode.turns, sample)
    for number in range(0, len(members), every):
        for index, turn in enumerate(members[number].episode.turns):
            tokens = turn.tokens
            if tokens is None or turn.undelivered:
                continue
            for offset, (token, logprob) in enumerate(zip(tokens.action_ids, tokens.logprobs, strict=True)):
                sampled[number, index, offset, token, logprob] += 1
    parted = (trained - sampled) + (sampled - trained)
    place = "trained tokens that are not those of the sampler, by turn, position, id and log-prob, or lacking"
    for number, *_ in sorted(parted)[:1]:
        place = f"group {members[number].group}, episode {number}: {place}"
    yield Pair(parted.total(), 0, place)


def _contexts_again(turns: Sequence[Turn], sample: TrainingSample) -> Pairs:
    """Each answer stands behind what the policy had read; what was shown, which observations predict, is what stands between answers."""
    shown: list[int] = []
    last: int | None = None  # behind the answer before
    for index, rows in sample.by_turn():
        tokens = turns[index].tokens
        if tokens is None:
            return
        # Also if the first tokens of the answer are not trained.
        start = int((sample.positions - sample.offsets)[rows].min())
        end = start + len(tokens.action_ids)
        # After a restart the policy read all that stands before.
        first = 0 if tokens.restart else max(0, start - len(tokens.context_ids))
        reads = ints(sample.ids[first:end]) == [*tokens.context_ids, *tokens.action_ids]
        place = f"episode {sample.episode}, turn {index}: what is read before the answer is the prompt that the sampler read"
        yield holds(reads, place)
        shown += range(start if last is None else last, start)
        last = end + turns[index].cut  # the token that closes an answer that was cut is nobody's
    if sample.read is not None and all(turn.tokens and turn.tokens.action_ids for turn in turns):
        place = "the tokens that the environment showed, which observations predict, stand between answers"
        yield holds(shown == ints(sample.read), f"episode {sample.episode}: {place}")


def text_again(groups: Groups, renderer: Renderer) -> Pairs:
    """What the tokenizer makes of tokens: those that were read hold what was shown, those that were said are the answer that is graded."""
    first_members = [episode for group in groups for episode in group.episodes[:1]]
    for episode in first_members[:_EPISODES]:
        for turn in episode.turns:
            if turn.tokens is None:
                continue
            place = f"the task with seed {episode.task.seed}, turn {turn.index}"
            shown = texts_shown(turn)
            has_system = bool(turn.messages) and turn.messages[0].role == "system"
            if turn.tokens.restart and not has_system:
                shown.append(episode.system_prompt)
            yield from texts_again(renderer, turn.tokens.context_ids, shown, f"{place}: the prompt")
            if turn.asked is None:
                ids = list(turn.tokens.action_ids)
                while ids and ids[-1] in renderer.stop_ids:
                    ids.pop()
                text = _decoded(renderer, ids)
                yield holds(turn.action.endswith(text), f"{place}: the answer {turn.action[:40]!r} is its tokens' text")


def texts_shown(turn: Turn) -> list[str]:
    """What the environment showed in a turn."""
    shown = [message.content for message in turn.messages if message.role in ("user", "system")]
    return shown if turn.messages else [turn.observation]


def texts_again(renderer: Renderer, ids: Sequence[int], texts: Sequence[str], place: str) -> Pairs:
    """The tokens that are read hold the texts, one behind the other or not; white space aside, and what the tokenizer cannot write."""
    read = _letters(_decoded(renderer, ids))
    for text in texts:
        spelled = _decoded(renderer, _tokenizer(renderer).encode(text, add_special_tokens=False))
        is_written = _letters(spelled) == _letters(text)
        kept = _letters(text) in read or not is_written
        yield holds(kept, f"{place} holds {text[:40]!r}, white space aside, among the tokens that are read")


def _tokenizer(renderer: Renderer) -> Any:
    tokenizer = getattr(renderer, "tokenizer", None)
    if tokenizer is None:
        raise NotMeasured("a tokenizer")
    return tokenizer


def _decoded(renderer: Renderer, ids: Sequence[int]) -> str:
    decode = _tokenizer(renderer).decode
    return decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _letters(text: str) -> str:
    """A text without white space, which templates and tokenizers move."""
    return "".join(text.split())
