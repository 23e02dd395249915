"""What each algorithm's name stands for: its loss, its advantage and its clip, so that a recipe can say one word."""

from __future__ import annotations

from dataclasses import dataclass

from gradus.algorithms.advantages import Baseline, Scale

__all__ = ["PRESETS", "Preset"]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """``advantage`` and ``loss`` are keys of ``ADVANTAGES`` (episode credit) and ``LOSSES``.

    ``scale`` is the paper's own. Gradus takes ``batch`` unless told otherwise, for the reason in :mod:`gradus.algorithms`.
    ``turns``: whether turn and span credit make sense with it (the advantage may vary within an episode).
    """

    loss: str
    clip_low: float
    clip_high: float
    advantage: str = "group"
    baseline: Baseline = "mean"
    scale: Scale = "batch"
    turns: bool = True


PRESETS: dict[str, Preset] = {
    "grpo": Preset(loss="grpo", clip_low=0.2, clip_high=0.2, scale="group"),
    "dr_grpo": Preset(loss="dr_grpo", clip_low=0.2, clip_high=0.2, scale="none"),
    "dapo": Preset(loss="dapo", clip_low=0.2, clip_high=0.28, scale="group"),
    "gspo": Preset(loss="gspo", clip_low=3e-4, clip_high=4e-4, scale="group"),
    "cispo": Preset(loss="cispo", clip_low=1.0, clip_high=4.0, scale="group"),
    "rloo": Preset(loss="rloo", clip_low=0.2, clip_high=0.2, baseline="leave_one_out", scale="none"),
    "reinforce++": Preset(loss="reinforce++", clip_low=0.2, clip_high=0.2, advantage="reinforce++", turns=False),
    "gdpo": Preset(loss="gdpo", clip_low=0.2, clip_high=0.28, advantage="gdpo", turns=False),
    "maxrl": Preset(loss="maxrl", clip_low=0.2, clip_high=0.28, advantage="maxrl", scale="none", turns=False),
}
