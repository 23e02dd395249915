"""Graders before and after their own projects mended them."""
