"""Is this grader worth training on? Seven checks, a verdict and its evidence, without a model and without a GPU."""

from gradus.audit.panel import roll_out_panel
from gradus.audit.records import Check, Hack, PanelEpisodes, Point
from gradus.audit.run import AuditResult, run_audit
from gradus.audit.signal import NoisyPolicy, forecast

__all__ = [
    "AuditResult",
    "Check",
    "Hack",
    "NoisyPolicy",
    "PanelEpisodes",
    "Point",
    "forecast",
    "roll_out_panel",
    "run_audit",
]
