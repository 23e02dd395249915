"""Every command as a call that returns an object. ``import gradus`` gives the names that matter most.

from gradus import commands

commands.export("runs/rhythm", "model")
commands.regrade("teacher.jsonl", grader="v2")
"""

from gradus.commands.audits import AuditComparison, compare_audits, is_stored_audit
from gradus.commands.checking import Audit, Checklist, Forecast, audit, check, plan
from gradus.commands.comparing import Comparison, Scores, compare, evaluate
from gradus.commands.environments import describe, list_environments, load_environment, roll_out
from gradus.commands.episodes import Regraded, StoredEpisodes, play, regrade, show
from gradus.commands.models import can_chat, chat, export, push, serve
from gradus.commands.rewards import list_rewards, try_rewards
from gradus.commands.servers import package_environment, serve_environment, watch
from gradus.commands.stages import Diagnosis, diagnose, grpo, init, sft, teach
from gradus.commands.training import Run, load_run, run, train

__all__ = [
    "Audit",
    "AuditComparison",
    "Checklist",
    "Comparison",
    "Diagnosis",
    "Forecast",
    "Regraded",
    "Run",
    "Scores",
    "StoredEpisodes",
    "audit",
    "can_chat",
    "chat",
    "check",
    "compare",
    "compare_audits",
    "describe",
    "diagnose",
    "evaluate",
    "export",
    "grpo",
    "init",
    "is_stored_audit",
    "list_environments",
    "list_rewards",
    "load_environment",
    "load_run",
    "package_environment",
    "plan",
    "play",
    "push",
    "regrade",
    "roll_out",
    "run",
    "serve",
    "serve_environment",
    "sft",
    "show",
    "teach",
    "train",
    "try_rewards",
    "watch",
]
