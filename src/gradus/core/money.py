"""Money: prices of tokens, and accounts that nothing is paid beyond."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gradus.core.errors import GradusError
from gradus.core.frozen_record import frozen_record

BROKE = "US dollars is used up"  # ends the error of a request for which there was no money left


class OutOfMoney(GradusError):
    """Something could cost more than what is left."""


@frozen_record
class Price:
    """US dollars per million tokens."""

    prompt: float
    completion: float

    def cost(self, prompt_tokens: float, completion_tokens: float) -> float:
        """US dollars of one call."""
        return (self.prompt * prompt_tokens + self.completion * completion_tokens) / 1e6


@dataclass(kw_only=True, eq=False)
class Account:
    """US dollars that are paid to servers, up to ``limit`` and to the limits of ``parent``.

    ``promised``: the most that requests under way may cost. ``refused``: a request was not made for want of money.
    """

    limit: float | None = None
    parent: Account | None = None
    spent: float = 0.0
    promised: float = 0.0
    refused: bool = False

    @property
    def is_limited(self) -> bool:
        """True if there is a limit here or above."""
        return any(account.limit is not None for account in self._accounts())

    @contextmanager
    def promise(self, most: float) -> Generator[None]:
        """Hold ``most`` US dollars for a request. Raises OutOfMoney if that could go beyond a limit."""
        # First all are asked: a promise that one of them refuses is held by none.
        accounts = list(self._accounts())
        for account in accounts:
            if account.limit is not None and account.spent + account.promised + most > account.limit:
                account.refused = True
                raise OutOfMoney(f"the budget of {account.limit:g} {BROKE}")
        for account in accounts:
            account.promised += most
        try:
            yield
        finally:
            for account in accounts:
                account.promised -= most

    def pay(self, cost: float) -> None:
        """Count what a request has cost."""
        for account in self._accounts():
            account.spent += cost

    def _accounts(self) -> Iterator[Account]:
        account: Account | None = self
        while account is not None:
            yield account
            account = account.parent
