"""A model behind an OpenAI-compatible API, as a teacher or a baseline."""
