"""The version, in a file of its own, so that every room can read it without the front door."""

__version__ = "0.4.0"
