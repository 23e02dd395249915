"""The laws of a run: identities that are computed twice while it trains. Each file holds second computations; ``runner`` compares."""
