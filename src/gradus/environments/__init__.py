"""The environments that come with Gradus, by name, and the way to bring one's own."""

from gradus.environments.registry import (
    file_name,
    from_class,
    is_registered_by_name,
    load,
    load_registered,
    load_stored,
    names,
    own_names,
    register,
    summary,
    with_random,
)

__all__ = [
    "file_name",
    "from_class",
    "is_registered_by_name",
    "load",
    "load_registered",
    "load_stored",
    "names",
    "own_names",
    "register",
    "summary",
    "with_random",
]
