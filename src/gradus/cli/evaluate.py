"""`gradus eval`: policies, conditions, paired seeds, intervals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import typer

from gradus.commands.options import ENVIRONMENT, JSON, KEEP_HISTORY, MAX_NEW_TOKENS, REWARDS, TEMPERATURE, given
from gradus.commands.output import next_command, note, same, show

# What makes an evaluation the one that it is.
_SAME = ("policy", "reward", "grader", "condition", "episodes", "seed", "pairs", "power", "samples", "pass_k",
         "temperature", "max_new_tokens", "keep_history", "wide")  # fmt: skip


def command(
    environment: str = ENVIRONMENT,
    policy: list[str] = typer.Option(
        ..., "--policy", "-p", help="Policies, separated by commas; `all` for the scripted ones (repeatable)."
    ),
    condition: list[str] = typer.Option(
        [], "--condition", "-c", help="Conditions, by commas; `all`; the first by default (repeatable)."
    ),
    grader: list[str] = typer.Option(
        [], "--grader", "-g", help="Graders, by commas; the first is the main one (repeatable)."
    ),
    reward: list[str] = REWARDS,
    episodes: int | None = typer.Option(None, "--episodes", "-n", help="At most so many per condition."),
    seed: int = typer.Option(0, "--seed", help="Seed of the policies' own randomness."),
    pairs: list[str] = typer.Option(
        [], "--pairs", help="Pairs to compare, as a-b, by commas; every pair otherwise (repeatable)."
    ),
    power: float | None = typer.Option(None, "--power", help="Say how many episodes a difference of this size needs."),
    samples: int = typer.Option(1, "--samples", help="Episodes of each task."),
    pass_k: list[str] = typer.Option(
        [], "--pass-k", help="Show the chance that one of K samples passes; several K by commas (repeatable)."
    ),
    temperature: float | None = TEMPERATURE,
    max_new_tokens: int | None = MAX_NEW_TOKENS,
    keep_history: bool | None = KEEP_HISTORY,
    json_file: str | None = JSON,
    out: Path | None = typer.Option(None, "--out", "-o", help="Write the episodes (JSON lines) here."),
    report: Path | None = typer.Option(None, "--report", help="Write an HTML report here."),
    wide: bool = typer.Option(
        False, "--wide", help="Show every figure, component, pair and curve, not only the three that matter."
    ),
) -> None:
    """Roll out policies on the same seeds and compare them with intervals. Exit code 1 if no episode could be graded."""
    import gradus

    spec = gradus.load_environment(environment, rewards=reward)
    policies, conditions = _split(policy), _split(condition) or [next(iter(spec.conditions))]
    result = gradus.evaluate(
        "all" if policies == ["all"] else policies,
        env=spec,
        rewards=reward,
        conditions=list(spec.conditions) if conditions == ["all"] else conditions,
        graders=_split(grader) or None,
        episodes=episodes,
        seed=seed,
        pairs=_split(pairs) or None,
        power=power,
        samples=samples,
        pass_k=_numbers(pass_k),
        **given(temperature=temperature, max_new_tokens=max_new_tokens, keep_history=keep_history),
    )
    show(replace(result, wide=wide), json_file)
    if out is not None:
        note(f"episodes: {result.save(out)}")
    if report is not None:
        note(f"report: {result.report(report)}")
    if result.all_failed:
        note("every episode failed or could not be graded; the first says why: " + result.first_failure)
        raise typer.Exit(1)
    if out is not None:
        next_command("show", out)
    else:
        also = ("--out", "episodes.jsonl", "--report", report or "report.html")
        next_command("eval", environment, *same(*_SAME), *also)


def _split(texts: list[str]) -> list[str]:
    """Names separated by commas or given one by one, in order, without repeats."""
    return list(dict.fromkeys(part.strip() for text in texts for part in text.split(",") if part.strip()))


def _numbers(texts: list[str]) -> list[int]:
    try:
        return [int(part) for part in _split(texts)]
    except ValueError:
        raise typer.BadParameter(f"--pass-k takes whole numbers, as in 1,8; got {','.join(texts)!r}") from None
