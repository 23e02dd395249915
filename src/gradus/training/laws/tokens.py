"""Sampled tokens, again from the episodes: each is trained once, at its place, behind what the policy had read, and all of them are the text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile, pairwise
from typing import Any, NamedTuple, cast

from torch import Tensor

from gradus.core import Group, Renderer, Turn, TurnTokens
from gradus.training.config import GrpoConfig
from gradus.training.data.sequences import TrainingSample, ints
from gradus.training.laws.credit import advantages_again, group_members
from gradus.training.laws.runner import LawRunner, NotMeasured, Pair, holds

_EPISODES = 8  # whose text is looked at
_LOOKED_AT = 16  # episodes whose tokens are looked at, behind the first step
Token = tuple[int, int, float]  # place within the answer, id, log-prob


def check_samples(
    laws: LawRunner,
    groups: Sequence[Group],
    samples: Sequence[TrainingSample],
    config: GrpoConfig,
    renderer: Renderer,
    stop_ids: frozenset[int] | None,
    weights: Mapping[str, float],
) -> None:
    """Holds the samples of a step to its stored episodes and rewards, which ``weights`` weigh. Raises LawBroken."""
    if laws.due:
        every = max(1, sum(len(group.episodes) for group in groups) // _LOOKED_AT)
        laws.check("tokens", tokens_again, groups, samples, stop_ids, every)
        laws.check("text", text_again, groups, renderer)
        laws.check("credit", advantages_again, groups, samples, config, renderer, every, weights)


class _Answer(NamedTuple):
    """An answer as it is trained: all ids of its sample, where it starts and ends there, and its tokens in order."""

    ids: Sequence[int]
    start: int
    end: int
    tokens: Sequence[Token]


def tokens_again(
    groups: Sequence[Group], samples: Sequence[TrainingSample], stop_ids: frozenset[int] | None, every: int
) -> Iterator[Pair]:
    """The trained tokens of answers, and what stands before them. ``stop_ids``: one of them ends each answer that no limit cut.

    ``every``: one in so many episodes is looked at.
    """
    members = group_members(groups)
    answers: dict[tuple[int, int], _Answer] = {}
    for sample in (each for each in samples if each.episode % every == 0):
        member, trained = members[sample.episode], _answers(sample)
        place = f"episode {sample.episode}: the group of its sample"
        yield Pair(sample.key[0], member.group, place)
        twice = sum((sample.episode, turn) in answers for turn in trained)
        yield Pair(twice, 0, f"episode {sample.episode}: turns that are trained twice")
        answers.update({(sample.episode, turn): answer for turn, answer in trained.items()})
        yield _shown(member.episode.turns, sample, trained)
    for number in range(0, len(members), every):
        for index, turn in enumerate(members[number].episode.turns):
            if turn.tokens is not None and not turn.undelivered and turn.tokens.action_ids:
                place = f"group {members[number].group}, episode {number}, turn {index}"
                yield from _answer_again(turn, turn.tokens, answers.get((number, index)), stop_ids, place)


def _answers(sample: TrainingSample) -> dict[int, _Answer]:
    """The answers of a sample by their turns."""
    logprobs, ids = cast(list[float], sample.logprobs.tolist()), ints(sample.ids)
    rows: dict[int, list[tuple[int, int, float]]] = {}
    for turn, place, offset, logprob in zip(
        ints(sample.turns), ints(sample.positions), ints(sample.offsets), logprobs, strict=True
    ):
        rows.setdefault(turn, []).append((offset, place, logprob))
    answers: dict[int, _Answer] = {}
    for turn, row in rows.items():
        row.sort()
        places = [place for _, place, _ in row]
        tokens = [(offset, ids[place], logprob) for offset, place, logprob in row]
        answers[turn] = _Answer(ids, min(places), max(places) + 1, tokens)
    return answers


def _answer_again(
    turn: Turn, sampled: TurnTokens, answer: _Answer | None, stop_ids: frozenset[int] | None, place: str
) -> Iterator[Pair]:
    """How many tokens of an answer are trained, how many of these are, in id, place and log-prob, what was sampled, and what they are read behind."""
    again = list(zip(range(len(sampled.action_ids)), sampled.action_ids, sampled.logprobs, strict=True))
    trained: Sequence[Token] = () if answer is None else answer.tokens
    yield Pair(len(trained), len(again), f"{place}: its trained tokens")
    agreeing = sum(one == other for one, other in zip(trained, again, strict=True))
    yield Pair(
        len(trained), agreeing, f"{place}: trained tokens that are those of the sampler, id, position and log-prob"
    )
    if answer is not None:
        # After a restart the policy read all that stands before.
        context = sampled.context_ids
        first = 0 if sampled.restart else max(0, answer.start - len(context))
        reads = tuple(answer.ids[first : answer.start]) == tuple(context)
        yield holds(reads, f"{place}: what is read before the answer is the prompt that the sampler read")
    if stop_ids is not None and turn.asked is None:
        ends = sampled.action_ids[-1] in stop_ids
        yield holds(ends, f"{place}: a stop token ends the answer, as none does that a limit cut", not turn.cut)


def _shown(turns: Sequence[Turn], sample: TrainingSample, trained: Mapping[int, _Answer]) -> Pair:
    """What the environment showed, which observations predict, is what stands between answers, behind the token that closes a cut one."""
    ends = sorted((answer.start, answer.end + turns[turn].cut) for turn, answer in trained.items())
    between = [place for (_, end), (start, _) in pairwise(ends) for place in range(end, start)]
    known = sample.read is not None and all(turn.tokens is not None and turn.tokens.action_ids for turn in turns)
    agree = not known or between == ints(cast(Tensor, sample.read))
    place = f"episode {sample.episode}: the tokens that the environment showed, which observations predict, stand between answers"
    return holds(agree, place)


def text_again(groups: Sequence[Group], renderer: Renderer) -> Iterator[Pair]:
    """What the tokenizer makes of tokens: those that were read hold what was shown, those that were said are the answer that is graded."""
    members = [episode for group in groups for episode in group.episodes[:1]]
    for episode in members[:_EPISODES]:
        for turn in episode.turns:
            if turn.tokens is None:
                continue
            place = f"the task with seed {episode.task.seed}, turn {turn.index}"
            shown = texts_shown(turn)
            if turn.tokens.restart and not (turn.messages and turn.messages[0].role == "system"):
                shown.append(episode.system_prompt)
            yield from texts_again(renderer, turn.tokens.context_ids, shown, f"{place}: the prompt")
            if turn.asked is None:
                behind = dropwhile(lambda token: token in renderer.stop_ids, reversed(turn.tokens.action_ids))
                text = _decoded(renderer, [*behind][::-1])
                yield holds(turn.action.endswith(text), f"{place}: the answer {turn.action[:40]!r} is its tokens' text")


def texts_shown(turn: Turn) -> list[str]:
    """What the environment showed in a turn."""
    shown = [message.content for message in turn.messages if message.role in ("user", "system")]
    return shown if turn.messages else [turn.observation]


def texts_again(renderer: Renderer, ids: Sequence[int], texts: Sequence[str], place: str) -> Iterator[Pair]:
    """The tokens that are read hold the texts, one behind the other or not; white space aside, and what the tokenizer cannot write."""
    read = _letters(_decoded(renderer, ids))
    tokenizer = _tokenizer(renderer)
    for text in texts:
        spelled = _decoded(renderer, tokenizer.encode(text, add_special_tokens=False))
        kept = _letters(text) in read or _letters(spelled) != _letters(text)
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
