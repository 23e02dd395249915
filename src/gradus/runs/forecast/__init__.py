"""Will it work? What a run needs of memory and time, what its base earns, and what would go wrong, before anything is spent."""
