"""Figures, tables and the single-file HTML report. They only read what a run stored."""

from gradus.reports.html import render_report, write_eval_report, write_report
from gradus.reports.payload import about_payload, episodes_payload, prepare_report, view_payload

__all__ = [
    "about_payload",
    "episodes_payload",
    "prepare_report",
    "render_report",
    "view_payload",
    "write_eval_report",
    "write_report",
]
