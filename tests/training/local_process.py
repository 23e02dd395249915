"""What the other processes of test_local_processes.py do: ``local_process.py FOLDER RANK``, behind what it is told."""

import os
import sys
from pathlib import Path

from gradus.training.distributed.local_processes import beside
from gradus.training.distributed.processes import gather, world


def main() -> None:
    with beside(sys.argv[1:]) as told:
        if told.get("pid"):
            Path(told["pid"]).write_text(str(os.getpid()))
        if told.get("fails") == "before":
            raise SystemExit("no such model")
        for _ in range(told["rounds"]):
            gather([world().rank])
        if told.get("fails") == "between":
            raise SystemExit("out of memory")
        gather([world().rank])


if __name__ == "__main__":
    main()
