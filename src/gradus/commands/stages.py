"""The stages of a run one by one, and the recipe that a run begins with."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer

from gradus.commands.environments import load_environment
from gradus.commands.options import (
    Environment,
    Grader,
    Line,
    MaxNewTokens,
    Model,
    Overwrite,
    RecipeOptions,
    Rewards,
    Seed,
    StageOptions,
    Temperature,
    require_rewards_used,
    writes,
)
from gradus.commands.output import Shown, next_command, note, same
from gradus.commands.signature import command
from gradus.commands.training import make_job
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


def _after_teach(summary: TeachSummary, *, environment: str, out: Path) -> int | None:
    typer.echo(summary.sentence(out))
    if summary.failed == summary.episodes:
        note(f"every episode failed; gradus show {shlex.quote(str(out))} says why")
        return 1
    return next_command("sft", environment, "--data", out, *same("rewards"))


@command("teach", _after_teach)
def teach(
    environment: Environment,
    policy: Annotated[
        str | None, typer.Option("--policy", "-p", help="The teacher; the environment's own by default.")
    ] = None,
    *,
    out: Annotated[str | Path, writes("Where the episodes go."), Line(kind=Path)] = Path("teacher.jsonl"),
    episodes: Annotated[int, typer.Option("--episodes", "-n", help="How many training tasks.")] = 200,
    grader: Grader = None,
    rewards: Rewards = (),
    seed: Seed = 0,
    temperature: Temperature = None,
    max_new_tokens: MaxNewTokens = None,
) -> TeachSummary:
    """Store a teacher's episodes on training tasks as JSON lines. Exit code 1 if every episode failed.

    Episodes that are stored already are not rolled out again.
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
    episodes: Annotated[
        Sequence[str | Path] | str | Path,
        typer.Option("--data", "-d", help="Episodes, as `gradus teach` writes them (repeatable)."),
        Line(kind=list[Path]),
    ],
    *,
    out: Annotated[str | Path, writes("Folder for the model and its metrics."), Line(kind=Path)] = Path("runs/sft"),
    **options: Unpack[RecipeOptions],
) -> Path:
    """Supervised fine-tuning on the action tokens of stored episodes. Returns the best checkpoint."""
    files = [Path(episodes)] if isinstance(episodes, str | Path) else [Path(file) for file in episodes]
    return _trained("sft", make_job(data, **options), Path(out), lessons=files)


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
    return _trained("distill", make_job(data, **options), Path(out))


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
    return _trained("grpo", make_job(data, model=os.fspath(model), **options), Path(out))


def _trained(stage: str, job: Job, folder: Path, lessons: Sequence[Path] = ()) -> Path:
    """Does one training stage in a run folder; returns the best checkpoint. The caller's threads stay as they were."""
    from gradus.runs.stages.runner import run_stages

    return run_stages(job, folder, only=(stage,), lessons=lessons) / stage / "best"


@dataclass(frozen=True, repr=False)
class Diagnosis(Shown):
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


def _after_doctor(result: Diagnosis, *, run: Path) -> int:
    from gradus.evidence.health import exit_code

    if (run / "results.json").is_file():
        next_command("report", run)
    return exit_code(result.document["status"])


@command("doctor", _after_doctor, shown=True)
def doctor(
    run: Annotated[str | Path, typer.Argument(help="A run folder, or a metrics.jsonl."), Line(kind=Path)],
) -> Diagnosis:
    """Diagnose a run. Exit code 0: healthy, 1: warnings, 2: stop, 3: no metrics."""
    from gradus.runs.stages.doctor import diagnosis_of

    return Diagnosis(diagnosis_of(Path(run)))
