"""An environment with trouble. Alone in a module, so that a new process has little to import before its first reset."""

import os
import time

from gradus.core import Observation


class Troubled:
    """Echoes in a process of its own; the task of seed 0 ends it, or takes a minute, or says what no process can send."""

    system_prompt, state = "echo", {}

    def __init__(self, trouble: str = "") -> None:
        self.trouble, self.seed = trouble, -1

    def reset(self, *, seed=None, episode_id=None, **options):
        self.seed = seed
        return Observation(text="go")

    def step(self, action):
        if self.seed == 0 and self.trouble == "crash":
            os._exit(1)
        if self.seed == 0 and self.trouble == "slow":
            time.sleep(60)
        return Observation(text="on", reward=1.0, terminated=True)

    def outcome(self):
        return {"seed": (lambda: 0) if self.seed == 0 and self.trouble == "unsendable" else self.seed}

    def close(self):
        pass


class Coroutines(Troubled):
    """The same with a coroutine."""

    async def step(self, action):
        return Troubled.step(self, action)


class Exits(Troubled):
    """The task of seed 0 exits at a stage, in a coroutine if ``waits``."""

    def __init__(self, stage, waits=False):
        super().__init__()
        for name in ("reset", "step", "outcome", "close"):
            setattr(self, name, self._call(name, name == stage, waits))

    def _call(self, name, exits, waits):
        def call(*arguments, **options):
            if exits and options.get("seed", self.seed) == 0:
                raise SystemExit(3)
            return getattr(Troubled, name)(self, *arguments, **options)

        async def call_later(*arguments, **options):
            return call(*arguments, **options)

        return call_later if waits else call
