"""The desk: a database of orders and the tools that read and change it. The public methods are the tools."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any, Literal

from gradus_worlds.shop.cases import REASONS, WINDOW, WISHES, Case, draw_case

SYSTEM_PROMPT = (
    "You serve the customers of a shop . Find the order , ask for the reason , read the rule for it , "
    "do exactly what the rule says , then say done ."
)
_TABLES = """
create table orders (id integer primary key, customer text, item text, price integer, status text, days integer);
create table rules (reason text primary key, recent text, old text);
create table refunds (number integer primary key, id integer, amount integer);
"""
_MARKS = {"replace": "replaced", "cancel": "cancelled", "refuse": "refused"}
_State = tuple[tuple[tuple[int, str], ...], tuple[tuple[int, int], ...]]


class Desk:
    """One customer's call. A tool raises ValueError with what was wrong; the policy reads it and may try again."""

    system_prompt = SYSTEM_PROMPT
    case: Case

    def __init__(self) -> None:
        self._database: sqlite3.Connection | None = None

    def reset(self, seed: int, rules: str = "known") -> str:
        """Draw the case, fill the database, and say what the customer says."""
        self.close()
        self._at_hand: int | None = None
        self._remedies: list[tuple[int, str]] = []
        self.case = draw_case(seed, rules)
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.executescript(_TABLES)
        self._database.executemany(
            "insert into orders values (?, ?, ?, ?, ?, ?)", [astuple(order) for order in self.case.orders]
        )
        self._database.executemany("insert into rules values (?, ?, ?)", [astuple(rule) for rule in self.case.rules])
        return f"I am {self.case.customer} . It is about the {self.case.order.item} . {WISHES[self.case.wish]}"

    def find(self, customer: str, item: str) -> str:
        """Find an order and keep it at hand.

        Args:
            customer: The customer's name.
            item: What was ordered.
        """
        rows = self._rows("select id, days, status, price from orders where customer = ? and item = ?", customer, item)
        if not rows:
            raise ValueError(f"{customer} has no order of a {item}")
        self._at_hand, days, status, price = rows[0]
        return f"order {self._at_hand} : {days} days ago , {status} , {price} euro"

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
        order = self._found()
        ((recent, old),) = self._rows("select recent, old from rules where reason = ?", reason)
        ((days,),) = self._rows("select days from orders where id = ?", order)
        return f"{reason} , recent : {recent}" if days <= WINDOW else f"{reason} , old : {old}"

    def refund(self, share: Literal["full", "half"]) -> str:
        """Pay money back for the order at hand.

        Args:
            share: How much of the price.
        """
        price = self._change(share, "refunded")
        self._write(
            "insert into refunds (id, amount) values (?, ?)", self._at_hand, price if share == "full" else price // 2
        )
        return f"refunded {share} for {self._at_hand}"

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
        """Returns what was due, and the orders and refunds as they are and as they should be."""
        state = self._state()
        return {
            "reason": self.case.reason,
            "due": self.case.due,
            "wish": self.case.wish,
            "order": self.case.order.id,
            "settled": state == settled(self.case),
            "remedies": [list(each) for each in self._remedies],
            "refunds": [list(each) for each in state[1]],
            "changed": [list(each) for each in state[0]],
        }

    def close(self) -> None:
        """Close the database."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def _mark(self, remedy: str) -> str:
        self._change(remedy, _MARKS[remedy])
        return f"{_MARKS[remedy]} {self._at_hand}"

    def _change(self, remedy: str, status: str) -> int:
        """Change the order at hand, about which nothing may have been done yet; its price."""
        order = self._found()
        ((price, before),) = self._rows("select price, status from orders where id = ?", order)
        if before not in ("sent", "delivered"):
            raise ValueError(f"{order} is {before} already")
        self._write("update orders set status = ? where id = ?", status, order)
        self._remedies.append((order, remedy))
        return price

    def _found(self) -> int:
        if self._at_hand is None:
            raise ValueError("find the order first")
        return self._at_hand

    def _state(self) -> _State:
        """Returns what was changed: orders with another status than at first, and refunds."""
        first = {order.id: order.status for order in self.case.orders}
        statuses = self._rows("select id, status from orders order by id")
        refunds = self._rows("select id, amount from refunds order by number")
        return tuple((id, status) for id, status in statuses if status != first[id]), tuple(refunds)

    def _rows(self, query: str, *values: Any) -> list[Any]:
        assert self._database is not None
        return self._database.execute(query, values).fetchall()

    def _write(self, query: str, *values: Any) -> None:
        assert self._database is not None
        self._database.execute(query, values)


def settled(case: Case) -> _State:
    """Returns what the database should say has changed when the case is closed."""
    order, due = case.order, case.due
    if due in _MARKS:
        return ((order.id, _MARKS[due]),), ()
    amount = order.price if due == "full" else order.price // 2
    return ((order.id, "refunded"),), ((order.id, amount),)
