"""Policies: what answers observations. ``local`` models, ``remote`` ones, servers of tokens (``vllm``), and ``nano`` models to train."""
