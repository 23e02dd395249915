"""Cases: who calls, what was ordered, what really happened, and what the rule book of the day says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

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
