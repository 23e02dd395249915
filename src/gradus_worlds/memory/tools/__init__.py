"""Finds, carries out and spells the tool calls that a policy writes."""
