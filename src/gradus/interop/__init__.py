"""Bridges to what people have: OpenEnv, Gymnasium, TRL, trackers, the Hub, and samplers behind HTTP.

Each bridge imports its library only when it is used.
"""

__all__: list[str] = []
