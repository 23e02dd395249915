"""The resolved settings of a run: every value, and where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradus.core import ConfigError, Grader
from gradus.training.config import GrpoConfig
from gradus.training.data.credit import CreditRule

_SHOWN = ("algorithm", "credit", "scale", "clip_low", "clip_high", "dynamic_sampling")


@dataclass(frozen=True, kw_only=True)
class ResolvedConfig:
    """``config`` with the algorithm's and the grader's own values filled in; ``sources``: setting -> where it came from."""

    config: GrpoConfig
    sources: Mapping[str, str]

    @property
    def credit_rule(self) -> CreditRule:
        """Returns the rule by which rewards become advantages."""
        config, named = self.config, self.config.named
        assert config.credit is not None
        return CreditRule(
            algorithm=named,
            credit=config.credit,
            scale=config.scale or "batch",  # an algorithm without a scale does not read it
            baseline=named.baseline,
            discount=config.discount,
            informing=config.informing,
            entropy_spans=config.entropy_spans,
        )

    def text(self) -> str:
        """Returns what makes the objective, in one line, and what else was set."""
        values = self.config.model_dump(mode="json")
        shown = [f"{name} {values[name]} ({self.sources[name]})" for name in _SHOWN if values[name]]
        return " · ".join([*shown, self.config.named.without] if self.config.named.without else shown)


def resolve(config: GrpoConfig, grader: Grader, sources: Mapping[str, str] | None = None) -> ResolvedConfig:
    """Fill in what ``config`` leaves to its algorithm and to the grader.

    ``sources``: setting -> where a given value came from (``recipe``, ``command line``); ``set`` for those it does not name.
    Raises ConfigError for a setting that has no effect with this grader.
    """
    named = config.named
    by_grader = "turn" if grader.per_turn else "episode"
    own: dict[str, Any] = {"credit": named.credit or by_grader, "scale": named.scale}
    if named.clip is not None:
        own |= {"clip_low": named.clip[0], "clip_high": named.clip[1]}
    if named.dynamic_sampling and "dynamic_sampling" not in config.model_fields_set:
        own["dynamic_sampling"] = named.dynamic_sampling
    filled = {name: value for name, value in own.items() if not getattr(config, name)}
    origin = dict.fromkeys(filled, f"algorithm {config.algorithm}")
    if "credit" in filled and named.credit is None:
        origin["credit"] = f"grader {grader.name}"
    resolved = config.model_copy(update=filled)
    if resolved.discount != 1.0 and resolved.credit == "episode":
        raise ConfigError(
            f"discount is per turn and has no effect here: grader {grader.name!r} rewards the end of an episode, so credit "
            "is by episode; leave discount out, or set credit = 'turn'"
        )
    if not resolved.informing and resolved.credit != "span":
        raise ConfigError(
            f"informing is about terms of spans and has no effect with credit by {resolved.credit}; leave it out, or set "
            "credit = 'span'"
        )
    if resolved.observations and resolved.max_turns == 1:
        raise ConfigError(
            "observations is about what the environment shows after an answer, and has no effect in episodes of one turn; leave it out"
        )
    given = {name: (sources or {}).get(name, "set") for name in config.model_fields_set}
    sources_of_all = {**dict.fromkeys(type(config).model_fields, "default"), **given, **origin}
    return ResolvedConfig(config=resolved, sources=sources_of_all)
