"""Audits a grader before anything is trained on it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast, overload

from cyclopts import Parameter
from cyclopts.validators import Number

from gradus import core
from gradus.commands.entries import command
from gradus.commands.environments import environment_of, graded_environment
from gradus.commands.options import WORD, Data, Grader, Port, Recipe, Rewards, Seed, require_rewards_used, writes
from gradus.commands.output import JSON_FILE, CommandCall, Shown, next_command, note
from gradus.core import ConfigError, EnvironmentSpec
from gradus.core.files import check_file_can_be_written
from gradus.core.findings import EXIT_CODES
from gradus.core.printing import verbose
from gradus.core.values import JsonDict
from gradus.environments import file_name
from gradus.runs.recipe import MOST_EPISODES

if TYPE_CHECKING:
    from gradus.auditing import AuditResult, AuditSettings, Judged
    from gradus.auditing.plans.hygiene import Elsewhere
    from gradus.auditing.records import GradedCompletion
    from gradus.rewards import RewardFunction

# What makes an audit the one that it is.
_SAME = ("grader", "recipe", "episodes", "budget", "seed", "unsafe", "seconds", "fast", "fail_on")
_FAST_TASKS, _FAST_SECONDS = 12, 3.0
_CODES = {"pass": EXIT_CODES["pass"], "fail": EXIT_CODES["fail"], "unresolved": EXIT_CODES["open"]}


@dataclass(frozen=True, repr=False)
class Audit(Shown):
    """The verdict on a grader. ``result`` holds the checks, the points of the figure and the hack, if one came up."""

    spec: EnvironmentSpec
    result: AuditResult
    only_failed: bool = False  # print nothing unless the verdict is fail

    @property
    def verdict(self) -> str:
        """``pass``, ``fail`` or ``unresolved``."""
        return self.result.verdict

    @property
    def hack(self) -> Judged | None:
        """A plan that the grader prefers to honest play, with an episode to look at; None if the search brought none."""
        return self.result.hack

    def to_json(self) -> JsonDict:
        """The verdict and the checks."""
        return dict(self.result.to_json())

    def tables(self) -> Sequence[Any]:
        """The verdict on one screen; with ``--verbose`` every policy, check and note, and before it the hack turn by turn."""
        from rich.rule import Rule
        from rich.text import Text

        from gradus.auditing.result import screen
        from gradus.evidence.reports import show_episode

        result = self.result
        parts: list[Any] = []
        if self.only_failed and result.verdict != "fail":
            return parts
        if verbose() and result.hack is not None:
            parts += [Rule("the hack"), Text(f"plan: {result.hack.plan}"), show_episode(result.hack.episode)]
        parts += screen(result, whole=verbose())
        if result.review:
            review = f"{len(result.review)} accepted answers that no rule settles; the page of --out shows them"
            parts.append(Text(review))
        return parts

    def save(self, folder: str | Path) -> list[Path]:
        """Write audit.json, the page, the figure, the hack, a card and a badge; returns the paths."""
        from gradus.runs.stages.audits import store_audit

        return store_audit(self.spec, self.result, Path(folder))


_EPISODES = Parameter(
    alias="-n",
    validator=Number(gte=1, lte=MOST_EPISODES),
    help="Tasks of one turn to probe (48 without it), elsewhere paired seeds for every policy of the panel (60).",
)
_BUDGET = Parameter(
    validator=Number(gte=1, lte=MOST_EPISODES),
    help="Episodes that the search for a hack may roll out (8000 without it). Tasks of one turn are not searched.",
)
_SECONDS = Parameter(
    validator=Number(gte=1, lte=86_400),
    help="Limit of all calls of a grader of one-turn tasks together (20 without it, 180 if answers are programs).",
)


def _after_audit(result: Audit, call: CommandCall) -> int:
    if result.only_failed and result.verdict != "fail":
        return _CODES["pass"]
    environment, functions = _subject(call["subject"], call["rows"], call["rewards"])
    words = [environment]
    for function in functions:
        words += ["--reward", function]
    examples = filter(None, [result.result.exploit, *result.result.notes])  # the one on the screen before others
    line = next((example.command for example in examples if example.command), "")
    if line and JSON_FILE.get() is None:
        note(f"ask it again: {line}")
    out, more = call["out"], result.result.more_episodes
    if result.verdict == "unresolved" and more is not None:
        others = [name for name in _SAME if name != "episodes"]
        next_command("audit", *words, *call.same(*others), "--episodes", more)
    elif result.verdict != "fail":
        next_command("run", *words, *call.same("recipe", "grader"))
    elif out is not None and result.hack is not None:
        next_command("show", Path(out) / "hack.jsonl")
    elif out is None and result.result.broken is None:  # else the page with the evidence has been written
        why = "writes audit.json, a page with the evidence, and the hack if there is one"
        next_command("audit", *words, *call.same(*_SAME), "--out", "audit", why=why)
    return _CODES[result.verdict]


@overload
def audit(
    subject: RewardFunction | str | Sequence[Any],
    rows: Data,
    *,
    episodes: int | None = None,
    budget: int | None = None,
    seed: int = 0,
    unsafe: bool = False,
    seconds: float | None = None,
    fast: bool = False,
    fail_on: str = "",
    only_failed: bool = False,
    out: str | Path | None = None,
) -> Audit: ...
@overload
def audit(
    subject: Data,
    *,
    grader: str | None = None,
    rewards: Rewards = (),
    recipe: Recipe = None,
    episodes: int | None = None,
    budget: int | None = None,
    seed: int = 0,
    unsafe: bool = False,
    seconds: float | None = None,
    fast: bool = False,
    fail_on: str = "",
    only_failed: bool = False,
    out: str | Path | None = None,
) -> Audit: ...
@command("audit", _after_audit, shown=True)
def audit(
    subject: Annotated[
        Any,
        WORD,
        Parameter(
            name="subject",
            help="Environment, as in `gradus envs`; rows; your own FILE.py:NAME; or a reward, FILE.py:FN, before its rows.",
        ),
    ],
    rows: Annotated[
        Data | None,
        WORD,
        Parameter(name="rows", help="The rows, if a reward was named first, as in mine.py:reward rows.jsonl."),
    ] = None,
    *,
    grader: Grader = None,
    rewards: Rewards = (),
    recipe: Recipe = None,
    episodes: Annotated[int | None, _EPISODES] = None,
    budget: Annotated[int | None, _BUDGET] = None,
    seed: Seed = 0,
    unsafe: Annotated[bool, Parameter(help="Try answers that may be executed even if no sandbox can be made.")] = False,
    seconds: Annotated[float | None, _SECONDS] = None,
    fast: Annotated[bool, Parameter(help="12 tasks and 3 seconds, for a hook before each commit.")] = False,
    fail_on: Annotated[str, Parameter(help="Also fail above these shares of gold, as in 'free>0.1, near>0.3'.")] = "",
    only_failed: Annotated[
        bool, Parameter(help="Print nothing and end with 0 unless the verdict is fail, for hooks.")
    ] = False,
    play: Annotated[
        bool, Parameter(help="Serve a page on which you try to exploit the reward yourself, beside the audit's finds.")
    ] = False,
    port: Port = 0,
    out: Annotated[
        str | Path | None, writes("Folder for audit.json, the page, the figure, the hack, a card and a badge.")
    ] = None,
) -> Audit:
    """Find out if a reward can be exploited. Exit code 1: it can, or it refuses right answers; 3: unresolved.

    ``gradus.audit(my_reward, rows)`` audits a reward function, or several, on rows; so does ``gradus audit mine.py:reward rows.jsonl``.

    >>> import gradus
    >>> def generous(completions, **columns):
    ...     return [1.0 for text in completions]
    >>> gradus.audit(generous, [{"question": "say red", "answer": "red"}]).verdict
    'fail'
    """
    from gradus.auditing import AuditSettings
    from gradus.auditing.accepted import limits_in
    from gradus.runs.stages.audits import audit_with_progress

    # What was mistyped is refused before an audit that takes minutes.
    limits: Mapping[str, float] = limits_in(fail_on) if fail_on else {}
    if fast:
        episodes, seconds = episodes or _FAST_TASKS, seconds or _FAST_SECONDS
    if out is not None:
        check_file_can_be_written(Path(out) / "audit.json")
    environment, functions = _subject(subject, rows, rewards)
    if recipe is not None:
        environment, grader = _of_recipe(environment, recipe, grader, functions)
    require_rewards_used(functions, [grader])
    spec, functions = graded_environment(environment, functions, [grader])
    audited = spec.grader(grader)
    if play:
        settings = AuditSettings(episodes=episodes, seed=seed, unsafe=unsafe, limit=seconds)
        _serve_game(spec, audited, settings, port)
    result = audit_with_progress(
        spec,
        audited,
        episodes=episodes,
        budget=budget,
        seed=seed,
        elsewhere=_elsewhere(environment, functions),
        unsafe=unsafe,
        limit=seconds,
        found=_first_exploit(),
    )
    shown = Audit(spec, _judged(result, limits, environment), only_failed)
    for path in shown.save(out) if out is not None else ():
        note(f"written: {path}")
    return shown


def _subject(subject: Any, rows: Data | None, rewards: Rewards) -> tuple[Any, list[Any]]:
    """What is loaded as an environment, and the rewards: a reward may stand before its rows."""
    if rows is None:
        return subject, list(rewards)
    subjects = cast(Sequence[Any], subject) if isinstance(subject, list | tuple) else [subject]
    return rows, [*subjects, *rewards]


def _elsewhere(environment: Any, functions: Sequence[Any]) -> Elsewhere | None:
    """Rolls tasks out in another process, which only a name can bring there."""
    from gradus.runs.stages.audits import replay_elsewhere

    is_name = isinstance(environment, str | Path) and not functions
    return partial(replay_elsewhere, file_name(str(environment))) if is_name else None


def _judged(result: AuditResult, limits: Mapping[str, float], environment: Any) -> AuditResult:
    """The result by ``--fail-on`` and by what the author accepts beside the rows; printed as a workflow's lines in hosted CI."""
    from gradus.auditing.accepted import read_accepted, with_accepted, with_limits
    from gradus.auditing.exports import workflow_lines

    rows_file = Path(environment) if isinstance(environment, str | Path) else Path()
    result = with_accepted(with_limits(result, limits), read_accepted(rows_file.parent), date.today())
    for line in workflow_lines(result) if os.environ.get("GITHUB_ACTIONS") else ():
        print(line)
    return result


def _serve_game(spec: EnvironmentSpec, grader: core.Grader, settings: AuditSettings, port: int) -> NoReturn:
    """Serves the page of ``--play`` until Ctrl-C, while the audit runs in a thread."""
    from gradus.auditing import audit_any
    from gradus.auditing.text.tasks import TASKS, subject_of
    from gradus.interop.play import ExploitPage, play_app
    from gradus.interop.servers import listen, serve_until_stopped, server_config, url

    subject = subject_of(spec, grader, tasks=settings.episodes or TASKS)
    if subject is None:
        raise ConfigError(f"--play needs tasks of one turn with reference answers; {spec.name} has none")
    page = ExploitPage(subject=subject)
    # In a thread: the page can be used at once, and what the audit finds comes up on it.
    page.audit(lambda found: audit_any(spec, grader, replace(settings, found=found)))
    with listen("127.0.0.1", port) as listener:
        note(f"exploit {grader.name} yourself at {url(listener, '127.0.0.1')}; Ctrl-C stops")
        serve_until_stopped(server_config(play_app(page)), listener)
    sys.exit(EXIT_CODES["pass"])


def _first_exploit() -> Callable[[GradedCompletion], None]:
    """Shows the first exploit when it is found, and how long that took."""
    began = time.monotonic()
    is_first = True

    def show(found: GradedCompletion) -> None:
        nonlocal is_first
        if is_first:
            seconds = time.monotonic() - began
            note(f"after {seconds:.1f} s: {found.completion[:120]!r} earns {found.reward:.3g} ({found.what})")
        is_first = False

    return show


def _of_recipe(
    environment: Any, recipe: str | Path, grader: str | None, rewards: Sequence[Any]
) -> tuple[EnvironmentSpec, str | None]:
    """The environment with the rewards of a recipe, and the grader that the recipe trains with."""
    from gradus.runs.job import resolve
    from gradus.runs.recipe.load import load_recipe

    if rewards:
        raise ConfigError("a recipe names its rewards itself; give --recipe or --reward, got both")
    source = environment_of(environment)
    settings = load_recipe(source, path=Path(recipe))
    job = resolve(settings, environment=source if isinstance(source, EnvironmentSpec) else None)
    return job.environment, grader or job.grader.name
