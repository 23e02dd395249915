"""A memory on disk, outside any training: every change is flushed before it is confirmed.

>>> import tempfile
>>> from gradus.api.memory import DurableMemory
>>> with DurableMemory(tempfile.mkdtemp(), create=True) as memory:
...     entry = memory.insert("values", "prefers tea to coffee")
...     [hit.entry.content for hit in memory.search("tea")]
['prefers tea to coffee']
"""

from gradus.environments.memory import DurableMemory, find_schema, import_file, run_calls

__all__ = ["DurableMemory", "find_schema", "import_file", "run_calls"]
