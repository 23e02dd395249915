"""Frozen readers, which answer questions from a memory."""
