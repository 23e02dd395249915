"""What the other processes of test_local_processes.py do."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradus.training.distributed.local_processes import beside
from gradus.training.distributed.processes import gather, world


def take_part(given: Mapping[str, Any]) -> None:
    with beside(given) as told:
        if told.get("pid"):
            Path(told["pid"]).write_text(str(os.getpid()))
        if told.get("fails") == "before":
            raise SystemExit("no such model")
        for _ in range(told["rounds"]):
            gather([world().rank])
        if told.get("fails") == "between":
            raise SystemExit("out of memory")
        gather([world().rank])
