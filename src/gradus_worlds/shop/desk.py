"""Cases and the desk: who calls, what was ordered, what really happened, what the rule book of the day says, and the tools.

The desk's public methods are the tools, which read and change a database of orders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

from gradus.core import ConfigError, child_rng

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


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The remedy that is due for a reason, for a recent order and for an old one."""

    reason: str
    recent: str
    old: str

    def due(self, days: int) -> str:
        """The remedy for an order of so many days ago."""
        return self.recent if days <= WINDOW else self.old


@dataclass(frozen=True, kw_only=True)
class Order:
    """One line of the database. ``status`` is delivered or sent at first, so many days ago."""

    id: int
    customer: str
    item: str
    price: int
    status: str
    days: int


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call of a customer. ``reason`` is hidden until asked for; ``wish`` is what they say they want, due or not."""

    customer: str
    order: Order
    reason: str
    wish: str
    orders: tuple[Order, ...]
    rules: tuple[Rule, ...]

    @property
    def due(self) -> str:
        """Returns what the rule book says this customer is to get."""
        return next(rule for rule in self.rules if rule.reason == self.reason).due(self.order.days)


def draw_case(seed: int, rules: str = "known") -> Case:
    """The case of a seed. ``rules``: ``known``, or ``new`` for those that training never shows."""
    if rules not in ("known", "new"):
        raise ConfigError(f"rules are known or new, got {rules!r}")
    rng = child_rng(seed, "shop", rules)
    reason = rng.choice(tuple(REASONS))
    book = tuple(_rule(each, rng, rules) for each in REASONS)
    customer, other = rng.sample(CUSTOMERS, 2)
    own = rng.randint(2, 3)
    ids, items = rng.sample(IDS, own + 2), rng.sample(ITEMS, own + 2)
    placed = [
        _order(rng, id, customer if place < own else other, item)
        for place, (id, item) in enumerate(zip(ids, items, strict=True))
    ]
    subject = rng.randrange(own)
    sent = "sent" if reason == "missing" else "delivered"
    chosen = Order(**{**vars(placed[subject]), "status": sent})
    placed[subject] = chosen
    return Case(
        customer=customer,
        order=chosen,
        reason=reason,
        wish=rng.choice(tuple(WISHES)),
        orders=tuple(sorted(placed, key=lambda order: order.id)),
        rules=book,
    )


def _rule(reason: str, rng: Random, rules: str) -> Rule:
    due = NEW_RULES[reason]
    if rules == "known":
        due = tuple(rng.choice([remedy for remedy in REMEDIES if remedy != new]) for new in due)
    return Rule(reason=reason, recent=due[0], old=due[1])


def _order(rng: Random, id: int, customer: str, item: str) -> Order:
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
