"""From a name on the command line to a policy: scripted, remote, or a model in a folder."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gradus.core import ConfigError, EnvironmentSpec, Policy
from gradus.core.errors import require_training
from gradus.core.naming import did_you_mean, import_object
from gradus.core.values import Json, without_none
from gradus.policies.local.folders import (
    RUN_MODELS,
    check_model_source,
    find_model,
    is_hub_name,
    tell_first_seed,
    trained_precision,
)

if TYPE_CHECKING:
    from gradus.policies.local.loading import LoadedModel, LoadedTokenizer
    from gradus.policies.local.policy import LocalPolicy
    from gradus.policies.local.sampling import SamplingConfig
    from gradus.policies.local.shelf import ModelShelf


def teacher_name(spec: EnvironmentSpec, name: str | None) -> str:
    """Returns the teacher that was asked for, or the environment's own."""
    teacher = name or spec.teacher
    if teacher is None:
        raise ConfigError(
            f"{spec.name} brings no teacher; name one with --policy (or teach.policy), for example remote:MODEL; "
            "a run with --model needs none, with teach.enabled = false"
        )
    return teacher


def scripted_names(spec: EnvironmentSpec) -> list[str]:
    """Policies of the environment that need no argument and no server."""
    names: list[str] = []
    for name in spec.policies:
        try:
            spec.policy(name)
        except ConfigError:  # it wants an argument, as constant:ACTION does
            continue
        names.append(name)
    return names


def require_policy(spec: EnvironmentSpec, name: str, *, also: Iterable[str] = ()) -> None:
    """Raise ConfigError for an unknown policy. ``also``: further names, which may have been meant."""
    head = name.partition(":")[0]
    if head in spec.policies:
        spec.policy(name)  # raises for a wrong word behind the colon
    elif is_code(name):
        policy_of(name)
    elif head != "remote" and head not in installed_policies() and find_model(name) is None and not is_hub_name(name):
        names = ", ".join([*spec.policies, *installed_policies()]) or "no policy of its own (docs/own_environment.md)"
        raise ConfigError(
            f"unknown policy {name!r} for {spec.name}{did_you_mean(head, (*also, *spec.policies))}: expected {names}, remote:MODEL, "
            "FILE.py:NAME, a folder with a model, or a hub name (owner/name)"
            + ("; a run keeps its models in best and final" if Path(name).is_dir() else "")
        )


def is_code(name: str) -> bool:
    """Says whether a name is that of an object in code of one's own: ``FILE.py:NAME`` or ``package.module:NAME``."""
    place, colon, attribute = name.rpartition(":")
    dotted = "." in place and all(part.isidentifier() for part in place.split("."))
    return bool(colon) and attribute.isidentifier() and (place.endswith(".py") or dotted)


def policy_of(name: str) -> Policy:
    """Returns the policy that code of one's own holds: the object itself, or what its function or class returns. Raises ConfigError.

    A function is called as the entry point of an installed policy is, with None, or without an argument if it takes none.
    """
    value: Any = import_object(name, "policy")
    # A class has the method too, and is no policy yet.
    if isinstance(value, type) or not hasattr(value, "start"):
        if not callable(value):
            raise ConfigError(
                f"policy {name!r} is a {type(value).__name__}; expected a policy (with start), or a function that returns one"
            )
        value = value(None) if inspect.signature(value).parameters else value()
    return cast(Policy, value)


def make_policy(
    spec: EnvironmentSpec,
    name: str,
    *,
    temperature: float | None = None,
    max_new_tokens: int | None = None,
    remote: Json | None = None,
    shelf: ModelShelf | None = None,
) -> Policy:
    """The policy called ``name``: one of the environment's own, ``remote:MODEL``, a model folder, a run folder or a hub name.

    A model answers as it was trained (sampling, template, history; in its run's folder also the dtype); ``temperature`` (0 is greedy)
    and ``max_new_tokens`` change that. ``remote``: settings of a ``remote:MODEL`` (``concurrency``, ``timeout``),
    refused with any other policy. A model that was never trained here samples as the environment's recipe would train it. With a
    ``shelf`` the model is loaded when the policy rolls out, in place of the one before.
    """
    require_policy(spec, name)
    head, _, argument = name.partition(":")
    # What is None was not set: the policy's default or the server's holds.
    settings = without_none(remote or {})
    if head == "remote":
        return _remote(argument, settings | without_none({"temperature": temperature, "max_tokens": max_new_tokens}))
    if settings:
        raise ConfigError(
            f"{', '.join(settings)} are settings of a teacher behind an API, got {name!r}; leave them out, or name remote:MODEL"
        )
    if head in spec.policies:
        return spec.policy(name)
    if head in installed_policies():
        return installed_policies()[head].load()(argument or None)
    if is_code(name):
        return policy_of(name)
    return _model_policy(spec, name, shelf, temperature=temperature, max_new_tokens=max_new_tokens)


def _model_policy(spec: EnvironmentSpec, name: str, shelf: ModelShelf | None, **changes: Any) -> Policy:
    """The policy of a model in a folder or on the hub. ``changes``: of its sampling."""
    path = model_source(name)
    require_training()
    from gradus.policies.local.loading import load_model, load_tokenizer
    from gradus.policies.local.policy import LocalPolicy
    from gradus.policies.local.shelf import ShelvedPolicy
    from gradus.policies.tinker.served import address_of, served_policy
    from gradus.runs.recipe.load import sampling_of

    def sampling_by(model: LoadedTokenizer) -> SamplingConfig:
        """As it was trained, or as the environment's recipe would train it, with the changes of this call."""
        return (model.settings.sampling or sampling_of(spec)).changed(**changes)

    address = address_of(path)
    if address is not None:
        words = load_tokenizer(address.words, trained=path)
        return served_policy(address, words, sampling_by(words), name=name)
    # Episodes of one turn have no earlier answers that a chat template could rewrite.
    keep = True if spec.keeps_answers else None
    load = partial(load_model, path, **trained_precision(path), keep_history=keep)

    def policy(loaded: LoadedModel) -> LocalPolicy:
        """The policy of a loaded model."""
        return LocalPolicy(loaded, sampling_by(loaded), name=name, grammar=spec.language.grammar)

    if shelf is None:
        return policy(load())
    return ShelvedPolicy(shelf, path, load, policy, name=name)


def _remote(model: str, settings: Json) -> Policy:
    """A policy behind an API."""
    from gradus.policies.remote.policy import RemotePolicy

    if not model:
        raise ConfigError(
            "remote needs a model's name, as in remote:gpt-5-mini; set OPENAI_BASE_URL for another server"
        )
    return RemotePolicy(model, **settings)


@cache
def installed_policies() -> dict[str, EntryPoint]:
    """Policies and engines of other packages, by the entry point group ``gradus.policies``.

    Each is a function of the text after the colon (or None) that returns a Policy.
    """
    return {entry.name: entry for entry in entry_points(group="gradus.policies")}


def model_source(name: str) -> str:
    """Returns the folder of a run's or a model's weights, or a name on the hub. Raises ConfigError for a mistyped folder."""
    folder = find_model(name)
    if folder is not None:
        tell_first_seed(name, folder)
    return check_model_source(str(folder or name))


def existing_model(name: str) -> Path:
    """:func:`find_model`, or an error that says where it looked."""
    folder = find_model(name)
    if folder is None:
        raise ConfigError(
            f"no model in {name!r}: it has no config.json or adapter_config.json, nor has {', '.join(RUN_MODELS)} in it"
        )
    tell_first_seed(name, folder)
    return folder
