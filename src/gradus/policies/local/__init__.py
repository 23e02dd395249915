"""A transformers model in this process: loading, chat templates, caches, sampling, export."""
