"""The desk: a database of orders and the tools that read and change it. The public methods are the tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from gradus_worlds.shop.cases import REASONS, WINDOW, WISHES, Case, Order, draw_case

SYSTEM_PROMPT = (
    "You serve the customers of a shop . Find the order , ask for the reason , read the rule for it , "
    "do exactly what the rule says , then say done ."
)
_MARKS = {"replace": "replaced", "cancel": "cancelled", "refuse": "refused"}


class Desk:
    """One customer's call. A tool raises ValueError with what was wrong; the policy reads it and may try again."""

    system_prompt = SYSTEM_PROMPT
    case: Case

    def reset(self, seed: int, rules: str = "known") -> str:
        """Draw the case, fill the database, and say what the customer says."""
        self.case = draw_case(seed, rules)
        self._orders = {order.id: order for order in self.case.orders}
        self._refunds: list[tuple[int, int]] = []
        self._remedies: list[tuple[int, str]] = []
        self._at_hand: int | None = None
        return f"I am {self.case.customer} . It is about the {self.case.order.item} . {WISHES[self.case.wish]}"

    def find(self, customer: str, item: str) -> str:
        """Find an order and keep it at hand.

        Args:
            customer: The customer's name.
            item: What was ordered.
        """
        found = [order for order in self._orders.values() if (order.customer, order.item) == (customer, item)]
        if not found:
            raise ValueError(f"{customer} has no order of a {item}")
        order = found[0]
        self._at_hand = order.id
        return f"order {order.id} : {order.days} days ago , {order.status} , {order.price} euro"

    def ask(self, about: Literal["reason", "wish"]) -> str:
        """Ask the customer.

        Args:
            about: What to ask for.
        """
        return REASONS[self.case.reason] if about == "reason" else WISHES[self.case.wish]

    def rule(self, reason: Literal["broken", "unwanted", "missing"]) -> str:
        """Read what the rule book says of the order at hand.

        Args:
            reason: Why the customer calls.
        """
        days = self._found().days
        (rule,) = (rule for rule in self.case.rules if rule.reason == reason)
        return f"{reason} , {'recent' if days <= WINDOW else 'old'} : {rule.due(days)}"

    def refund(self, share: Literal["full", "half"]) -> str:
        """Pay money back for the order at hand.

        Args:
            share: How much of the price.
        """
        order = self._change(share, "refunded")
        self._refunds.append((order.id, order.price if share == "full" else order.price // 2))
        return f"refunded {share} for {order.id}"

    def replace(self) -> str:
        """Send the item of the order at hand once more."""
        return self._mark("replace")

    def cancel(self) -> str:
        """Cancel the order at hand."""
        return self._mark("cancel")

    def refuse(self) -> str:
        """Turn the claim on the order at hand down."""
        return self._mark("refuse")

    def outcome(self) -> Mapping[str, Any]:
        """Returns what was due, and what was done to orders. The case is settled if the one change is the due one."""
        return {
            "reason": self.case.reason,
            "due": self.case.due,
            "wish": self.case.wish,
            "order": self.case.order.id,
            "settled": self._remedies == [(self.case.order.id, self.case.due)],
            "remedies": [list(each) for each in self._remedies],
            "refunds": [list(each) for each in self._refunds],
        }

    def _mark(self, remedy: str) -> str:
        return f"{_MARKS[remedy]} {self._change(remedy, _MARKS[remedy]).id}"

    def _change(self, remedy: str, status: str) -> Order:
        """Change the order at hand, about which nothing may have been done yet."""
        order = self._found()
        if order.status not in ("sent", "delivered"):
            raise ValueError(f"{order.id} is {order.status} already")
        self._orders[order.id] = replace(order, status=status)
        self._remedies.append((order.id, remedy))
        return order

    def _found(self) -> Order:
        if self._at_hand is None:
            raise ValueError("find the order first")
        return self._orders[self._at_hand]
