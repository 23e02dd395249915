"""The graders of verifiable tasks: correctness alone, a composition for training, and format alone as a warning."""

from __future__ import annotations

from gradus.core import Grader
from gradus.rewards import Rewards, correctness, grader_of, incremental_format, strict_format

DEFAULT_GRADER = "composed"


def make_graders() -> dict[str, Grader]:
    """By name. The range of the incremental format is [-0.5, 1]: text after the end costs at most 0.5."""
    return {
        "correctness": grader_of(
            Rewards([(correctness, 1.0)]),
            name="correctness",
            summary="1 for the right answer, else 0",
            range=(0.0, 1.0),
        ),
        "composed": grader_of(
            Rewards([(correctness, 2.0), (strict_format, 0.5), (incremental_format, 0.5)]),
            name="composed",
            summary="2 for the right answer, 0.5 for the strict format, up to 0.5 for single tags",
            range=(-0.25, 3.0),
        ),
        "format-only": grader_of(
            Rewards([(strict_format, 1.0), (incremental_format, 1.0)]),
            name="format-only",
            summary="rewards tags and not answers: an example of what an audit must refuse",
            range=(-0.5, 2.0),
        ),
    }
