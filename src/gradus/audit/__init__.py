"""Is this grader worth training on? Seven checks, a verdict and its evidence, without a model and without a GPU."""

from gradus.audit.panel import play_panel
from gradus.audit.records import Check, Hack, PanelPlay, Point
from gradus.audit.run import AuditResult, run_audit
from gradus.audit.signal import Blend, forecast

__all__ = ["AuditResult", "Blend", "Check", "Hack", "PanelPlay", "Point", "forecast", "play_panel", "run_audit"]
