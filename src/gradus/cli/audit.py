"""`gradus audit`: is this grader worth training on?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from gradus.commands.options import ENVIRONMENT, GRADER, JSON, RECIPE, REWARDS
from gradus.commands.output import next_command, note, refuse, same, show

if TYPE_CHECKING:
    from gradus.commands.checking import Audit

# What makes an audit the one that it is.
_SAME = ("grader", "reward", "recipe", "episodes", "budget", "policy", "seed", "review", "unsafe", "seconds", "attack",
         "attack_episodes", "attempts", "compare")  # fmt: skip
_CODES = {"pass": 0, "fail": 1, "unresolved": 2}


_EPISODES = typer.Option(
    None,
    "--episodes",
    "-n",
    min=1,
    help="Tasks of one turn to probe (48 without it), elsewhere paired seeds for every policy of the panel (60).",
)
_BUDGET = typer.Option(
    None,
    "--budget",
    min=1,
    help="Answers that may be asked to evolve others (1152 without it), elsewhere episodes that the search for a hack may roll out "
    "(8000).",
)
_REVIEW = typer.Option(
    None,
    "--review",
    help="File of marks: asks you about accepted answers that no rule settles, and keeps what you say.",
)
_UNSAFE = typer.Option(False, "--unsafe", help="Try answers that may be executed even if no sandbox can be made.")
_SECONDS = typer.Option(
    None,
    "--seconds",
    min=1.0,
    help="What all calls of a grader of one-turn tasks may take together (20 without it, 180 if answers are programs).",
)
_ATTACK = typer.Option(
    [],
    "--attack",
    metavar="WHO",
    help="Who else looks for a hack: learn (a nano model, by GRPO on the reward alone), or a model that reads the grader's source, "
    "as in remote:MODEL (repeatable).",
)
_COMPARE = typer.Option(
    None,
    "--compare",
    metavar="AUDIT",
    help="An earlier audit.json: also say what changed; ENVIRONMENT may be an audit.json too.",
)
_OUT = typer.Option(
    None, "--out", "-o", help="Folder for audit.json, the page, the figure, the hack, a card and a badge."
)


def command(
    environment: str = ENVIRONMENT,
    grader: str | None = GRADER,
    reward: list[str] = REWARDS,
    recipe: str | None = RECIPE,
    episodes: int | None = _EPISODES,
    budget: int | None = _BUDGET,
    policy: str | None = typer.Option(None, "--policy", "-p", help="Also forecast the signal of this policy."),
    seed: int = typer.Option(0, "--seed", help="Seed of the search and of random policies."),
    review: Path | None = _REVIEW,
    unsafe: bool = _UNSAFE,
    seconds: float | None = _SECONDS,
    attack: list[str] = _ATTACK,
    attack_episodes: int = typer.Option(6400, "--attack-episodes", help="Episodes that an attacker may learn from."),
    attempts: int = typer.Option(6, "--attempts", help="Attempts of an attacker that reads."),
    compare: Path | None = _COMPARE,
    json_file: str | None = JSON,
    out: Path | None = _OUT,
) -> None:
    """Judge a grader before money is spent on it. Exit code 0: pass, 1: fail, 2: unresolved."""
    from gradus import commands

    if compare is not None and not compare.exists():
        raise typer.BadParameter(f"--compare takes an earlier audit.json; there is no file {compare}")
    if compare is not None and commands.is_stored_audit(environment):
        _compare_stored(compare, environment, json_file)
    if not attack:
        refuse("attack_episodes", "attempts", why="without --attack")
    result = commands.audit(
        environment,
        grader,
        rewards=reward,
        recipe=recipe,
        episodes=episodes,
        budget=budget,
        policy=policy,
        seed=seed,
        review=review,
        unsafe=unsafe,
        seconds=seconds,
        attack=attack,
        attack_episodes=attack_episodes,
        attempts=attempts,
    )
    show(result, json_file)
    if compare is not None and json_file != "-":
        commands.compare_audits(compare, result).show()
    for path in result.save(out) if out is not None else ():
        note(f"written: {path}")
    if review is not None and json_file is None and (marked := result.ask_person(review)):
        note(f"{marked} marks written to {review}; the same command counts them")
    _say_next(result, environment, grader=grader, out=out)
    raise typer.Exit(_CODES[result.verdict])


def _say_next(result: Audit, environment: str, *, grader: str | None, out: Path | None) -> None:
    """After a pass the run; after a failure the hack, or the same audit with evidence to mend the grader by; if episodes were too few, more."""
    if result.verdict == "unresolved" and (more := result.result.more_episodes) is not None:
        again = same(*(name for name in _SAME if name != "episodes"))
        next_command("audit", environment, *again, "--episodes", more)
    elif result.verdict != "fail":
        chosen = ["--set", f"grader={grader}"] if grader else []
        next_command("run", environment, *same("reward", "recipe"), *chosen)
    elif out is not None and result.hack is not None:
        next_command("show", out / "hack.jsonl")
    elif out is None:  # else the page with the evidence has been written
        why = "writes audit.json, a page with the evidence, and the hack if there is one"
        next_command("audit", environment, *same(*_SAME), "--out", "audit", why=why)


def _compare_stored(old: Path, new: str, json_file: str | None) -> NoReturn:
    """Two stored audits beside each other, with the exit code of the newer."""
    from gradus import commands

    refuse(*(name for name in (*_SAME, "out") if name != "compare"), why="between two stored audits")
    comparison = commands.compare_audits(old, new)
    show(comparison, json_file)
    raise typer.Exit(_CODES[str(comparison.new["verdict"])])
