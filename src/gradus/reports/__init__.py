"""Figures, tables and the single-file HTML report. They only read what a run stored."""

from gradus.reports.figures import audit_figure, grpo_figure, outcome_figure, scores_figure, view_figure
from gradus.reports.html import render_report, write_eval_report, write_report
from gradus.reports.payload import about_payload, episodes_payload, prepare_report, view_payload
from gradus.reports.show import show_episode
from gradus.reports.tables import show_results, summary_table
from gradus.reports.verdict import Claim, Verdict, judge

__all__ = [
    "Claim",
    "Verdict",
    "about_payload",
    "audit_figure",
    "episodes_payload",
    "grpo_figure",
    "judge",
    "outcome_figure",
    "prepare_report",
    "render_report",
    "scores_figure",
    "show_episode",
    "show_results",
    "summary_table",
    "view_figure",
    "view_payload",
    "write_eval_report",
    "write_report",
]
