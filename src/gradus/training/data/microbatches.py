"""Training samples to microbatches: a tree of shared prefixes and their suffixes, padded as little as possible.

A microbatch is two rectangles laid end to end in one row: P prefixes of up to Lp tokens and B suffixes of up to Ls tokens.
Each suffix attends to its parent prefix and to itself. A prefix that G members of a group share is therefore computed once,
and its gradient is the sum over the members. Position-wise layers see one long row; only attention knows the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from gradus.core.frozen_record import frozen_record
from gradus.training.data.sequences import LegalIds, Samples, ints, split

SHORTEST_PREFIX = 8  # below this, sharing costs more in bookkeeping than it saves
PASS = 512  # tokens that could be computed in the time that one more pass takes to start

Device = torch.device | str


@frozen_record
class Tree:
    """The tokens that each token attends to.

    ``prefixes`` (P, Lp) and ``suffixes`` (B, Ls) are the shapes of the two rectangles (P may be 0). ``lengths``: real tokens of
    each prefix; ``members``: its number of suffixes, which follow each other.
    """

    prefixes: tuple[int, int]
    suffixes: tuple[int, int]
    lengths: tuple[int, ...]
    members: tuple[int, ...]

    @cached_property
    def mask(self) -> Tensor | None:
        """(1 or B, 1, Ls, Lp + Ls), 0 where a suffix token may look and -inf elsewhere; None without prefixes. Made when first used."""
        if not self.lengths:
            return None
        longest = self.suffixes[1]
        lengths = torch.tensor(self.lengths).repeat_interleave(torch.tensor(self.members))
        if len(set(self.lengths)) == 1:
            lengths = lengths[:1]  # one mask serves all rows
        inside = torch.arange(self.prefixes[1]) < lengths[:, None]
        prefix = inside[:, None].expand(-1, longest, -1)
        causal = torch.ones((longest, longest), dtype=torch.bool).tril()
        visible = torch.cat([prefix, causal.expand(len(lengths), -1, -1)], dim=2)[:, None]
        return torch.zeros(visible.shape, dtype=torch.float32).masked_fill_(~visible, float("-inf"))


@frozen_record
class Labels:
    """The sampled tokens of a microbatch, flat, length A.

    ``source`` position in the row whose hidden state predicts the token; ``target`` its id; ``row`` index of its sequence
    in the microbatch, whose tokens follow each other; ``legal`` (A, V) bool or None. ``read_source`` and ``read_target`` (R,):
    the same of the tokens that the environment showed before the last sampled one. ``soft``: likely tokens and their probabilities,
    (A, K) both; None without a teacher's.
    """

    source: Tensor
    target: Tensor
    row: Tensor
    legal: Tensor | None
    read_source: Tensor
    read_target: Tensor
    soft: tuple[Tensor, Tensor] | None = None

    def to(self, device: Device) -> Labels:
        """The same labels on ``device``."""
        return Labels(**{name: _moved(value, device) for name, value in vars(self).items()})


def _moved(value: Any, device: Device) -> Any:
    """A tensor, or a tuple of tensors, on ``device``; None as it is."""
    if isinstance(value, Tensor):
        return value.to(device)
    return None if value is None else tuple(part.to(device) for part in value)


@frozen_record
class MicroBatch:
    """One forward and backward pass.

    ``input_ids`` and ``positions`` (1, P * Lp + B * Ls). ``sequences``: index, in the list that was cut, of each row.
    ``tokens``: real tokens computed, a shared prefix counted once; padding is what ``input_ids`` holds beyond.
    """

    input_ids: Tensor
    positions: Tensor
    tree: Tree
    labels: Labels
    sequences: tuple[int, ...]
    tokens: int

    def to(self, device: Device) -> MicroBatch:
        """The same microbatch on ``device``."""
        ids, positions = self.input_ids.to(device), self.positions.to(device)
        return replace(self, input_ids=ids, positions=positions, labels=self.labels.to(device))

    def by_sequence(self, values: Tensor) -> list[tuple[int, Tensor]]:
        """The index of each sequence, and its part of ``values`` (A,) of the sampled tokens."""
        lengths = ints(torch.bincount(self.labels.row))
        return list(zip(self.sequences, split(values, lengths), strict=True))


@dataclass(frozen=True)
class _Branch:
    """Samples that share their first ``prefix`` tokens, by index."""

    prefix: int
    members: tuple[int, ...]
    longest: int  # of the suffixes


def microbatches(
    sequences: Samples,
    *,
    budget: int,
    share: bool = True,
    vocabulary: int | None = None,
) -> list[MicroBatch]:
    """Cuts samples into microbatches of at most ``budget`` tokens each, padding and shared prefixes counted as computed.

    Samples of like length go together. A single one longer than the budget is a microbatch of its own. ``share`` False computes every
    row alone. ``vocabulary`` is needed if samples carry legal tokens. The cut depends on lengths and order only, and no result may
    depend on the cut.
    """
    if budget < 1:
        raise ValueError(f"budget must be at least 1 token, got {budget}")
    branches: list[_Branch] = []
    for branch in _branches(sequences, share):
        branches += _split(branch, sequences, budget)
    branches.sort(key=lambda branch: (-branch.longest, -branch.prefix, branch.members))
    batches: list[list[_Branch]] = []
    for branch in branches:
        if batches and _area([*batches[-1], branch]) <= budget and _together(batches[-1], branch):
            batches[-1].append(branch)
        else:
            batches.append([branch])
    return [_layout(batch, sequences, vocabulary) for batch in batches]


def _together(batch: Sequence[_Branch], branch: _Branch) -> bool:
    """Keeps prefixes apart from rows that have none, and padding under an eighth, or under what another pass costs."""
    first = batch[0]
    if (first.prefix == 0) != (branch.prefix == 0):
        return False
    if branch.longest * 8 >= first.longest * 7 and branch.prefix * 8 >= first.prefix * 7:
        return True
    parts = [*batch, branch]
    # Between branches alone: the padding within a branch is there in any pass.
    tokens = sum(part.prefix + len(part.members) * part.longest for part in parts)
    return _area(parts) - tokens <= PASS


def _area(branches: Sequence[_Branch]) -> int:
    """Tokens that a microbatch of these branches computes, padding included."""
    prefix = max(branch.prefix for branch in branches)
    longest = max(branch.longest for branch in branches)
    rows = sum(len(branch.members) for branch in branches)
    return len(branches) * prefix + rows * longest


def _branches(sequences: Samples, share: bool) -> list[_Branch]:
    """Groups by key the samples that share a prefix without sampled tokens."""
    families: dict[tuple[int, int], list[int]] = {}
    for index, sequence in enumerate(sequences):
        if sequence.actions:
            families.setdefault(sequence.key if share else (index, 0), []).append(index)
    branches: list[_Branch] = []
    for members in families.values():
        prefix = _common_prefix([sequences[index] for index in members])
        if len(members) > 1 and prefix >= SHORTEST_PREFIX:
            longest = max(sequences[index].reach for index in members) - prefix
            # Answers of one token are predicted from the prefix, and leave nothing to compute behind it.
            branches.append(_Branch(prefix, tuple(members), max(longest, 1)))
        else:
            branches.extend(_Branch(0, (index,), sequences[index].reach) for index in members)
    return branches


def _common_prefix(members: Samples) -> int:
    """Length of the longest prefix that all members share and that ends before the first sampled token of each."""
    first = members[0].ids
    length = min(int(member.positions[0]) for member in members)
    for member in members[1:]:
        differs = (first[:length] != member.ids[:length]).nonzero()
        if len(differs):
            length = int(differs[0])
    return length


def _split(branch: _Branch, sequences: Samples, budget: int) -> list[_Branch]:
    """Cuts a branch if it exceeds the budget, or if padding would cost more than computing the prefix again."""
    ordered = sorted(branch.members, key=lambda index: (-sequences[index].reach, index))
    lengths = [max(1, sequences[index].reach - branch.prefix) for index in ordered]
    parts: list[_Branch] = []
    start = 0
    for end in range(1, len(ordered) + 1):
        if end < len(ordered):
            tokens = branch.prefix + (end + 1 - start) * lengths[start]
            padding = (len(ordered) - end) * (lengths[start] - lengths[end])
            if tokens <= budget and padding <= branch.prefix + SHORTEST_PREFIX:
                continue
        parts.append(_Branch(branch.prefix, tuple(ordered[start:end]), lengths[start]))
        start = end
    return parts


def _layout(branches: Sequence[_Branch], sequences: Samples, vocabulary: int | None) -> MicroBatch:
    """Lays the branches into two rectangles, row by row."""
    members = [(number, index) for number, branch in enumerate(branches) for index in branch.members]
    indexes = tuple(index for _, index in members)
    shared = [branch for branch in branches if branch.prefix]  # all, or none
    tree = Tree(
        prefixes=(len(shared), max(branch.prefix for branch in branches)),
        suffixes=(len(members), max(branch.longest for branch in branches)),
        lengths=tuple(branch.prefix for branch in shared),
        members=tuple(len(branch.members) for branch in shared),
    )
    (prefixes, longest_prefix), (rows, longest) = tree.prefixes, tree.suffixes
    input_ids = torch.zeros(prefixes * longest_prefix + rows * longest, dtype=torch.int64)
    positions = [torch.arange(longest_prefix).repeat(prefixes)]
    places: list[Tensor] = []  # of a sample's tokens in the row
    tokens = sum(branch.prefix for branch in branches)
    for row, (number, index) in enumerate(members):
        sample, start = sequences[index], branches[number].prefix
        before = number * longest_prefix + torch.arange(start)
        behind = prefixes * longest_prefix + row * longest + torch.arange(sample.reach - start)
        places.append(torch.cat([before, behind]))
        input_ids[places[-1]] = sample.ids[: sample.reach]
        # Padding has the place of its row's last token: one behind it may be beyond the model's context.
        positions.append((start + torch.arange(longest)).clamp(max=sample.reach - 1))
        tokens += len(behind)
    labels = _labels([sequences[index] for index in indexes], places, vocabulary)
    return MicroBatch(
        input_ids=input_ids[None],
        positions=torch.cat(positions)[None],
        tree=tree,
        labels=labels,
        sequences=indexes,
        tokens=tokens,
    )


def _labels(samples: Samples, places: Sequence[Tensor], vocabulary: int | None) -> Labels:
    """Says where each sampled token, and each that the environment showed, is predicted from: often in a shared prefix."""
    pairs = list(zip(samples, places, strict=True))
    lengths = torch.tensor([sample.actions for sample in samples])
    return Labels(
        source=torch.cat([place[sample.positions - 1] for sample, place in pairs]),
        read_source=torch.cat([place[sample.shown - 1] for sample, place in pairs]),
        read_target=torch.cat([sample.ids[sample.shown] for sample in samples]),
        target=torch.cat([sample.learned_ids for sample in samples]),
        row=torch.arange(len(samples)).repeat_interleave(lengths),
        legal=_legal(samples, vocabulary),
        soft=_soft(samples),
    )


def _soft(samples: Samples) -> tuple[Tensor, Tensor] | None:
    """The teacher's targets of all sampled tokens, as wide as the widest."""
    targets = [sample.soft for sample in samples if sample.soft is not None]
    if len(targets) < len(samples):
        return None
    width = max(ids.shape[1] for ids, _ in targets)
    ids, chances = zip(*targets, strict=True)
    return _padded(ids, width), _padded(chances, width)


def _padded(parts: Sequence[Tensor], width: int) -> Tensor:
    """(A, ``width``) of parts (A_i, K_i), 0 where one is narrower."""
    return torch.cat([pad(part, (0, width - part.shape[1])) for part in parts])


def _legal(samples: Samples, vocabulary: int | None) -> Tensor | None:
    """(A, V) bool, true where a grammar allowed the token; all true if no grammar was in force."""
    if all(sample.legal is None for sample in samples):
        return None
    if vocabulary is None:
        raise ValueError("sequences carry legal tokens; microbatches needs the size of the vocabulary")
    entries: list[LegalIds] = []
    for sample in samples:
        entries += sample.legal if sample.legal is not None else [None] * sample.actions
    # A grammar has few distinct sets: each is spread over the vocabulary once.
    number = {entry: index for index, entry in enumerate(dict.fromkeys(entries))}
    table = torch.zeros((len(number), vocabulary), dtype=torch.bool)
    for entry, index in number.items():
        allowed = slice(None) if entry is None else torch.tensor(entry)
        table[index, allowed] = True
    return table[torch.tensor([number[entry] for entry in entries])]
