"""The desk: a database of orders and the tools that read and change it. The public methods are the tools."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any, Literal

from gradus.environments.shop.cases import REASONS, REMEDIES, WISHES, Case, draw_case

__all__ = ["SYSTEM_PROMPT", "Desk", "settled"]

SYSTEM_PROMPT = (
    "You serve the customers of a shop . Look up the order , ask for the reason , read the rule for it , "
    "give exactly what the rule says , then say done ."
)
_TABLES = """
create table orders (id integer primary key, customer text, item text, price integer, status text, days integer);
create table rules (reason text primary key, days integer, within text, later text);
create table refunds (number integer primary key, id integer, amount integer);
"""
_State = tuple[tuple[tuple[int, str], ...], tuple[tuple[int, int], ...]]


class Desk:
    """One customer's call. A tool raises ValueError with what was wrong; the policy reads it and may try again."""

    system_prompt = SYSTEM_PROMPT
    case: Case

    def __init__(self) -> None:
        self._database: sqlite3.Connection | None = None

    def reset(self, seed: int, rules: str = "known", orders: int = 3) -> str:
        """Draw the case, fill the database, and say what the customer says."""
        self.close()
        self.case = draw_case(seed, rules, orders)
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.executescript(_TABLES)
        self._database.executemany(
            "insert into orders values (?, ?, ?, ?, ?, ?)", [astuple(order) for order in self.case.orders]
        )
        self._database.executemany("insert into rules values (?, ?, ?, ?)", [astuple(rule) for rule in self.case.rules])
        return f"I am {self.case.customer} . It is about the {self.case.order.item} . {WISHES[self.case.wish]}"

    def orders(self, customer: str) -> str:
        """List a customer's orders.

        Args:
            customer: The customer's name.
        """
        rows = self._rows("select id, item, price, status, days from orders where customer = ? order by id", customer)
        if not rows:
            raise ValueError(f"no orders of {customer}")
        return "\n".join(f"{id} : {item} {price} {status} {days} days ago" for id, item, price, status, days in rows)

    def ask(self, about: Literal["reason", "wish"]) -> str:
        """Ask the customer.

        Args:
            about: What to ask for.
        """
        return REASONS[self.case.reason] if about == "reason" else WISHES[self.case.wish]

    def rule(self, reason: Literal["broken", "unwanted", "missing"]) -> str:
        """Read the rule book.

        Args:
            reason: Why the customer calls.
        """
        ((days, within, later),) = self._rows("select days, within, later from rules where reason = ?", reason)
        return f"{reason} : within {days} days {within} , later {later} ."

    def refund(self, order: int, share: Literal["full", "half"]) -> str:
        """Pay money back.

        Args:
            order: The order's number.
            share: How much of the price.
        """
        price = self._open(order)[0]
        amount = price if share == "full" else price // 2
        self._write("insert into refunds (id, amount) values (?, ?)", order, amount)
        self._write("update orders set status = 'refunded' where id = ?", order)
        return f"paid {share} for {order}"

    def replace(self, order: int) -> str:
        """Send the item once more.

        Args:
            order: The order's number.
        """
        return self._mark(order, "replaced")

    def cancel(self, order: int) -> str:
        """Cancel an order.

        Args:
            order: The order's number.
        """
        return self._mark(order, "cancelled")

    def outcome(self) -> Mapping[str, Any]:
        """What was due, and the orders and refunds as they are and as they should be."""
        state = self._state()
        return {
            "reason": self.case.reason,
            "due": self.case.due,
            "wish": self.case.wish,
            "order": self.case.order.id,
            "settled": state == settled(self.case),
            "refunds": [list(each) for each in state[1]],
            "changed": [list(each) for each in state[0]],
        }

    def close(self) -> None:
        """Close the database."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def _mark(self, order: int, status: str) -> str:
        self._open(order)
        self._write("update orders set status = ? where id = ?", status, order)
        return f"{status} {order}"

    def _open(self, order: int) -> tuple[int, str]:
        """Price and status of an order that nothing was done about yet."""
        rows = self._rows("select price, status from orders where id = ?", order)
        if not rows:
            raise ValueError(f"no order {order}")
        price, status = rows[0]
        if status not in ("sent", "delivered"):
            raise ValueError(f"{order} is {status} already")
        return price, status

    def _state(self) -> _State:
        """What was changed: orders with another status than at first, and refunds."""
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
    """What the database should say has changed when the case is closed."""
    order, due = case.order, case.due
    assert due in REMEDIES
    if due == "nothing":
        return (), ()
    if due in ("replace", "cancel"):
        return ((order.id, "replaced" if due == "replace" else "cancelled"),), ()
    amount = order.price if due == "refund full" else order.price // 2
    return ((order.id, "refunded"),), ((order.id, amount),)
