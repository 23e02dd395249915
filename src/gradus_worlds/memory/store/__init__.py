"""A memory of entries in banks: in the process, or in a folder."""
