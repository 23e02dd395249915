"""Divergences of a student's distribution of the next token from its teacher's, one value a token.

p is the student's and q the teacher's, both after temperature. With 0 < beta < 1 the mixture is M = beta q + (1 - beta) p
(GKD, Agarwal et al., arXiv 2306.13649; TRL's convention is the same):

- ``forward``: KL(q || p). The student covers all that the teacher may say; what SFT on endless samples of q does.
- ``reverse``: KL(p || q). The student keeps to what the teacher finds likely.
- ``jsd``: beta KL(q || M) + (1 - beta) KL(p || M).

No gradient goes through how the tokens were sampled, nor into the teacher.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

DivergenceName = Literal["forward", "reverse", "jsd"]
Divergence = Callable[[Tensor, Tensor], Tensor]  # log-probs (A, V) of student and teacher -> (A,) nats

_ROUNDED = 1e-9  # mass below it is what rounding leaves of probabilities in float64


def forward_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """KL(q || p) of log-probs (A, V). Words that the teacher never says (-inf) add nothing."""
    return _expected(teacher, teacher, student)


def reverse_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """KL(p || q) of log-probs (A, V); infinite if the student may say what the teacher never says."""
    return _expected(student, student, teacher)


def generalized_jsd(student: Tensor, teacher: Tensor, beta: float) -> Tensor:
    """beta KL(q || M) + (1 - beta) KL(p || M) of log-probs (A, V), M = beta q + (1 - beta) p, 0 < beta < 1."""
    never = (student == -torch.inf) & (teacher == -torch.inf)
    p = student.masked_fill(never, 0.0) + math.log1p(-beta)
    q = teacher.masked_fill(never, 0.0) + math.log(beta)
    mixture = torch.logaddexp(p, q)
    from_teacher = _expected(teacher, teacher, mixture)
    from_student = _expected(student, student, mixture)
    return beta * from_teacher + (1 - beta) * from_student


def find_divergence(name: DivergenceName, beta: float = 0.5) -> Divergence:
    """The divergence of that name; ``beta`` is read by ``jsd`` alone.

    >>> p, q = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.75, 0.25]]).log()
    >>> [round(float(find_divergence(name)(p, q)), 4) for name in ("forward", "reverse", "jsd")]
    [0.1308, 0.1438, 0.0338]
    """
    named: Mapping[str, Divergence] = {
        "forward": forward_kl,
        "reverse": reverse_kl,
        "jsd": lambda student, teacher: generalized_jsd(student, teacher, beta),
    }
    return named[name]


def on_named_words(divergence: Divergence, student: Tensor, ids: Tensor, probabilities: Tensor) -> Tensor:
    """The divergence (A,) if of the teacher only K words are known: student (A, V) log-probs, ids and probabilities (A, K).

    What the named words lack of 1 is one word ``other``, with the student's remaining mass. A teacher that names all it may say leaves it
    nothing: then ``forward`` and ``jsd`` are those of the full vocabulary, and ``reverse`` is infinite.
    """
    present = probabilities > 0  # a row may be padded
    named = student.gather(1, ids).masked_fill(~present, -torch.inf)
    is_named = torch.zeros_like(student).scatter_add(1, ids, present.to(student)) > 0
    # The complement's own sum: 1 minus the named mass is rounding once the student knows its teacher.
    other = student.masked_fill(is_named, -torch.inf).logsumexp(1, keepdim=True)
    of_student = torch.cat([named, other], 1)

    lacking = 1.0 - probabilities.sum(1, keepdim=True)
    nothing_lacks = (lacking < _ROUNDED) | (other == -torch.inf)
    lacking = lacking.masked_fill(nothing_lacks, 0.0)
    of_teacher = torch.cat([probabilities, lacking], 1).log().to(student.dtype)
    return divergence(of_student, of_teacher)


def _expected(weight: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """The sum over words of exp(weight) (p - q), 0 where the weight is 0."""
    never = weight == -torch.inf
    # Before the subtraction: a difference of two infinities has no gradient that could be masked.
    p, q = p.masked_fill(never, 0.0), q.masked_fill(never, 0.0)
    difference = torch.where(never, 0.0, p - q)
    return (weight.exp() * difference).sum(1)
