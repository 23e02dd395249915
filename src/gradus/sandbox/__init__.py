"""Other processes: confined ones for what is not trusted, and workers for our own code. Imports the core alone."""
