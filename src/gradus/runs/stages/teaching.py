"""A teacher answers training tasks; what it did is kept, as it happens."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from itertools import repeat
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread

from gradus.core import ConfigError, Environment, EnvironmentSpec, Episode, Failure, Grader, Policy, StopReason, Task
from gradus.core.printing import go_around
from gradus.core.waiting import blocking
from gradus.environments import is_registered_by_name, load_registered
from gradus.rewards.grading import OWN_GRADER, WEIGHED
from gradus.rollouts import EpisodeWriter, grade_episodes, read_episodes, roll_out, write_episodes
from gradus.rollouts.storage import encode
from gradus.rollouts.under_way import make_environment
from gradus.runs.recipe import MOST_EPISODES, MOST_WORKERS
from gradus.runs.stages.teach_summary import Tally, TeachSummary
from gradus.sandbox.processes import collect_rarely
from gradus.training.data.tasks import taught_indices

_CHUNK = 64  # episodes between two writes: what a kill can cost
_WORTH_WORKERS = 4  # chunks below which processes take longer to start than they save

_OF_A_ROW = ("answer", "worked", "columns")  # what an outcome says of it

Span = tuple[int, list[int]]  # the number of the first episode, and the indices of the training tasks
Chunks = Generator[list[Episode], None, None]
Progress = Callable[[int, int], None]


def teach(
    spec: EnvironmentSpec,
    policy: Policy,
    *,
    episodes: int,
    path: Path,
    grader: Grader,
    seed: int = 0,
    workers: int = 1,
    reserved: frozenset[str] = frozenset(),
    progress: Progress | None = None,
) -> TeachSummary:
    """Roll out the first ``episodes`` training tasks and append them to ``path``; those that are there already are left out.

    ``reserved``: ids of tasks that judge (``gradus.training.data.tasks.reserved_ids``); they are not taught.

    ``workers``: processes that roll out. They load the environment by its name, so they serve its own policies and graders only;
    for anything else, and where little is to be done, this process works alone. The episodes are the same.
    """
    for name, given, most in (("episodes", episodes, MOST_EPISODES), ("workers", workers, MOST_WORKERS)):
        if not 1 <= given <= most:
            raise ConfigError(f"{name} must be at least 1 and at most {most:,}, got {given}")
    started = time.perf_counter()
    tally = Tally()
    note = f"teacher {policy.name}, seed {seed}"
    kept = _kept(spec, policy, path, note, grader, reserved)
    beyond = len(kept) - tally.count([episode for index, episode in sorted(kept.items()) if index < episodes])
    named = _known_by_name(spec, policy, grader)
    # An answer of a teacher that is not the environment's own may cost money, so few are under way between two writes.
    size = _CHUNK if named else getattr(policy, "concurrency", _CHUNK)
    spans = _missing(kept, taught_indices(spec, episodes, reserved), size)
    if workers > 1 and len(spans) >= _WORTH_WORKERS and named:
        chunks = _by_workers(spec, policy.name, spans, grader.name, seed, workers, episodes, progress)
    else:
        chunks = _alone(spec, policy, spans, grader, seed, episodes, progress)
    with ExitStack() as stack:
        writer: EpisodeWriter | None = (
            None  # opened with the first episodes: a teacher that does not answer leaves no file
        )
        stack.callback(chunks.close)
        for chunk in chunks:
            writer = writer or stack.enter_context(EpisodeWriter(path, environment=spec.name, note=note))
            tally.count(_write(writer, chunk))
    rolled_out = sum(len(indices) for _, indices in spans)
    return tally.summary(policy, beyond, rolled_out, grader, time.perf_counter() - started)


def _missing(kept: Mapping[int, Episode], indices: Sequence[int], size: int) -> list[Span]:
    """What is not there yet, in stretches of at most ``size``."""
    spans: list[Span] = []
    for place, index in enumerate(indices):
        if place in kept:
            continue
        if spans and spans[-1][0] + len(spans[-1][1]) == place and len(spans[-1][1]) < size:
            spans[-1][1].append(index)
        else:
            spans.append((place, [index]))
    return spans


def _write(writer: EpisodeWriter, episodes: Sequence[Episode]) -> list[Episode]:
    """Store episodes; what no file takes (half a character, NaN) is a failure of that episode alone."""
    try:
        writer.write(episodes)
        return list(episodes)
    except ValueError:
        stored: list[Episode] = []  # nothing was written; one by one, then
    for episode in episodes:
        try:
            writer.write([episode])
            stored.append(episode)
        except ValueError as error:
            failure = Failure(stage="store", type=type(error).__name__, message=str(error))
            stored.append(replace(episode, turns=(), reward=None, stop=StopReason.FAILED, failure=failure))
    return stored


def _alone(
    spec: EnvironmentSpec,
    policy: Policy,
    spans: Sequence[Span],
    grader: Grader,
    seed: int,
    total: int,
    progress: Progress | None,
) -> Chunks:
    """The episodes of each span of tasks, rolled out here."""
    for span in spans:

        def tell(done: int, _: int, before: int = span[0]) -> None:
            if progress is not None:
                progress(before + done, total)

        yield _roll_out(spec, policy, span, grader, seed, tell)


def _by_workers(
    spec: EnvironmentSpec,
    policy: str,
    spans: Sequence[Span],
    grader: str,
    seed: int,
    workers: int,
    total: int,
    progress: Progress | None,
) -> Chunks:
    """The episodes of each span of tasks, in order, by processes that are fresh: a fork of torch's threads may hang."""
    fresh = get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=fresh, initializer=begin_worker)
    try:
        for (begin, indices), episodes in zip(
            spans,
            pool.map(_roll_out_named, repeat(spec.name), repeat(policy), spans, repeat(grader), repeat(seed)),
            strict=True,
        ):
            if progress is not None:
                progress(begin + len(indices), total)
            yield episodes
    finally:
        pool.shutdown(cancel_futures=True)


def _known_by_name(spec: EnvironmentSpec, policy: Policy, grader: Grader) -> bool:
    """Whether a fresh process would find the environment, the policy and the grader."""
    if not is_registered_by_name(spec.name):
        return False
    try:
        fresh = _spec(spec.name)
    except ConfigError:
        return False
    return policy.name.partition(":")[0] in fresh.policies and grader.name in fresh.graders


def begin_worker() -> None:
    """Leave Ctrl-C to the process that started this one, which keeps what has been done, and end when it is killed."""
    collect_rarely()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _roll_out_named(environment: str, policy: str, span: Span, grader: str, seed: int) -> list[Episode]:
    spec = _spec(environment)
    return _roll_out(spec, spec.policy(policy), span, spec.graders[grader], seed, None)


@cache
def _spec(environment: str) -> EnvironmentSpec:
    return load_registered(environment)


def _roll_out(
    spec: EnvironmentSpec, policy: Policy, span: Span, grader: Grader, seed: int, tell: Progress | None
) -> list[Episode]:
    tasks = [spec.train_task(index) for index in span[1]]
    result = roll_out(spec, policy, tasks, seed=seed, key=("teach",), first_group=span[0], grader=grader, progress=tell)
    return result.episodes


def _kept(
    spec: EnvironmentSpec, policy: Policy, path: Path, note: str, grader: Grader, reserved: frozenset[str]
) -> dict[int, Episode]:
    """The episodes of an earlier call by the number of their task, without those that failed and those whose task is another now.

    The file is written anew if it holds anything else: failed episodes, damaged lines, another grader's rewards. Raises ConfigError
    if it is another teacher's, another environment's or another seed's.
    """
    if not path.exists() or path.stat().st_size == 0:
        return {}
    stored = read_episodes(path)
    if stored.environment != spec.name:
        raise ConfigError(f"{path} holds episodes of {stored.environment}, not of {spec.name}; choose another --out")
    others = {episode.policy for episode in stored.episodes} - {policy.name}
    if others:
        raise ConfigError(
            f"{path} holds episodes of {', '.join(sorted(others))}; adding {policy.name}'s would mix teachers, choose another --out"
        )
    if stored.note != note:
        raise ConfigError(f"{path} holds episodes of {stored.note}, asked for is {note}; choose another --out")
    kept = {episode.group: episode for episode in stored.episodes if episode.stop is not StopReason.FAILED}
    if changed := _changed(spec, kept, reserved):
        go_around(
            f"{len(changed)} of {len(kept)} episodes in {path} answer tasks that have changed (rows were edited, or others are held out)",
            "they are rolled out again",
        )
    kept = {index: episode for index, episode in kept.items() if index not in changed}
    fresh = {index: episode for index, episode in kept.items() if _graded_by(episode, grader)}
    stale = {index: episode for index, episode in kept.items() if index not in fresh}
    if stale:
        kept |= dict(zip(stale, grade_episodes(spec, list(stale.values()), grader), strict=True))
    for problem in stored.problems:
        go_around(problem, "its episode is rolled out again")
    if stale or stored.problems or len(kept) < len(stored.episodes):
        write_episodes(path, [kept[index] for index in sorted(kept)], environment=spec.name, note=note)
    return kept


def _changed(spec: EnvironmentSpec, kept: Mapping[int, Episode], reserved: frozenset[str]) -> set[int]:
    """The numbers of the episodes whose task is not the one that has this number now."""
    if not kept:
        return set()
    indices = taught_indices(spec, min(max(kept) + 1, MOST_EPISODES), reserved)
    tasks = {place: spec.identify(spec.train_task(index)) for place, index in enumerate(indices) if place in kept}
    same = {place for place, task in tasks.items() if _named(kept[place].task) == _named(task)}
    if spec.data_set is not None:
        environment = blocking(make_environment(spec))
        same = {place for place in same if _says(kept[place], tasks[place], environment)}
        environment.close()
    return kept.keys() - same


def _named(task: Task) -> tuple[int, str]:
    return task.seed, task.id


def _says(episode: Episode, task: Task, environment: Environment) -> bool:
    """Whether all that the task's row says now is what the episode was asked and is graded by."""
    try:
        asked = environment.reset(seed=task.seed, **task.options).text, environment.system_prompt
        outcome = encode(environment.outcome())
    except (Exception, SystemExit):
        return False  # it is rolled out again, and fails there
    same = all(outcome.get(name) == episode.outcome.get(name) for name in _OF_A_ROW)
    return same and asked == (episode.turns[0].observation if episode.turns else None, episode.system_prompt)


def _graded_by(episode: Episode, grader: Grader) -> bool:
    """Whether the stored reward is this grader's. Every composition and every weighing has the same name, so theirs are graded again."""
    composed = grader.name == OWN_GRADER or grader.name.endswith(WEIGHED)
    return episode.reward is not None and episode.reward.grader == grader.name and not composed
