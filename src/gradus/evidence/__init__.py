"""Evaluation, health and reports: what judges a result and a run, and what shows them."""
