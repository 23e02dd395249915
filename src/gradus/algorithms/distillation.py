"""Divergences of a student's distribution of the next token from its teacher's, one value a token.

p is the student's and q the teacher's. With 0 < beta < 1 the mixture is M = beta q + (1 - beta) p
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

_ROUNDED = 1e-6  # mass below it is what rounding leaves


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

    What the named words lack of 1 is one word ``other``, with the student's remaining mass. If they lack nothing, the divergence is that
    of the student's distribution among them, plus -log of the mass that it gives them: for ``forward`` this is KL(q || p) as it is, and
    the others are finite.
    """
    absent = probabilities == 0
    named = student.gather(1, ids).masked_fill(absent, -torch.inf)
    named_mass = named.logsumexp(1)  # of the student, in nats
    lacking = 1.0 - probabilities.sum(1)
    complete = lacking < _ROUNDED

    other = torch.log1p(-named_mass.exp().clamp(max=1.0 - _ROUNDED))
    other = other.masked_fill(complete, -torch.inf)
    among_named = torch.where(complete[:, None], named - named_mass[:, None], named)
    of_student = torch.cat([among_named, other[:, None]], 1)

    lacking = lacking.masked_fill(complete, 0.0)
    of_teacher = torch.cat([probabilities, lacking[:, None]], 1).log()
    return divergence(of_student, of_teacher) - named_mass.masked_fill(~complete, 0.0)


def _expected(weight: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """The sum over words of exp(weight) (p - q), 0 where the weight is 0."""
    never = weight == -torch.inf
    # Before the subtraction: a difference of two infinities has no gradient that could be masked.
    p, q = p.masked_fill(never, 0.0), q.masked_fill(never, 0.0)
    difference = torch.where(never, 0.0, p - q)
    return (weight.exp() * difference).sum(1)
