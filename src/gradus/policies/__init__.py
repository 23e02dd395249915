"""Policies that answer observations: local language models, remote ones, and how text becomes tokens for them.

Names are imported when they are first used, so that a remote policy does not pay for importing torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradus.policies.grammar import Grammar, WordGrammar
    from gradus.policies.loading import LoadedModel, load_model
    from gradus.policies.local import LocalPolicy, LocalSession
    from gradus.policies.nano import NanoConfig, build_tokenizer, make_nano
    from gradus.policies.remote import RemotePolicy
    from gradus.policies.renderers import ChatRenderer
    from gradus.policies.sampling import (
        SamplingConfig,
        chosen_logprobs,
        draw,
        legal_mask,
        sampling_logprobs,
        turn_uniforms,
    )

_HOME = {
    "ChatRenderer": "renderers",
    "Grammar": "grammar",
    "LoadedModel": "loading",
    "LocalPolicy": "local",
    "LocalSession": "local",
    "NanoConfig": "nano",
    "RemotePolicy": "remote",
    "SamplingConfig": "sampling",
    "WordGrammar": "grammar",
    "build_tokenizer": "nano",
    "chosen_logprobs": "sampling",
    "draw": "sampling",
    "legal_mask": "sampling",
    "load_model": "loading",
    "make_nano": "nano",
    "sampling_logprobs": "sampling",
    "turn_uniforms": "sampling",
}

__all__ = [
    "ChatRenderer",
    "Grammar",
    "LoadedModel",
    "LocalPolicy",
    "LocalSession",
    "NanoConfig",
    "RemotePolicy",
    "SamplingConfig",
    "WordGrammar",
    "build_tokenizer",
    "chosen_logprobs",
    "draw",
    "legal_mask",
    "load_model",
    "make_nano",
    "sampling_logprobs",
    "turn_uniforms",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
