"""The stages of a run one by one, and the recipe that a run begins with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

from cyclopts import Parameter

from gradus.commands.entries import command
from gradus.commands.environments import graded_environment
from gradus.commands.options import (
    WORD,
    WORDS,
    Data,
    Environment,
    Model,
    Overwrite,
    RecipeOptions,
    StageOptions,
    known_options,
    writes,
)
from gradus.commands.output import CommandCall, Shown, next_command, note
from gradus.commands.training import make_job
from gradus.core import ConfigError
from gradus.core.findings import EXIT_CODES
from gradus.core.values import JsonDict, without_none
from gradus.environments import file_name

if TYPE_CHECKING:
    from gradus.core.documents import Diagnoses
    from gradus.runs.job import Job
    from gradus.runs.stages.teaching import TeachSummary


def _after_init(lines: Sequence[str], call: CommandCall) -> None:
    for line in lines:
        note(line)
    if call["example"] is not None:
        return next_command("audit", "mine.py:loose", "rows.jsonl")
    print(f"recipe: {call['out']}")
    return next_command("check", call["out"])


@command("init", _after_init)
def init(
    source: Annotated[
        str | Path | None, WORD, Parameter(name="source", help="rows.csv, rows.jsonl, or your own FILE.py:NAME.")
    ] = None,
    *,
    example: Annotated[
        Literal["letters"] | None,
        Parameter(help="Write rows.jsonl and mine.py into this folder, to try the commands on."),
    ] = None,
    out: Annotated[str | Path, writes("The recipe to write.")] = Path("recipe.toml"),
    model: Model = None,
    overwrite: Overwrite = False,
) -> list[str]:
    """Write a recipe that fits your data. It looks at your rows or environment and says what is missing."""
    from gradus.commands.example import write_letters
    from gradus.runs.recipe.starter import write_first_recipe

    if (source is None) == (example is None):
        raise ConfigError("init expects your rows or environment, or --example letters, and one of the two")
    if source is None:
        return write_letters(Path(), overwrite=overwrite)
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
    from gradus.runs.recipe.tables import recipe_of
    from gradus.runs.stages.teaching import teach as store_episodes
    from gradus.training.data.tasks import HeldOut, reserved_ids

    spec, _ = graded_environment(environment, rewards, [grader])
    name = teacher_name(spec, None if policy is None else os.fspath(policy))
    teacher = make_policy(spec, name, temperature=temperature, max_new_tokens=max_new_tokens)
    # The same tasks as those of a run by the environment's own recipe, so that its SFT may learn these episodes.
    judging = reserved_ids(spec, HeldOut.of(recipe_of(spec.name, spec).get("grpo", {})))
    return store_episodes(
        spec,
        teacher,
        episodes=episodes,
        seed=seed,
        grader=spec.grader(grader),
        path=Path(out),
        reserved=judging,
    )


def _after_sft(best: Path, call: CommandCall) -> None:
    print(f"model: {best}")
    again = call.same("rewards", "recipe", "memory", "trackers", "seed", "settings")
    next_command("grpo", call["data"], "--model", best, *again)


@command("sft", _after_sft)
def sft(
    data: Environment,
    *,
    lessons: Annotated[
        Sequence[str | Path] | str | Path,
        WORDS,
        Parameter(
            name=("--data", "-d"),
            metavar="FILE",
            help="Stored episodes to learn, in place of a teacher's (repeatable).",
        ),
    ] = (),
    teacher: Annotated[
        str | None,
        Parameter(alias="-t", metavar="POLICY", help="Whose episodes are learned; the environment's own by default."),
    ] = None,
    episodes: Annotated[int | None, Parameter(alias="-n", help="How many tasks the teacher answers.")] = None,
    price: Annotated[
        str | None,
        Parameter(metavar="P,C", help="Dollars per million prompt and completion tokens of a teacher behind an API."),
    ] = None,
    concurrency: Annotated[int | None, Parameter(help="Calls of a teacher behind an API at once.")] = None,
    out: Annotated[str | Path, writes("Folder for episodes, model and metrics.")] = Path("runs/sft"),
    **options: Unpack[RecipeOptions],
) -> Path:
    """Warm-start a model on a teacher's answers. The teacher's episodes are kept in OUT/teach.

    The same call goes on where it stopped. Returns the best checkpoint.
    """
    from gradus.runs.recipe.tables import parse_changes

    known_options(options, RecipeOptions, "gradus.commands.sft")
    files = [Path(lessons)] if isinstance(lessons, str | Path) else [Path(file) for file in lessons]
    if files and (teacher is not None or episodes is not None):
        raise ConfigError("stored episodes were taught already; leave out the teacher, or the files")
    settings = {
        "teach.enabled": True,  # whatever the recipe says of a warm start: this one was asked for
        "teach.policy": teacher,
        "teach.episodes": episodes,
        "prices.teacher": None if price is None else price.split(","),
        "teach.remote.concurrency": concurrency,
    }
    options["settings"] = parse_changes(options.get("settings", ())) | without_none(settings)
    stages = ("sft",) if files else ("teach", "sft")
    return _trained(stages, make_job(data, **options), Path(out), lessons=files)


def _after_distill(best: Path, call: CommandCall) -> None:
    print(f"model: {best}")
    next_command("eval", call["data"], "--model", best)


@command("distill", _after_distill)
def distill(
    student: Annotated[
        str | Path,
        WORD,
        Parameter(name="student", help="The model to teach: a folder, a hub name, or nano for a new one."),
    ],
    teacher: Annotated[
        str | Path,
        WORD,
        Parameter(
            name="teacher",
            help="A model with the student's tokenizer, or a policy of the environment that states distributions.",
        ),
    ],
    data: Environment,
    *,
    steps: Annotated[int | None, Parameter(help="Optimizer steps.")] = None,
    out: Annotated[str | Path, writes("Folder for the model and its metrics.")] = Path("runs/distill"),
    **options: Unpack[RecipeOptions],
) -> Path:
    """Train a student on its teacher's distribution. It learns every token of answers of its own.

    Returns the best checkpoint.
    """
    from gradus.runs.recipe.tables import parse_changes

    known_options(options, RecipeOptions, "gradus.distill")
    name = os.fspath(student)
    settings = without_none({"distill.teacher": os.fspath(teacher), "distill.max_steps": steps})
    options["settings"] = parse_changes(options.get("settings", ())) | settings
    options["model"] = None if name == "nano" else name
    return _trained(("distill",), make_job(data, **options), Path(out))


def _after_grpo(best: Path, call: CommandCall) -> None:
    print(f"model: {best}")
    next_command("doctor", call["out"])


@command("grpo", _after_grpo)
def grpo(
    data: Environment,
    *,
    model: Annotated[
        str | Path,
        WORD,
        Parameter(name=("--model", "-m"), metavar="MODEL", help="The model to start from: a folder or a hub name."),
    ],
    out: Annotated[str | Path, writes("Folder for checkpoints and metrics.")] = Path("runs/grpo"),
    **options: Unpack[StageOptions],
) -> Path:
    """Train a model with GRPO. Groups are rolled out and graded; what got more reward gets more likely.

    Returns the best checkpoint.
    """
    known_options(options, StageOptions, "gradus.commands.grpo")
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

    def to_json(self) -> JsonDict:
        """The document."""
        return dict(self.document)

    def tables(self) -> Sequence[Any]:
        """The diagnoses, and the one line to act on."""
        from gradus.runs.stages.doctor import diagnoses_table

        return diagnoses_table(self.document)


def _after_doctor(result: DoctorReport, call: CommandCall) -> int:
    if (Path(call["run"]) / "results.json").is_file():
        next_command("report", call["run"])
    return EXIT_CODES["fail" if result.status == "stop" else "pass"]


@command("doctor", _after_doctor, shown=True)
def doctor(
    run: Annotated[
        str | Path,
        WORD,
        Parameter(name="run", help="A run folder, a metrics.jsonl, or the log of TRL or tinker-cookbook."),
    ],
) -> DoctorReport:
    """Diagnose a run, and say what to change. Exit code 1: stop it; 3: it has no metrics."""
    from gradus.runs.stages.doctor import diagnosis_of

    return DoctorReport(diagnosis_of(Path(run)))
