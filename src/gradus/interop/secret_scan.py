"""Looks for keys in what is about to leave this machine: the forms that providers publish for theirs, and values of the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from gradus.core.errors import ConfigError

# Kind -> how such a key looks. Each begins with its own letters, which keeps random text and hashes out.
FORMS: Mapping[str, str] = {
    "an OpenAI or Anthropic key": r"sk-[A-Za-z0-9_-]{20,}",
    "a Hugging Face token": r"hf_[A-Za-z0-9]{30,}",
    "a GitHub token": r"gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{40,}",
    "a GitLab token": r"glpat-[A-Za-z0-9_-]{20,}",
    "an AWS key id": r"(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    "an AWS secret key": r"(?i:aws_secret_access_key)[\"'\\\s:=]{1,8}[A-Za-z0-9/+]{40}",
    "a Google key": r"AIza[A-Za-z0-9_-]{35}",
    "a Slack token": r"xox[abeprs]-[A-Za-z0-9-]{10,}",
    "a Stripe key": r"[rs]k_live_[A-Za-z0-9]{20,}",
    "an npm or PyPI token": r"npm_[A-Za-z0-9]{36}|pypi-AgE[A-Za-z0-9_-]{50,}",
    "a private key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----",
    "a JSON web token": r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
    "a bearer token": r"(?i:bearer)\s+(?=[A-Za-z_.~+/-]*[0-9])[A-Za-z0-9_.~+/-]{20,}",
    "a password in an address": r"[A-Za-z][A-Za-z0-9+.]{1,20}://[^\s/:@\"'\\<>{}$]{1,64}:[^\s/:@\"'\\<>{}$]{4,64}@",
}
# Not in the middle of a word, as in "task-..."; the n of JSON's \n is none of its letters.
_FORMS = {
    kind: re.compile(rb"(?:(?<![A-Za-z0-9])|(?<=\\n))(?:" + form.encode() + rb")") for kind, form in FORMS.items()
}
_SECRET_NAME = re.compile(r"(API_?KEY|TOKEN|SECRET|PASSWORD|ACCESS_KEY)$", re.IGNORECASE)
_SHORTEST = 8  # characters of a value; a server without a key is often given "EMPTY"


def find_secrets(content: bytes) -> Iterator[tuple[int, str]]:
    """The line and the kind of each key in ``content``; never the key."""
    forms = dict(_FORMS)
    for name, value in os.environ.items():
        # A key without a known form is found by its value, if it is set in this environment.
        if _SECRET_NAME.search(name) and len(value) >= _SHORTEST:
            forms[f"the value of ${name}"] = re.compile(re.escape(os.fsencode(value)))
    for kind, form in forms.items():
        for match in form.finditer(content):
            yield content.count(b"\n", 0, match.start()) + 1, kind


def refuse_secrets(files: Iterable[tuple[str, bytes | Path]], *, doing: str) -> None:
    """Raise ConfigError that names file and line of every key in ``files``, which are names with contents or places on disk.

    Of a .safetensors file only the header is read: the rest are numbers.
    """
    places: list[str] = []
    for name, content in files:
        secrets = set(find_secrets(_read(content) if isinstance(content, Path) else content))
        places += [f"{name} line {line}: {kind}" for line, kind in sorted(secrets)]
    if places:
        raise ConfigError(
            f"expected nothing secret in what is to be {doing}, got {'; '.join(places[:10])}; take it out there, "
            "and revoke the key if it has left this machine before"
        )


def _read(path: Path) -> bytes:
    if path.suffix != ".safetensors":
        return path.read_bytes()
    with path.open("rb") as file:
        # The format begins with the header's length; a damaged file may say any.
        length = int.from_bytes(file.read(8), "little")
        return file.read(min(length, 2**27))
