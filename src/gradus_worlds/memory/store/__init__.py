"""A memory of entries in banks: in the process, or on disk by SQLite."""
