"""Policies x conditions x seeds: roll out on the same seeds, compare pair by pair, say how sure one may be."""

from gradus.evidence.evaluation.evaluate import Evaluation, compare, compare_seeds, condition_tasks, evaluate
from gradus.evidence.evaluation.summary import first_failure

__all__ = ["Evaluation", "compare", "compare_seeds", "condition_tasks", "evaluate", "first_failure"]
