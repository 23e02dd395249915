"""`gradus run --arms sft,grpo,sft+grpo`: the same rows, the same time, several ways to train, and one table that says which one adds what."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from gradus.core import ConfigError
from gradus.core.files import write_json
from gradus.core.printing import quiet
from gradus.core.terminal import Terminal
from gradus.core.values import JsonDict
from gradus.environments.verifiable.items import TableTasks
from gradus.evidence.reports import show_results
from gradus.evidence.reports.results import headline_condition, main_scores
from gradus.evidence.stage_files import keep_evaluated
from gradus.runs.comparison import compare_runs
from gradus.runs.forecast.look import fitted_job, warm_start_settings
from gradus.runs.forecast.time import seconds_of
from gradus.runs.job import Job
from gradus.runs.manifest import Manifest
from gradus.runs.stages.runner import require_folder, run_stages
from gradus.stats import format_interval

# Way to train -> the stages that train; the last one's best checkpoint is compared.
ARMS = {"sft": ("teach", "sft"), "grpo": ("grpo",), "sft+grpo": ("teach", "sft", "grpo"), "distill": ("distill",)}


def run_arms(
    job: Job,
    folder: Path,
    arms: Sequence[str],
    *,
    time: str | None,
    fixed: Collection[str],
    redo: bool = False,
    anyway: bool = False,
) -> Path:
    """Trains a job in several ways, each in a folder below ``folder``, and compares them with the base on the same held-out tasks.

    Each arm has an equal share of ``time``, and looks at its base and chooses a prompt as any run does. Returns ``folder``, whose results.json
    has the arms as policies.
    """
    # All are looked at before one is trained.
    jobs = {arm: _job_of(job, arm) for arm in dict.fromkeys(arms)}
    if len(jobs) < 2:
        raise ConfigError(f"arms are two or more of {', '.join(ARMS)}, got {', '.join(arms)}; one alone is a plain run")
    require_folder(folder, several=True)
    places = {arm: folder / f"arm-{arm}" for arm in jobs}
    console = Terminal(quiet=quiet(), highlight=False)
    share = seconds_of(time) / len(jobs) if time else None
    share_text = None if share is None else f"{share:.0f}s"
    shared: JsonDict = {}  # settings that the first arm fits to the time, and all arms have: they are paired over their tasks
    for arm, place in places.items():
        console.rule(arm)
        arm_job = jobs[arm].with_settings(shared)
        keys = {*fixed, *shared, "teach.enabled"}
        # A base without a signal is what an arm may show, and no reason to leave the others out.
        fitted = fitted_job(arm_job, place, time=share_text, fixed=keys, anyway=True, tell=console.print)
        shared = shared or {"eval.episodes": fitted.recipe.eval.episodes}
        stages = ("audit", *ARMS[arm], "eval")
        run_stages(_filled(fitted, place, share), place, only=stages, redo=redo, anyway=anyway)
        keep_evaluated(place)
    # The base is the same in all arms: one of them has its episodes for all.
    runs = {"base": next(iter(places.values())), **places}
    document = compare_runs(runs, policy={"base": "base", **{arm: ARMS[arm][-1] for arm in jobs}})
    # The arms stand in one document as policies of one evaluation do.
    write_json(folder / "results.json", document)
    console.print(show_results(document))
    for pair in main_scores(document)[headline_condition(document) or ""].pairs:
        change = pair.figures["reward"]
        console.print(f"{pair.first} - {pair.second}: {format_interval(change, signed=True)}, {change.decision}")
    seconds: list[str] = []
    for arm, place in places.items():
        spent = sum(row["seconds"] for row in Manifest(place).costs())
        seconds.append(f"{arm} {spent:.0f}")
    console.print(f"seconds: {', '.join(seconds)}")
    return folder


def _job_of(job: Job, arm: str) -> Job:
    """The job of one arm. Raises ConfigError for an arm that the job has no teacher for."""
    if arm not in ARMS:
        raise ConfigError(f"an arm is {', '.join(ARMS)}, got {arm!r}")
    recipe, spec = job.recipe, job.environment
    if arm == "distill" and recipe.distill is None:
        raise ConfigError("the arm distill needs a teacher: --set distill.teacher=MODEL")
    taught = "sft" in ARMS[arm]
    if taught and spec.teacher is None:
        raise ConfigError(f"the arm {arm} needs reference answers, or a policy of {spec.name} that teaches")
    changes: JsonDict = {}
    if taught and not recipe.teach.enabled and isinstance(spec.data_set, TableTasks):
        changes = warm_start_settings(job)
    if arm != "distill":
        changes["distill"] = None
    changes |= {"teach.enabled": taught, "eval.policies": ("base", ARMS[arm][-1]), "eval.pairs": ()}
    # Promises are about the policies of the recipe's own way to train.
    return job.with_settings({**changes, "promises": ()})


def _filled(job: Job, folder: Path, share: float | None) -> Job:
    """The job with as many passes of SFT as fill its share of the time, if nothing follows SFT: arms are compared at equal time."""
    planned = Manifest(folder).planned_seconds
    if share is None or not planned.get("sft") or "sft" not in job.recipe.eval.policies:
        return job
    others = sum(seconds for stage, seconds in planned.items() if stage not in ("sft", "grpo"))
    times = max(1, int((share - others) / planned["sft"]))
    return job.with_settings({"sft.epochs": times * job.recipe.sft.epochs})
