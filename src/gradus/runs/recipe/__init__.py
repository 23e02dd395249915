"""A recipe: the settings of a run, read in layers, merged once, checked once."""

MOST_EPISODES = 10_000_000  # a mistyped number should not keep a machine busy for ever
