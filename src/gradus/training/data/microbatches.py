"""Training samples to microbatches: a tree of shared prefixes and their suffixes, padded as little as possible.

A microbatch is two rectangles laid end to end in one row: P prefixes of up to Lp tokens and B suffixes of up to Ls tokens.
Each suffix attends to its parent prefix and to itself. A prefix that G members of a group share is therefore computed once,
and its gradient is the sum over the members. Position-wise layers see one long row; only attention knows the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from gradus.training.data.sequences import TrainingSample

SHORTEST_PREFIX = 8  # below this, sharing costs more in bookkeeping than it saves
PASS = 512  # tokens that could be computed in the time that one more pass takes to start


@dataclass(frozen=True, kw_only=True)
class Tree:
    """The tokens that each token attends to.

    ``prefixes`` (P, Lp) and ``suffixes`` (B, Ls) are the shapes of the two rectangles (P may be 0). ``lengths``: real tokens of
    each prefix; ``members``: its number of suffixes, which follow each other. ``parent`` (B,) is the prefix of each suffix; None
    if every prefix has the same number of suffixes.
    """

    prefixes: tuple[int, int]
    suffixes: tuple[int, int]
    lengths: tuple[int, ...]
    members: tuple[int, ...]
    parent: Tensor | None

    @cached_property
    def mask(self) -> Tensor | None:
        """(1 or B, 1, Ls, Lp + Ls), 0 where a suffix token may look and -inf elsewhere; None without prefixes. Made when first used."""
        if not self.lengths:
            return None
        longest_prefix, (rows, longest) = self.prefixes[1], self.suffixes
        own = torch.ones((longest, longest), dtype=torch.bool).tril()
        if len(set(self.lengths)) == 1:
            seen = torch.cat([torch.ones((longest, longest_prefix), dtype=torch.bool), own], dim=1)[None, None]
        else:
            lengths = torch.tensor(self.lengths).repeat_interleave(torch.tensor(self.members))
            inside = torch.arange(longest_prefix) < lengths[:, None]
            before = inside[:, None].expand(rows, longest, longest_prefix)
            seen = torch.cat([before, own.expand(rows, longest, longest)], dim=2)[:, None]
        return torch.zeros(seen.shape, dtype=torch.float32).masked_fill_(~seen, float("-inf"))


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
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

    def to(self, device: torch.device | str) -> MicroBatch:
        """The same microbatch on ``device``."""
        return self if self.input_ids.device == torch.device(device) else _on(self, device)


def _on(value: Any, device: torch.device | str) -> Any:
    """A record with its tensors on ``device``; anything without tensors as it is."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        return tuple(_on(each, device) for each in value)
    if is_dataclass(value):
        return replace(value, **{each.name: _on(getattr(value, each.name), device) for each in fields(value)})  # type: ignore[type-var]
    return value


@dataclass(frozen=True)
class _Branch:
    """Sequences that share their first ``prefix`` tokens, by index."""

    prefix: int
    members: tuple[int, ...]
    longest: int  # of the suffixes


def microbatches(
    sequences: Sequence[TrainingSample],
    *,
    budget: int,
    share: bool = True,
    vocabulary: int | None = None,
) -> list[MicroBatch]:
    """Cut sequences into microbatches of at most ``budget`` tokens each, padding and shared prefixes counted as computed.

    Sequences of like length go together. A single sequence longer than the budget is a microbatch of its own. ``share``
    False computes every row alone. ``vocabulary`` is needed if sequences carry legal tokens. The cut depends on lengths
    and order only, and no result may depend on the cut.
    """
    if budget < 1:
        raise ValueError(f"budget must be at least 1 token, got {budget}")
    branches = [part for branch in _branches(sequences, share) for part in _split(branch, sequences, budget)]
    branches.sort(key=lambda branch: (-branch.longest, -branch.prefix, branch.members))
    batches: list[list[_Branch]] = []
    for branch in branches:
        if batches and _area([*batches[-1], branch]) <= budget and _together(batches[-1], branch):
            batches[-1].append(branch)
        else:
            batches.append([branch])
    return [_layout(batch, sequences, vocabulary) for batch in batches]


def _together(batch: Sequence[_Branch], branch: _Branch) -> bool:
    """Keep prefixes apart from rows that have none, and padding under an eighth, or under what another pass costs."""
    if (batch[0].prefix == 0) != (branch.prefix == 0):
        return False
    if branch.longest * 8 >= batch[0].longest * 7 and branch.prefix * 8 >= batch[0].prefix * 7:
        return True
    parts = [*batch, branch]
    return _area(parts) - sum(part.prefix + len(part.members) * part.longest for part in parts) <= PASS


def _area(branches: Sequence[_Branch]) -> int:
    prefix = max(branch.prefix for branch in branches)
    longest = max(branch.longest for branch in branches)
    return len(branches) * prefix + sum(len(branch.members) for branch in branches) * longest


def _branches(sequences: Sequence[TrainingSample], share: bool) -> list[_Branch]:
    """Group by key the sequences that share a prefix without sampled tokens."""
    alone = [index for index, sequence in enumerate(sequences) if sequence.actions]
    if not share:
        return [_Branch(0, (index,), _reach(sequences[index])) for index in alone]
    families: dict[tuple[int, int], list[int]] = {}
    for index in alone:
        families.setdefault(sequences[index].key, []).append(index)
    branches: list[_Branch] = []
    for members in families.values():
        prefix = _common_prefix([sequences[index] for index in members])
        if len(members) > 1 and prefix >= SHORTEST_PREFIX:
            longest = max(_reach(sequences[index]) for index in members) - prefix
            branches.append(_Branch(prefix, tuple(members), max(longest, 1)))
        else:
            branches.extend(_Branch(0, (index,), _reach(sequences[index])) for index in members)
    return branches


def _reach(sequence: TrainingSample) -> int:
    """Tokens that must be computed: the last sampled token is predicted, never read."""
    return int(sequence.positions[-1])


def _common_prefix(members: Sequence[TrainingSample]) -> int:
    """Length of the longest prefix that all members share and that ends before the first sampled token of each."""
    first = members[0].ids
    length = min(int(member.positions[0]) for member in members)
    for member in members[1:]:
        differs = (first[:length] != member.ids[:length]).nonzero()
        if len(differs):
            length = int(differs[0])
    return length


def _split(branch: _Branch, sequences: Sequence[TrainingSample], budget: int) -> list[_Branch]:
    """Cut a branch if it exceeds the budget, or if padding would cost more than computing the prefix again."""
    ordered = sorted(branch.members, key=lambda index: (-_reach(sequences[index]), index))
    lengths = [max(1, _reach(sequences[index]) - branch.prefix) for index in ordered]
    parts: list[_Branch] = []
    start = 0
    for end in range(1, len(ordered) + 1):
        if end < len(ordered):
            full = branch.prefix + (end + 1 - start) * lengths[start] > budget
            padding = (len(ordered) - end) * (lengths[start] - lengths[end])
            if not full and padding <= branch.prefix + SHORTEST_PREFIX:
                continue
        parts.append(_Branch(branch.prefix, tuple(ordered[start:end]), lengths[start]))
        start = end
    return parts


def _layout(branches: Sequence[_Branch], sequences: Sequence[TrainingSample], vocabulary: int | None) -> MicroBatch:
    shared = branches[0].prefix > 0
    prefixes = len(branches) if shared else 0
    longest_prefix = max(branch.prefix for branch in branches)
    longest = max(branch.longest for branch in branches)
    rows = [(number, index) for number, branch in enumerate(branches) for index in branch.members]
    prefix_ids = torch.zeros((prefixes, longest_prefix), dtype=torch.int64)
    suffix_ids = torch.zeros((len(rows), longest), dtype=torch.int64)
    start = [branches[number].prefix for number, _ in rows]
    tokens = 0
    for number, branch in enumerate(branches[:prefixes]):
        prefix_ids[number, : branch.prefix] = sequences[branch.members[0]].ids[: branch.prefix]
        tokens += branch.prefix
    for row, (_, index) in enumerate(rows):
        suffix = sequences[index].ids[start[row] : _reach(sequences[index])]
        suffix_ids[row, : len(suffix)] = suffix
        tokens += len(suffix)
    # Padding has the place of its row's last token: one behind it may be further than the model's context reaches.
    last = torch.tensor([_reach(sequences[index]) - 1 for _, index in rows])
    places = torch.minimum(torch.tensor(start)[:, None] + torch.arange(longest), last[:, None])
    return MicroBatch(
        input_ids=torch.cat([prefix_ids.ravel(), suffix_ids.ravel()])[None],
        positions=torch.cat([torch.arange(longest_prefix).repeat(prefixes), places.ravel()])[None],
        tree=_tree(branches, prefixes, longest_prefix, len(rows), longest),
        labels=_labels(rows, start, sequences, (prefixes, longest_prefix, longest), vocabulary),
        sequences=tuple(index for _, index in rows),
        tokens=tokens,
    )


def _tree(branches: Sequence[_Branch], prefixes: int, longest_prefix: int, rows: int, longest: int) -> Tree:
    if not prefixes:
        return Tree(prefixes=(0, 0), suffixes=(rows, longest), lengths=(), members=(), parent=None)
    members = tuple(len(branch.members) for branch in branches)
    parent = torch.arange(len(branches)).repeat_interleave(torch.tensor(members))
    return Tree(
        prefixes=(prefixes, longest_prefix),
        suffixes=(rows, longest),
        lengths=tuple(branch.prefix for branch in branches),
        members=members,
        parent=None if len(set(members)) == 1 else parent,
    )


def _labels(
    rows: Sequence[tuple[int, int]],
    start: Sequence[int],
    sequences: Sequence[TrainingSample],
    shape: tuple[int, int, int],
    vocabulary: int | None,
) -> Labels:
    """Says where each sampled token is predicted from: the first one often from the last position of a shared prefix."""
    prefixes, longest_prefix, longest = shape

    def sources(row: int, number: int, positions: Tensor) -> Tensor:
        before = positions - 1
        in_suffix = prefixes * longest_prefix + row * longest + before - start[row]
        return torch.where(before >= start[row], in_suffix, number * longest_prefix + before)

    chosen = [sequences[index] for _, index in rows]
    nothing = torch.empty(0, dtype=torch.int64)
    shown = [one.read[one.read < _reach(one)] if one.read is not None else nothing for one in chosen]
    return Labels(
        source=torch.cat(
            [sources(row, number, sequences[index].positions) for row, (number, index) in enumerate(rows)]
        ),
        read_source=torch.cat([sources(row, number, shown[row]) for row, (number, _) in enumerate(rows)]),
        read_target=torch.cat([one.ids[places] for one, places in zip(chosen, shown, strict=True)]),
        target=torch.cat([one.ids[one.positions] if one.targets is None else one.targets for one in chosen]),
        row=torch.arange(len(chosen)).repeat_interleave(torch.tensor([one.actions for one in chosen])),
        legal=_legal(chosen, vocabulary),
        soft=_soft(chosen),
    )


def _soft(chosen: Sequence[TrainingSample]) -> tuple[Tensor, Tensor] | None:
    """The teacher's targets of all sampled tokens, as wide as the widest."""
    targets = [one.soft for one in chosen if one.soft is not None]
    if len(targets) < len(chosen):
        return None
    width = max(ids.shape[1] for ids, _ in targets)
    ids, chances = (
        torch.cat([pad(each, (0, width - each.shape[1])) for each in column]) for column in zip(*targets, strict=True)
    )
    return ids, chances


def _legal(chosen: Sequence[TrainingSample], vocabulary: int | None) -> Tensor | None:
    """(A, V) bool, true where a grammar allowed the token; all true if no grammar was in force."""
    if all(one.legal is None for one in chosen):
        return None
    if vocabulary is None:
        raise ValueError("sequences carry legal tokens; microbatches needs the size of the vocabulary")
    entries = [entry for one in chosen for entry in (one.legal if one.legal is not None else (None,) * one.actions)]
    number = {entry: index for index, entry in enumerate(dict.fromkeys(entries))}  # a grammar has few distinct sets
    table = torch.zeros((len(number), vocabulary), dtype=torch.bool)
    for entry, index in number.items():
        table[index, slice(None) if entry is None else torch.tensor(entry)] = True
    return table[torch.tensor([number[entry] for entry in entries])]
