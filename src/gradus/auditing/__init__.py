"""Is this grader worth training on? Seven checks, a verdict and its evidence, without a model and without a GPU."""

from gradus.auditing.plans.judged import Judged
from gradus.auditing.plans.plan import NoisyPolicy
from gradus.auditing.records import AuditCheck
from gradus.auditing.result import AuditResult
from gradus.auditing.run import (
    AuditSettings,
    audit_any,
    run_audit,
    run_text_audit,
)

__all__ = [
    "AuditCheck",
    "AuditResult",
    "AuditSettings",
    "Judged",
    "NoisyPolicy",
    "audit_any",
    "run_audit",
    "run_text_audit",
]
