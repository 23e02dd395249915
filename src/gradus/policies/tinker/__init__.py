"""Sampling from models that a server of the Tinker training API holds."""
