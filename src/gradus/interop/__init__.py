"""Bridges to what people have: OpenEnv, Gymnasium, TRL, trackers, the Hub, and samplers behind HTTP.

Each file is one bridge and imports what it bridges only when it is used, so that nothing here costs what is not asked for.
"""

__all__: list[str] = []
