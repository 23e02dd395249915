"""Policies x conditions x seeds: roll out on the same seeds, compare pair by pair, say how sure one may be."""

from gradus.core.documents import SCHEMA
from gradus.evaluation.evaluate import Evaluation, compare, evaluate
from gradus.evaluation.seeds import BySeed, compare_seeds
from gradus.evaluation.summary import first_failure

__all__ = ["SCHEMA", "BySeed", "Evaluation", "compare", "compare_seeds", "evaluate", "first_failure"]
