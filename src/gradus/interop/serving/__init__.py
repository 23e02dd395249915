"""A trained model behind an OpenAI-compatible server."""
