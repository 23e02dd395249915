"""Cases and the desk: who calls, what was ordered, what really happened, what the rule book of the day says, and the tools.

The desk's public methods are the tools, which read and change a database of orders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Literal

from gradus.core import ConfigError, child_rng, frozen_record

CUSTOMERS = ("Ann", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gina", "Hugo", "Iris", "Jack")
ITEMS = ("lamp", "chair", "kettle", "radio", "clock", "vase", "bag", "coat", "table", "mirror")
PRICES = (20, 40, 60, 80)
IDS = range(10, 30)
WINDOW = 14  # days in which an order is recent
DAYS = range(1, 2 * WINDOW + 1)
REASONS: Mapping[str, str] = {
    "broken": "It came broken .",
    "unwanted": "I do not want it any more .",
    "missing": "It never came .",
}
REMEDIES = ("full", "half", "replace", "cancel", "refuse")
WISHES: Mapping[str, str] = {
    "full": "I want all my money back .",
    "half": "I want half of my money back .",
    "replace": "I want a new one .",
    "cancel": "I want to cancel it .",
}
# What training never shows as due for a recent order, nor for an old one. One of the two is seen in a case, so each is new by itself.
NEW_RULES: Mapping[str, tuple[str, str]] = {
    "broken": ("half", "refuse"),
    "unwanted": ("replace", "full"),
    "missing": ("full", "cancel"),
}

SYSTEM_PROMPT = (
    "You serve the customers of a shop . Find the order , ask for the reason , read the rule for it , "
    "do exactly what the rule says , then say done ."
)
_MARKS = {"replace": "replaced", "cancel": "cancelled", "refuse": "refused"}


@frozen_record
class DueRule:
    """The remedy that is due for a recent order and for an old one."""

    recent: str
    old: str

    def due(self, days: int) -> str:
        """The remedy for an order of so many days ago."""
        return self.recent if days <= WINDOW else self.old


@frozen_record
class Order:
    """One line of the database."""

    id: int
    customer: str
    item: str
    # In euro.
    price: int
    # Delivered or sent at first; a remedy changes it.
    status: str
    # So many days ago.
    days: int


@frozen_record
class Case:
    """One call of a customer."""

    customer: str
    order: Order
    # Why they call; hidden until it is asked for.
    reason: str
    # What they say they want, due or not.
    wish: str
    # The database: those of the customer and of a neighbor.
    orders: Sequence[Order]
    # By reason.
    rules: Mapping[str, DueRule]

    @property
    def due(self) -> str:
        """Returns what the rule book says this customer is to get."""
        return self.rules[self.reason].due(self.order.days)


def draw_case(seed: int, rules: str = "known") -> Case:
    """The case of a seed. ``rules``: ``known``, or ``new`` for those that training never shows."""
    if rules not in ("known", "new"):
        raise ConfigError(f"rules are known or new, got {rules!r}")
    rng = child_rng(seed, "shop", rules)
    reason = rng.choice(tuple(REASONS))
    book = {reason: _draw_rule(reason, rng, rules) for reason in REASONS}
    customer, neighbor = rng.sample(CUSTOMERS, 2)
    count = rng.randint(2, 3)
    ids = rng.sample(IDS, count + 2)
    items = rng.sample(ITEMS, count + 2)
    # Orders of a neighbor are there, so that the name has to be read.
    owners = [customer] * count + [neighbor] * 2
    orders = [_draw_order(rng, *columns) for columns in zip(ids, owners, items, strict=True)]
    subject = rng.randrange(count)
    order = replace(orders[subject], status="sent" if reason == "missing" else "delivered")
    orders[subject] = order
    wish = rng.choice(tuple(WISHES))
    return Case(customer=customer, order=order, reason=reason, wish=wish, orders=orders, rules=book)


def _draw_rule(reason: str, rng: Random, rules: str) -> DueRule:
    recent, old = NEW_RULES[reason]
    if rules == "known":
        recent = _choose_but(recent, rng)
        old = _choose_but(old, rng)
    return DueRule(recent=recent, old=old)


def _choose_but(new: str, rng: Random) -> str:
    return rng.choice([remedy for remedy in REMEDIES if remedy != new])


def _draw_order(rng: Random, id: int, customer: str, item: str) -> Order:
    status = rng.choice(("sent", "delivered"))
    return Order(id=id, customer=customer, item=item, price=rng.choice(PRICES), status=status, days=rng.choice(DAYS))


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
        for order in self._orders.values():
            if (order.customer, order.item) == (customer, item):
                self._at_hand = order.id
                return f"order {order.id} : {order.days} days ago , {order.status} , {order.price} euro"
        raise ValueError(f"{customer} has no order of a {item}")

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
        days = self._order().days
        age = "recent" if days <= WINDOW else "old"
        return f"{reason} , {age} : {self.case.rules[reason].due(days)}"

    def refund(self, share: Literal["full", "half"]) -> str:
        """Pay money back for the order at hand.

        Args:
            share: How much of the price.
        """
        order = self._change(share, "refunded")
        money = order.price if share == "full" else order.price // 2
        self._refunds.append((order.id, money))
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
        case = self.case
        return {
            "reason": case.reason,
            "due": case.due,
            "wish": case.wish,
            "order": case.order.id,
            "settled": self._remedies == [(case.order.id, case.due)],
            "remedies": [list(remedy) for remedy in self._remedies],
            "refunds": [list(refund) for refund in self._refunds],
        }

    def _mark(self, remedy: str) -> str:
        status = _MARKS[remedy]
        return f"{status} {self._change(remedy, status).id}"

    def _change(self, remedy: str, status: str) -> Order:
        """Change the order at hand, about which nothing may have been done yet."""
        order = self._order()
        if order.status not in ("sent", "delivered"):
            raise ValueError(f"{order.id} is {order.status} already")
        self._orders[order.id] = replace(order, status=status)
        self._remedies.append((order.id, remedy))
        return order

    def _order(self) -> Order:
        if self._at_hand is None:
            raise ValueError("find the order first")
        return self._orders[self._at_hand]
