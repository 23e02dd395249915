"""Training a model that a server of the Tinker API holds."""
