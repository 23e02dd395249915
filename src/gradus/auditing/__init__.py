"""Is this grader worth training on? Seven checks, a verdict and its evidence, without a model and without a GPU."""

from gradus.auditing.plans.judged import Judged
from gradus.auditing.plans.panel import roll_out_panel
from gradus.auditing.plans.plan import NoisyPolicy
from gradus.auditing.plans.signal import forecast
from gradus.auditing.records import Check, PanelEpisodes
from gradus.auditing.result import AuditResult
from gradus.auditing.run import AuditSettings, audit_any, run_audit, run_text_audit

__all__ = [
    "AuditResult",
    "AuditSettings",
    "Check",
    "Judged",
    "NoisyPolicy",
    "PanelEpisodes",
    "audit_any",
    "forecast",
    "roll_out_panel",
    "run_audit",
    "run_text_audit",
]
