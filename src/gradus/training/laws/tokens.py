"""Sampled tokens, again from the episodes: each is trained once, at its place, behind what the policy had read, and all of them are the text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import dropwhile, pairwise
from typing import cast

from gradus.core import Group, Renderer, Turn
from gradus.training.config import GrpoConfig
from gradus.training.data.sequences import TrainingSample, ints
from gradus.training.laws.credit import GroupMember, advantages_again, group_members
from gradus.training.laws.runner import LawRunner, NotMeasured, Pair

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


def tokens_again(
    groups: Sequence[Group], samples: Sequence[TrainingSample], stop_ids: frozenset[int] | None, every: int
) -> Iterator[Pair]:
    """The trained tokens of answers, and what stands before them. ``stop_ids``: one of them ends each answer that no limit cut.

    ``every``: one in so many episodes is looked at.
    """
    members = group_members(groups)
    samples_of: dict[tuple[int, int], TrainingSample] = {}
    for sample in (each for each in samples if each.episode % every == 0):
        place = f"episode {sample.episode}: the group of its sample"
        yield Pair(sample.key[0], members[sample.episode].group, 0.0, place)
        for turn in sorted(set(ints(sample.turns))):
            yield Pair(
                samples_of.setdefault((sample.episode, turn), sample) is sample, True, 0.0, f"{place}, trained once"
            )
    for number, member in list(enumerate(members))[::every]:
        for index, turn in enumerate(member.episode.turns):
            if turn.tokens is None or turn.undelivered or not turn.tokens.action_ids:
                continue
            place = f"group {member.group}, episode {number}, turn {index}"
            sample = samples_of.get((number, index))
            trained = [] if sample is None else _trained(sample, index)
            yield from _answer(turn, trained, place)
            if sample is not None:
                yield Pair(_reads(sample, index, turn), True, 0.0, f"{place}: what is read before the answer")
            if stop_ids is not None and turn.asked is None:
                ends = turn.tokens.action_ids[-1] in stop_ids
                yield Pair(
                    ends,
                    not turn.cut,
                    0.0,
                    f"{place}: whether a stop token ends the answer, as none does that a limit cut",
                )
        yield from _shown(member, [samples_of[key] for key in samples_of if key[0] == number], number)


def _shown(member: GroupMember, samples: Sequence[TrainingSample], number: int) -> Iterator[Pair]:
    """What the environment showed, which observations predict, is what stands between the answers, behind the token that closes a cut one."""
    turns = member.episode.turns
    if any(turn.tokens is None or not turn.tokens.action_ids for turn in turns):
        return
    for sample in {id(sample): sample for sample in samples}.values():
        spans: list[tuple[int, int, int]] = []
        for turn in sorted(set(ints(sample.turns))):
            places = sample.positions[sample.turns == turn]
            spans.append((int(places.min()), int(places.max()) + 1 + turns[turn].cut, turn))
        spans.sort()
        again = [place for one, other in pairwise(spans) for place in range(one[1], other[0])]
        same = sample.read is None or ints(sample.read) == again
        yield Pair(
            same,
            True,
            0.0,
            f"episode {number}: whether the tokens that the environment showed, which observations predict, are those between answers",
        )


def text_again(groups: Sequence[Group], renderer: Renderer) -> Iterator[Pair]:
    """What the tokenizer makes of tokens: those that were read hold what was shown, those that were said are the answer that is graded."""
    tokenizer = getattr(renderer, "tokenizer", None)
    if tokenizer is None:
        raise NotMeasured("a tokenizer")
    decode = partial(tokenizer.decode, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    members = [episode for group in groups for episode in group.episodes[:1]]
    for episode in members[:_EPISODES]:
        for turn in episode.turns:
            if turn.tokens is None:
                continue
            place = f"the task with seed {episode.task.seed}, turn {turn.index}"
            shown = [message.content for message in turn.messages if message.role in ("user", "system")]
            if not turn.messages:
                shown = [turn.observation]
            if turn.tokens.restart and not (turn.messages and turn.messages[0].role == "system"):
                shown.append(episode.system_prompt)
            read = _letters(decode(list(turn.tokens.context_ids)))
            for text in map(_letters, shown):
                kept = text in read or _letters(decode(tokenizer.encode(text, add_special_tokens=False))) != text
                yield Pair(kept, True, 0.0, f"{place}: whether the prompt holds {text[:40]!r}, white space aside")
            if turn.asked is None:
                behind = dropwhile(lambda token: token in renderer.stop_ids, reversed(turn.tokens.action_ids))
                ids = [*behind][::-1]
                said = turn.action.endswith(decode(ids))
                yield Pair(said, True, 0.0, f"{place}: whether the answer {turn.action[:40]!r} is its tokens' text")


def _letters(text: str) -> str:
    """A text without white space, which templates and tokenizers move."""
    return "".join(text.split())


def _trained(sample: TrainingSample, turn: int) -> list[Token]:
    """The trained tokens of an answer, in its order."""
    rows = (sample.turns == turn).nonzero()[:, 0]
    ids = ints(sample.ids[sample.positions[rows]])
    logprobs = cast(list[float], sample.logprobs[rows].tolist())
    return sorted(zip(ints(sample.offsets[rows]), ids, logprobs, strict=True))


def _answer(turn: Turn, trained: Sequence[Token], place: str) -> Iterator[Pair]:
    """How many tokens of an answer are trained, and how many of these are, in id, place and log-prob, what was sampled."""
    assert turn.tokens is not None
    sampled = list(zip(range(len(turn.tokens.action_ids)), turn.tokens.action_ids, turn.tokens.logprobs, strict=True))
    yield Pair(len(trained), len(sampled), 0.0, f"{place}: its trained tokens")
    agreeing = sum(one == other for one, other in zip(trained, sampled, strict=True))
    yield Pair(len(trained), agreeing, 0.0, f"{place}: trained tokens that are those of the sampler")


def _reads(sample: TrainingSample, index: int, turn: Turn) -> bool:
    """Says whether what stands before an answer is what the policy read: all of it after a restart."""
    assert turn.tokens is not None
    start = int(sample.positions[sample.turns == index].min())
    context = list(turn.tokens.context_ids)
    before = ints(sample.ids[:start])
    return before == context if turn.tokens.restart else before[start - len(context) :] == context
