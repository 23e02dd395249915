"""Is this grader worth training on? Seven checks, a verdict and its evidence, without a model and without a GPU."""

from gradus.audit.panel import roll_out_panel
from gradus.audit.records import Check, Hack, PanelEpisodes
from gradus.audit.result import AuditResult
from gradus.audit.run import audit_any, run_audit, run_text_audit
from gradus.audit.signal import NoisyPolicy, forecast

__all__ = [
    "AuditResult",
    "Check",
    "Hack",
    "NoisyPolicy",
    "PanelEpisodes",
    "audit_any",
    "forecast",
    "roll_out_panel",
    "run_audit",
    "run_text_audit",
]
