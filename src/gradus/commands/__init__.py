"""Every command is a function here. ``import gradus`` gives the names that matter most.

``gradus WORD`` is ``commands.WORD``, with ``_`` for ``-``; ``gradus eval`` is :func:`evaluate`, and ``gradus rewards list`` and ``try`` are
:func:`list_rewards` and :func:`try_rewards`. Where a command takes the name of an environment, its function also takes a list of rows, a
class with ``reset`` and ``step``, or an EnvironmentSpec; where it takes rewards, also functions in TRL's signature and pairs of one and its
weight; where it takes settings, also a mapping. A run stands for its folder.

    from gradus.commands import doctor, export

    doctor("runs/rhythm")
    export("runs/rhythm", "model")
"""

from gradus.commands.audits import Audit, audit
from gradus.commands.comparing import Comparison, Scores, compare, evaluate
from gradus.commands.environments import envs, load_environment, play, roll_out
from gradus.commands.episodes import Regraded, StoredEpisodes, regrade, show
from gradus.commands.models import chat, export, serve
from gradus.commands.rewards import list_rewards, try_rewards
from gradus.commands.stages import DoctorReport, distill, doctor, grpo, init, sft, teach
from gradus.commands.training import Checklist, Run, check, load_run, report, run, train

__all__ = [
    "Audit",
    "Checklist",
    "Comparison",
    "DoctorReport",
    "Regraded",
    "Run",
    "Scores",
    "StoredEpisodes",
    "audit",
    "chat",
    "check",
    "compare",
    "distill",
    "doctor",
    "envs",
    "evaluate",
    "export",
    "grpo",
    "init",
    "list_rewards",
    "load_environment",
    "load_run",
    "play",
    "regrade",
    "report",
    "roll_out",
    "run",
    "serve",
    "sft",
    "show",
    "teach",
    "train",
    "try_rewards",
]
