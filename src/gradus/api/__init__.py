"""Everything the command line does, as calls that return objects. ``import gradus`` gives the names that matter most.

from gradus import api

api.export("runs/rhythm", "model")
api.regrade("teacher.jsonl", grader="v2")
"""

from gradus.api.audits import AuditComparison, Validation, compare_audits, is_stored_audit, validate_openenv
from gradus.api.checking import Audit, Checklist, Forecast, audit, check, plan
from gradus.api.comparing import Comparison, Scores, compare, evaluate
from gradus.api.environments import describe, list_environments, load_environment, roll_out
from gradus.api.episodes import Regraded, StoredEpisodes, play, regrade, show
from gradus.api.measuring import Scoreboard, scoreboard
from gradus.api.models import can_chat, chat, export, export_logs, push, serve
from gradus.api.rewards import list_rewards, try_rewards
from gradus.api.servers import package_environment, serve_environment, watch
from gradus.api.stages import Diagnosis, diagnose, grpo, init, sft, teach
from gradus.api.training import Run, load_run, run, train

__all__ = [
    "Audit",
    "AuditComparison",
    "Checklist",
    "Comparison",
    "Diagnosis",
    "Forecast",
    "Regraded",
    "Run",
    "Scoreboard",
    "Scores",
    "StoredEpisodes",
    "Validation",
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
    "export_logs",
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
    "scoreboard",
    "serve",
    "serve_environment",
    "sft",
    "show",
    "teach",
    "train",
    "try_rewards",
    "validate_openenv",
    "watch",
]
