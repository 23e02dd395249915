"""Bridges to what people have: suites, OpenEnv, the Hub, other people's agents, and samplers behind HTTP.

Each bridge imports its library only when it is used.
"""

__all__: list[str] = []
