"""The stages of a run one by one, and the recipe that a run begins with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer

from gradus.commands.environments import load_environment
from gradus.commands.options import (
    Data,
    Environment,
    Line,
    Model,
    Overwrite,
    RecipeOptions,
    StageOptions,
    require_rewards_used,
    writes,
)
from gradus.commands.output import Shown, next_command, note, same
from gradus.commands.signature import command
from gradus.commands.training import make_job
from gradus.core import ConfigError
from gradus.environments import file_name

if TYPE_CHECKING:
    from gradus.core.documents import Diagnoses
    from gradus.runs.job import Job
    from gradus.runs.stages.teaching import TeachSummary


def _after_init(lines: Sequence[str], *, out: Path) -> None:
    for line in lines:
        note(line)
    typer.echo(f"recipe: {out}")
    next_command("check", out)


@command("init", _after_init)
def init(
    source: Annotated[
        str | Path, typer.Argument(help="rows.csv, rows.jsonl, or your own FILE.py:NAME."), Line(kind=str)
    ],
    out: Annotated[str | Path, writes("The recipe to write."), Line(kind=Path)] = Path("recipe.toml"),
    *,
    model: Model = None,
    overwrite: Overwrite = False,
) -> list[str]:
    """Look at your data or environment, write a recipe that fits it, and say what is missing."""
    from gradus.runs.recipe.starter import write_first_recipe

    name = file_name(os.fspath(source))
    chosen = None if model is None else os.fspath(model)
    return write_first_recipe(name, Path(out), model=chosen, overwrite=overwrite)


def teach(
    environment: Data,
    policy: str | None = None,
    *,
    out: str | Path = Path("teacher.jsonl"),
    episodes: int = 200,
    grader: str | None = None,
    rewards: Sequence[Any] = (),
    seed: int = 0,
    temperature: float | None = None,
    max_new_tokens: int | None = None,
) -> TeachSummary:
    """Store a teacher's episodes on training tasks as JSON lines, for :func:`sft`. It needs no torch.

    Episodes that are stored already are not rolled out again. ``policy``: the teacher; the environment's own by default.
    """
    from gradus.runs.policies import make_policy, teacher_name
    from gradus.runs.progress import progress_bar
    from gradus.runs.recipe.tables import recipe_of
    from gradus.runs.stages.teaching import teach as store_episodes
    from gradus.training.data.tasks import HeldOut, reserved_ids

    require_rewards_used(rewards, [grader])
    spec = load_environment(environment, rewards=rewards)
    name = teacher_name(spec, None if policy is None else os.fspath(policy))
    teacher = make_policy(spec, name, temperature=temperature, max_new_tokens=max_new_tokens)
    judging = reserved_ids(spec, HeldOut.of(recipe_of(spec.name, spec).get("grpo", {})))
    with progress_bar(f"teach {name}", episodes, "episodes") as advance:
        return store_episodes(
            spec,
            teacher,
            episodes=episodes,
            seed=seed,
            grader=spec.grader(grader),
            path=Path(out),
            reserved=judging,
            progress=advance,
        )


def _after_sft(best: Path, *, data: str) -> None:
    typer.echo(f"model: {best}")
    next_command("grpo", data, "--model", best, *same("rewards", "recipe", "memory", "trackers", "seed", "settings"))


@command("sft", _after_sft)
def sft(
    data: Environment,
    lessons: Annotated[
        Sequence[str | Path] | str | Path,
        typer.Option("--data", "-d", help="Stored episodes to learn, in place of a teacher's (repeatable)."),
        Line(kind=list[Path]),
    ] = (),
    *,
    teacher: Annotated[
        str | None,
        typer.Option("--teacher", "-t", help="Whose episodes are learned; the environment's own by default."),
    ] = None,
    episodes: Annotated[
        int | None, typer.Option("--episodes", "-n", help="How many tasks the teacher answers.")
    ] = None,
    out: Annotated[str | Path, writes("Folder for episodes, model and metrics."), Line(kind=Path)] = Path("runs/sft"),
    **options: Unpack[RecipeOptions],
) -> Path:
    """Let a teacher answer training tasks, and tune a model on its action tokens. Returns the best checkpoint.

    The teacher's episodes are kept in OUT/teach; the same command goes on where it stopped.
    """
    from gradus.runs.recipe.tables import parse_changes

    files = [Path(lessons)] if isinstance(lessons, str | Path) else [Path(file) for file in lessons]
    if files and (teacher is not None or episodes is not None):
        raise ConfigError("stored episodes were taught already; leave out the teacher, or the files")
    settings = {**parse_changes(options.get("settings", ())), "teach.enabled": True}
    if teacher is not None:
        settings["teach.policy"] = teacher
    if episodes is not None:
        settings["teach.episodes"] = episodes
    options["settings"] = settings
    stages = ("sft",) if files else ("teach", "sft")
    return _trained(stages, make_job(data, **options), Path(out), lessons=files)


def _after_distill(best: Path, *, data: str) -> None:
    typer.echo(f"model: {best}")
    next_command("eval", data, "--model", best)


@command("distill", _after_distill)
def distill(
    student: Annotated[
        str | Path,
        typer.Argument(help="The model to teach: a folder, a hub name, or nano for a new one."),
        Line(kind=str),
    ],
    teacher: Annotated[
        str | Path,
        typer.Argument(
            help="A model with the student's tokenizer, or a policy of the environment that states distributions."
        ),
        Line(kind=str),
    ],
    data: Environment,
    *,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps.")] = None,
    out: Annotated[str | Path, writes("Folder for the model and its metrics."), Line(kind=Path)] = Path("runs/distill"),
    **options: Unpack[RecipeOptions],
) -> Path:
    """Let a student learn its teacher's distribution of every token, on answers of its own. Returns the best checkpoint."""
    from gradus.runs.recipe.tables import parse_changes

    name = os.fspath(student)
    settings = {**parse_changes(options.get("settings", ())), "distill.teacher": os.fspath(teacher)}
    if steps is not None:
        settings["distill.max_steps"] = steps
    options["settings"], options["model"] = settings, None if name == "nano" else name
    return _trained(("distill",), make_job(data, **options), Path(out))


def _after_grpo(best: Path, *, out: Path) -> None:
    typer.echo(f"model: {best}")
    next_command("doctor", out)


@command("grpo", _after_grpo)
def grpo(
    data: Environment,
    model: Annotated[
        str | Path,
        typer.Option("--model", "-m", help="The model to start from: a folder or a hub name."),
        Line(kind=str),
    ],
    *,
    out: Annotated[str | Path, writes("Folder for checkpoints and metrics."), Line(kind=Path)] = Path("runs/grpo"),
    **options: Unpack[StageOptions],
) -> Path:
    """Roll out groups, grade them, and make what got more reward more likely. Returns the best checkpoint."""
    return _trained(("grpo",), make_job(data, model=os.fspath(model), **options), Path(out))


def _trained(stages: Sequence[str], job: Job, folder: Path, lessons: Sequence[Path] = ()) -> Path:
    """Does some stages in a run folder; returns the best checkpoint of the last. The caller's threads stay as they were."""
    from gradus.runs.stages.runner import run_stages

    return run_stages(job, folder, only=stages, lessons=lessons) / stages[-1] / "best"


@dataclass(frozen=True, repr=False)
class DoctorReport(Shown):
    """The doctor's diagnoses of a run. ``status`` is ``healthy``, ``warn`` or ``stop``."""

    document: Diagnoses

    @property
    def status(self) -> str:
        """The worst of the diagnoses."""
        return self.document["status"]

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return dict(self.document)

    def tables(self) -> Sequence[Any]:
        """The diagnoses, and the one line to act on."""
        from gradus.runs.stages.doctor import diagnoses_table

        return diagnoses_table(self.document)


def _after_doctor(result: DoctorReport, *, run: Path) -> int:
    from gradus.evidence.health import exit_code

    if (run / "results.json").is_file():
        next_command("report", run)
    return exit_code(result.document["status"])


@command("doctor", _after_doctor, shown=True)
def doctor(
    run: Annotated[str | Path, typer.Argument(help="A run folder, or a metrics.jsonl."), Line(kind=Path)],
) -> DoctorReport:
    """Diagnose a run. Exit code 0: healthy, 1: warnings, 2: stop, 3: no metrics."""
    from gradus.runs.stages.doctor import diagnosis_of

    return DoctorReport(diagnosis_of(Path(run)))
