"""One-turn tasks with a checkable answer: arithmetic, GSM8K, one's own JSONL or CSV."""
