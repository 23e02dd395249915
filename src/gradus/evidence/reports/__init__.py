"""Figures, tables and the single-file HTML report. They only read what a run stored."""

from gradus.evidence.reports.audit_page import audit_badge, audit_card, audit_page
from gradus.evidence.reports.episode_data import environment_words, prepare_report, shown_episodes
from gradus.evidence.reports.html import render_report, write_eval_report, write_report
from gradus.evidence.reports.pictures import audit_figure, run_figures, scores_figure
from gradus.evidence.reports.show import show_episode
from gradus.evidence.reports.tables import power_lines, show_results
from gradus.evidence.reports.verdict import named, verdict_on

__all__ = [
    "audit_badge",
    "audit_card",
    "audit_figure",
    "audit_page",
    "environment_words",
    "named",
    "power_lines",
    "prepare_report",
    "render_report",
    "run_figures",
    "scores_figure",
    "show_episode",
    "show_results",
    "shown_episodes",
    "verdict_on",
    "write_eval_report",
    "write_report",
]
