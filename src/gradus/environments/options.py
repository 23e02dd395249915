"""Reads the options behind a name, as in ``gymnasium:FrozenLake-v1?is_slippery=false``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any
from urllib.parse import parse_qsl

from gradus.core import ConfigError
from gradus.core.values import JsonDict

_FORMATS = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
}


def format_of(path: str) -> str | None:
    """Returns the format of a file of rows by its suffix, without ``.gz``: jsonl, csv or parquet; None for another suffix.

    >>> format_of("rows.csv.gz"), format_of("rows.txt")
    ('csv', None)
    """
    return _FORMATS.get(PurePath(path.lower().removesuffix(".gz")).suffix)


def read_options(name: str, query: str) -> dict[str, str]:
    """Returns the options of a query as texts. Raises ConfigError that names ``name`` if it cannot be read."""
    try:
        # strict_parsing refuses an empty query as well, which is how a name without options comes.
        return dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError as error:
        raise ConfigError(f"{name} should have options such as ?option=value&other=value; {error}") from error


def json_options(name: str, query: str) -> JsonDict:
    """Returns the options of a query with their values as JSON; what is not JSON is a text."""
    return {key: _json_or_text(text) for key, text in read_options(name, query).items()}


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def known_options(name: str, query: str, kinds: Mapping[str, Callable[[str], Any]]) -> JsonDict:
    """Returns the options of a name that takes these and no others. ``kinds``: str, int or float; numbers are above 0."""
    options: JsonDict = {}
    for key, text in read_options(name, query).items():
        if key not in kinds:
            raise ConfigError(f"unknown option {key!r} in {name}; known are {', '.join(kinds)}")
        options[key] = text if kinds[key] is str else _number(name, key, text, kinds[key])
    return options


def _number(name: str, key: str, text: str, kind: Callable[[str], Any]) -> Any:
    try:
        number = kind(text)
    except ValueError:
        number = 0
    # A limit of 0 would end all, and float() also reads nan; neither is above 0.
    if not number > 0:
        raise ConfigError(f"the option {key} of {name} is {text!r}; expected a number above 0")
    return number
