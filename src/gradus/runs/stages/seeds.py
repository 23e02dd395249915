"""`gradus run --seeds N`: a recipe trained from several seeds, and one evaluation over all of them.

The folder holds a run of its own for each seed (``seed-0``, ...), which is done, stopped and continued like any other. What
no training seed changes, the audit and the episodes of other policies, is done once, in the folder itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradus.core import ConfigError, Episode
from gradus.core.documents import SCHEMA, Costs, read_document
from gradus.core.files import read_json, write_json
from gradus.core.printing import quiet
from gradus.core.terminal import Terminal
from gradus.evidence.evaluation import compare_seeds
from gradus.evidence.stage_files import remove_evaluation
from gradus.rollouts import write_episodes
from gradus.runs.recipe.record import Recipe
from gradus.runs.stages.context import GRADED, RunContext, run_policies, section_of
from gradus.runs.stages.evaluation import (
    add_promises,
    best_is_the_start,
    evaluate_in_run,
    graders_of,
    pairs_of,
    read_rollouts,
)
from gradus.runs.stages.runner import SEEDS, do_stages, finish, remaining, require_folder
from gradus.runs.stages.seed_processes import known_elsewhere, seeds_at_once, train_beside, train_here
from gradus.runs.stages.stages import STAGES
from gradus.runs.stages.state import CHECKPOINTS
from gradus.sandbox.locks import FolderLock
from gradus.training.config import GrpoConfig
from gradus.training.lesson_config import LessonConfig
from gradus.training.run.trackers import check_trackers

SHARED = "eval/shared.jsonl.gz"


def run_seeds(
    recipe: Recipe,
    *,
    seeds: int,
    parallel: int | None = None,
    out: Path | None = None,
    redo: bool = False,
    anyway: bool = False,
) -> Path:
    """Train a recipe from ``seeds`` seeds, its own and the following ones, and return the folder with all of them.

    ``parallel``: how many are trained beside each other, each in a process with one thread; as many as there are cores if None.
    The numbers do not depend on it. Environments, rewards and algorithms that only this process knows are trained here, one after another.
    """
    if seeds < 2:
        raise ConfigError(f"seeds must be at least 2, got {seeds}; one seed is a plain run, chosen with --seed")
    folder = out or recipe.default_folder()
    require_folder(folder, several=True)
    check_trackers(recipe.trackers)
    lock = FolderLock(folder)
    try:
        run = RunContext(recipe, folder, redo=redo, console=Terminal(quiet=quiet()), anyway=anyway)
        chosen = [recipe.seed + index for index in range(seeds)]
        members = {folder / f"seed-{seed}": seed_recipe(recipe, seed) for seed in chosen}
        for member, own in () if redo else members.items():
            remaining(own, member)  # raises if a seed was trained with other settings, before any is trained
        # A given model is rolled out before training, as GRPO will sample from it.
        shared_settings = section_of(*GRADED, "eval", *(("model", "grpo") if recipe.model.path else ()))
        do_stages(run, {"audit": STAGES["audit"], "eval": (_do_shared, shared_settings)})
        before = read_json(folder / SEEDS)["seeds"] if (folder / SEEDS).is_file() else []
        write_json(folder / SEEDS, {"schema": SCHEMA, "seeds": sorted({*before, *chosen})})
        if redo:  # seeds may be trained again: if that is stopped, nothing should speak of their old weights
            remove_evaluation(folder)
        shared = folder / SHARED
        beside = parallel or min(seeds_at_once(), seeds)
        if beside > 1 and known_elsewhere(recipe):
            train_beside(members, shared, beside, redo=redo, console=run.console)
        else:
            train_here(members, shared, redo=redo, console=run.console)
        _evaluate(run, chosen)
        costs = _costs(run, list(members))
        write_json(folder / "costs.json", {"schema": SCHEMA, "stages": costs})
        return finish(run, costs, Terminal())
    finally:
        lock.release()


def seed_recipe(recipe: Recipe, seed: int) -> Recipe:
    """The recipe of one seed: audited already, one thread, and evaluated with the same draws as every other seed."""
    judged = recipe.seed if recipe.eval.seed is None else recipe.eval.seed

    def own(config: LessonConfig | GrpoConfig) -> dict[str, Any]:
        """One thread; and a seed that the recipe gives this stage moves on with the run's."""
        moved = {"seed": config.seed + seed - recipe.seed} if "seed" in config.model_fields_set else {}
        return {"threads": 1, **moved}

    return recipe.model_copy(
        update={
            "seed": seed,
            "audit": recipe.audit.model_copy(update={"enabled": False}),
            "sft": recipe.sft.model_copy(update=own(recipe.sft)),
            "distill": recipe.distill and recipe.distill.model_copy(update=own(recipe.distill)),
            "grpo": recipe.grpo.model_copy(update=own(recipe.grpo)),
            "eval": recipe.eval.model_copy(update={"seed": judged}),
        }
    )


def _do_shared(run: RunContext, cost: dict[str, Any]) -> None:
    """Roll out the policies that no training seed changes: all but the run's checkpoints, and a given model before training."""
    trained = {name for name, (stage, _) in CHECKPOINTS.items() if stage != "model" or run.recipe.model.path is None}
    policies = run_policies(run, [name for name in run.recipe.evaluated(run.spec) if name not in trained])
    episodes = evaluate_in_run(run, policies, graders=[run.grader.name], pairs=[]).flat if policies else []
    write_episodes(run.folder / SHARED, episodes, environment=run.spec.name, note="gradus run --seeds")
    cost.update(episodes=len(episodes))


def _evaluate(run: RunContext, seeds: Sequence[int]) -> None:
    """One results.json over all seeds, from the episodes that each of them stored."""
    section = run.recipe.eval
    names = run.recipe.evaluated(run.spec)
    shared = {name for policies in read_rollouts(run.folder / SHARED).values() for name in policies}
    rollouts: dict[str, dict[str, dict[int, list[Episode]]]] = {}
    for seed in seeds:
        stored = read_rollouts(run.folder / f"seed-{seed}" / "eval" / "episodes.jsonl.gz")
        for condition in section.conditions or stored:
            for name in names:
                of_seeds = rollouts.setdefault(condition, {}).setdefault(name, {})
                if name not in shared or not of_seeds:
                    of_seeds[seed] = stored[condition][name]
    document = compare_seeds(
        run.spec,
        rollouts,
        seeds=seeds,
        graders=graders_of(run),
        pairs=pairs_of(run),
        checkpoint="grpo/best",
        pass_k=section.pass_k,
    )
    if section.samples > 1:
        document["samples"] = section.samples
    add_promises(run, document)
    if starts := [seed for seed in seeds if best_is_the_start(run.folder / f"seed-{seed}" / "grpo")]:
        document["best_is_the_start"] = starts
    write_json(run.folder / "results.json", document)


def _costs(run: RunContext, members: Sequence[Path]) -> list[dict[str, Any]]:
    """The costs of what was done once, then of each stage, added up over the seeds."""
    once = [{**row, "stage": "eval, once" if row["stage"] == "eval" else row["stage"]} for row in run.state.costs()]
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for member in members:
        for row in read_document(member / "costs.json", Costs)["stages"]:
            rows.setdefault(row["stage"], []).append(row)
    rows.pop("audit", None)  # it was switched off there
    return [*once, *({"stage": stage, **_added_up(of_seeds)} for stage, of_seeds in rows.items())]


def _added_up(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """The sum of each figure, rounded once; None if it is known for some rows only."""
    sums: dict[str, float | None] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row[name] for row in rows if name in row]
        known = [value for value in values if isinstance(value, int | float)]
        if known:
            sums[name] = round(sum(known), 6) if len(known) == len(values) else None
    return sums
