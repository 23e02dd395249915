"""Shop: a customer with a complaint, a database behind tools, and a rule book that says what is due."""

from gradus_worlds.shop.spec import load

__all__ = ["load"]
