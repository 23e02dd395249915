"""Gradus trains language-model agents with GRPO on the machine one has, and proves that they got better."""

__version__ = "0.2.0"
