"""What a policy writes: finding its tool calls, carrying them out, and how they are spelled."""
