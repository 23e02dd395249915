"""The stages of a run one by one, and the recipe that a run begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradus.commands.environments import load_environment
from gradus.commands.given import as_list, checked_sampling, parameters, path_text, require_rewards_used, whole_number
from gradus.commands.shown import Shown
from gradus.commands.training import gradients, make_recipe
from gradus.core import EnvironmentSpec
from gradus.environments import file_name

if TYPE_CHECKING:
    from gradus.core.documents import Diagnoses
    from gradus.runs.stages.teaching import TeachSummary


def init(source: str, out: str | Path, *, model: str | None = None, overwrite: bool = False) -> list[str]:
    """Write a recipe that fits rows or an environment of one's own; returns what was seen and what is missing."""
    from gradus.runs.recipe.first import write_first_recipe

    name = file_name(path_text("source", source))
    return write_first_recipe(name, Path(out), model=model, overwrite=overwrite)


def teach(
    environment: str | EnvironmentSpec | type,
    policy: str | None = None,
    *,
    out: str | Path,
    episodes: int = 200,
    grader: str | None = None,
    rewards: Sequence[Any] = (),
    workers: int = 1,
    seed: int = 0,
    remote: Mapping[str, Any] | None = None,
    **sampling: Any,
) -> TeachSummary:
    """Store a teacher's episodes on training tasks; those that are stored already are not rolled out again.

    ``sampling`` as in :func:`gradus.evaluate`. ``remote``: how a teacher behind an API is asked, by the keys of a recipe's ``teach.remote``.
    """
    from gradus.runs.policies import make_policy, teacher_name
    from gradus.runs.progress import progress_bar
    from gradus.runs.recipe.tables import recipe_of
    from gradus.runs.stages.teaching import spent
    from gradus.runs.stages.teaching import teach as store_episodes
    from gradus.training.data.tasks import HeldOut, reserved_ids

    whole_number("episodes", episodes, least=1)
    require_rewards_used(rewards, [grader])
    spec = load_environment(environment, rewards=rewards)
    name = teacher_name(spec, None if policy is None else path_text("policy", policy))
    asked: Mapping[str, Any] = {}
    if remote:  # recipes bring torch with them, which a scripted teacher does not need
        from gradus.runs.recipe.load import remote_settings

        asked = remote_settings(remote)
    teacher = make_policy(spec, name, remote=asked, **checked_sampling(sampling, "commands.teach", parameters(teach)))
    judging = reserved_ids(spec, HeldOut.of(recipe_of(spec.name, spec).get("grpo", {})))
    with progress_bar(f"teach {name}", episodes, "episodes") as advance:
        return store_episodes(
            spec,
            teacher,
            episodes=episodes,
            seed=seed,
            grader=spec.grader(grader),
            path=Path(out),
            workers=workers,
            reserved=judging,
            progress=lambda done, total: advance(done, total, note=spent(teacher)),
        )


def sft(
    data: Any, episodes: Sequence[str | Path] | str | Path, *, out: str | Path, resume: bool = False, **options: Any
) -> Path:
    """Warm-start a model on files of stored episodes; returns the best checkpoint.

    ``options`` as in :func:`gradus.run`, without those of a run of all stages (``seeds``, ``parallel``, ``redo``, ``anyway``).
    """
    from gradus.runs.stages.training import sft_alone

    files = [episodes] if isinstance(episodes, Path) else as_list("episodes", episodes, example="['teacher.jsonl']")
    with gradients():
        return sft_alone(make_recipe(data, **options), [Path(each) for each in files], Path(out), resume=resume)


def grpo(data: Any, model: str | Path, *, out: str | Path, resume: bool = False, **options: Any) -> Path:
    """Train ``model`` with GRPO alone; returns the best checkpoint. ``options`` as in :func:`sft`."""
    from gradus.runs.stages.training import grpo_alone

    with gradients():
        return grpo_alone(make_recipe(data, model=path_text("model", model), **options), Path(out), resume=resume)


@dataclass(frozen=True, repr=False)
class Diagnosis(Shown):
    """What the doctor says of a run. ``status`` is ``healthy``, ``warn`` or ``stop``."""

    document: Diagnoses

    @property
    def status(self) -> str:
        """The worst of the diagnoses."""
        return self.document["status"]

    @property
    def exit_code(self) -> int:
        """0 healthy, 1 warnings, 2 stop."""
        from gradus.evidence.health import exit_code

        return exit_code(self.document["status"])

    def to_json(self) -> dict[str, Any]:
        """What ``gradus doctor --json`` prints."""
        return dict(self.document)

    def tables(self) -> Sequence[Any]:
        """The diagnoses, and the one line to act on."""
        from gradus.runs.stages.doctor import diagnoses_table

        return diagnoses_table(self.document)


def diagnose(run: str | Path) -> Diagnosis:
    """Diagnose the metrics of a run folder, or of a metrics.jsonl."""
    from gradus.runs.stages.doctor import diagnosis_of

    return Diagnosis(diagnosis_of(Path(run)))
