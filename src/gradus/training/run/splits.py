"""``splits.json``: which tasks a run was taught and trained on, and which judge it. They never overlap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from gradus.core import ConfigError, EnvironmentSpec, Episode
from gradus.core.documents import Splits, read_document
from gradus.core.files import write_json
from gradus.training.config import GrpoConfig
from gradus.training.data.tasks import reserved_ids, training_tasks, validation_tasks
from gradus.training.run.folder import RunFolder

SPLITS = "splits.json"


class GrpoSplits:
    """The tasks of a GRPO run by role. ``taught``: those that its model was warm-started on; none of them validates."""

    def __init__(
        self,
        spec: EnvironmentSpec,
        config: GrpoConfig,
        *,
        taught: frozenset[str] = frozenset(),
    ) -> None:
        self._spec, self._config, self._taught = spec, config, taught
        self.validation = validation_tasks(spec, config, taught)
        self.reserved = reserved_ids(spec, config, taught)
        self._trained: set[str] = set()
        self._next = 0  # the first place in the order of tasks that is not among the trained ones

    def store(self, folder: RunFolder, next_task: int) -> None:
        """Write what was used before place ``next_task`` of the run's order. Raises ConfigError if a task judges that was taught."""
        while self._next < next_task:
            (task,), self._next = training_tasks(self._spec, self._config, self._next, 1, self.reserved)
            self._trained.add(task.id)
        validation = {task.id for task in self.validation}
        splits = {
            "teach": self._taught,
            "train": self._trained,
            "validation": validation,
            "conditions": self.reserved - validation,
        }
        store_splits(folder, splits)


def store_splits(folder: RunFolder, splits: Mapping[str, Iterable[str]]) -> None:
    """Write ``splits.json``: role -> ids of its tasks. Raises ConfigError if they overlap."""
    listed = {role: sorted(ids) for role, ids in splits.items()}
    check_splits(listed)
    if folder.writing:
        write_json(folder.path / SPLITS, listed)


def check_splits(splits: Mapping[str, Iterable[str]]) -> None:
    """Raises ConfigError if a task of ``validation`` or ``conditions`` was also trained on or taught."""
    for judge in ("validation", "conditions"):
        for role in ("train", "teach"):
            shared = set(splits.get(judge, ())) & set(splits.get(role, ()))
            if shared:
                raise ConfigError(
                    f"{len(shared)} tasks are both in {role} and in {judge}, the first is {min(shared)}: a task that judges "
                    "must never be trained on. Teach other tasks, or hold out others (grpo.first_task)"
                )


def taught_ids(model: Path) -> frozenset[str]:
    """Ids of the tasks that a model folder inside a run was warm-started on; none for any other."""
    path = model.parent / SPLITS
    return frozenset(read_document(path, Splits).get("teach", ())) if path.is_file() else frozenset()


def task_id(episode: Episode) -> str:
    """The id of an episode's task; one that was stored without an id has its seed and options in place of it."""
    task = episode.task
    return task.id or repr((task.environment, task.seed, sorted(task.options.items())))
