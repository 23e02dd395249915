"""Makes the registration record: a source of tasks with graders, policies and conditions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from random import Random
from urllib.parse import parse_qsl

from gradus.core import (
    AuditHints,
    Condition,
    ConfigError,
    EnvironmentSpec,
    Episode,
    EpisodeView,
    Grader,
    Language,
    Panel,
    Policy,
    Presentation,
    Task,
    ViewPanel,
    Vocabulary,
    child_rng,
)
from gradus.environments.verifiable.arithmetic import ArithmeticTasks
from gradus.environments.verifiable.environment import Judge, VerifiableEnvironment, judge_marked
from gradus.environments.verifiable.items import TRAIN_SEEDS, Item, TableTasks, TaskSource, content_of, seeds_asked_once
from gradus.environments.verifiable.policies import Writer, in_format, make_policies
from gradus.rewards import Rewards, correctness, gold_answer, grader_of, incremental_format, strict_format
from gradus.stats import format_number

_CONDITIONS = {
    "in-distribution": "drawn as the training tasks are",
    "held-out": "operands or questions that are never trained on",
    "harder": "one digit more, or the longest quarter of the held-out questions",
}
MARKED = "composed"  # the default grader of answers in tags
_ENDLESS = 1000  # seeds a condition where a source has no end


def _condition_summary(source: TaskSource, split: str) -> str:
    """Says what a condition holds; of labelled rows also how many rows and labels there are."""
    rows = source.splits.get(split, ()) if isinstance(source, TableTasks) else ()
    labels = len({item.answer for item in rows})
    counts = f"; {len(rows)} rows, {labels} different answers" if rows and 2 * labels <= len(rows) else ""
    return _CONDITIONS[split] + counts


@dataclass(frozen=True, kw_only=True)
class Answering:
    """The ways in which the tasks of a source are answered: policies, their order in the audit's ladder, the teacher, the words."""

    policies: Mapping[str, Callable[[str | None], Policy]]
    ladder: Sequence[str]
    teacher: str | None
    vocabulary: Callable[[], Vocabulary]
    sample: Callable[[Random], str]  # draws a plausible answer
    write: Writer = in_format  # writes reasoning and answer as a completion


def answering_of(
    items: Sequence[Item],
    system_prompt: str,
    *,
    worked: bool = False,
    write: Writer = in_format,
    texts: Callable[[], Sequence[Item]] | None = None,
) -> Answering:
    """Makes answers from items. If all have a gold answer, gold answers teach, or worked solutions if ``worked``.

    ``texts``: examples that the vocabulary is made of, ``items`` if None.
    """
    answers = [gold_answer(item.answer) for item in items if item.answer]
    answered = len(answers) == len(items)

    def sample(rng: Random) -> str:
        return rng.choice(answers) if answers else rng.choice(items).question.split()[-1]

    common = Counter(answers).most_common(1)[0][0] if answers else "0"
    policies = make_policies(sample, common, worked=worked, write=write)
    if not answered:
        policies = {key: make for key, make in policies.items() if key not in ("gold", "noisy")}
    return Answering(
        policies=policies,
        ladder=("random", "noisy:0.5", "noisy:0.2", "gold") if answered else ("silence", "random"),
        teacher=("teacher" if worked else "gold") if answered else None,
        vocabulary=lambda: text_vocabulary(texts() if texts else items, [system_prompt, write("known", "")]),
        sample=sample,
        write=write,
    )


def load_arithmetic(argument: str | None = None) -> EnvironmentSpec:
    """Loads ``arithmetic`` or ``arithmetic:digits=3&operations=+-*`` (write ``+`` as it is)."""
    query = (argument or "").replace("+", "%2B")
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(set(options) - {"digits", "operations"})
    if unknown or not options.get("digits", "2").isdecimal():
        raise ConfigError(f"arithmetic takes digits=NUMBER and operations=SIGNS, got {argument!r}")
    source = ArithmeticTasks(
        f"arithmetic:{argument}" if argument else "arithmetic",
        digits=int(options.get("digits", "2")),
        operations=options.get("operations", "+"),
    )

    def sample(rng: Random) -> str:
        return source.item("train", rng.randrange(2**40)).answer

    answering = Answering(
        policies=make_policies(sample, _most_common(source.digits, source.operations), sums=True),
        ladder=("random", "no-carry", "noisy:0.2", "gold"),
        teacher="teacher",
        vocabulary=lambda: _sum_vocabulary(source),
        sample=sample,
    )
    spec = one_turn_spec(
        source, answering, summary="sums with a worked solution, offline and endless", recipe="arithmetic.toml"
    )
    # Seeds have no end, but sums have one: of 400 seeds of held-out 275 ask something new.
    conditions = {
        name: replace(each, seeds=seeds_asked_once(source, name, each.seeds)) for name, each in spec.conditions.items()
    }
    return replace(spec, content=content_of(source), conditions=conditions)


def make_graders() -> dict[str, Grader]:
    """Makes the graders of marked answers. The range of the incremental format is [-0.5, 1]: text after the end costs at most 0.5."""
    return {
        "correctness": grader_of(
            Rewards([(correctness, 1.0)]),
            name="correctness",
            summary="1 for the right answer, else 0",
            range=(0.0, 1.0),
        ),
        MARKED: grader_of(
            Rewards([(correctness, 2.0), (strict_format, 0.5), (incremental_format, 0.5)]),
            name=MARKED,
            summary="2 for the right answer, 0.5 for the strict format, up to 0.5 for single tags",
            range=(-0.25, 3.0),
        ),
        "format-only": grader_of(
            Rewards([(strict_format, 1.0), (incremental_format, 1.0)]),
            name="format-only",
            summary="rewards tags and not answers: an example of what an audit must refuse",
            range=(-0.5, 2.0),
        ),
    }


def one_turn_spec(
    source: TaskSource,
    answering: Answering,
    *,
    summary: str,
    recipe: str | None = None,
    judge: Judge = judge_marked,
    graders: Sequence[Grader] | None = None,
    conditions: Sequence[str] = tuple(_CONDITIONS),
    true_reward: Callable[[Episode], float | None] | None = None,
) -> EnvironmentSpec:
    """Makes an environment of a source of tasks. The first grader is the default; without any, those of marked answers."""
    by_name = make_graders() if graders is None else {grader.name: grader for grader in graders}
    return EnvironmentSpec(
        name=source.name,
        summary=summary,
        make=lambda: VerifiableEnvironment(source, judge),
        graders=by_name,
        default_grader=MARKED if graders is None else next(iter(by_name)),
        conditions={
            name: Condition(
                name=name, seeds=_seeds(source, name), summary=_condition_summary(source, name), options={"split": name}
            )
            for name in conditions
        },
        train_task=lambda index: Task(environment=source.name, seed=TRAIN_SEEDS + index, options={"split": "train"}),
        content=content_of(source) if source.size("train") is not None else None,
        data_set=source if isinstance(source, TableTasks) else None,
        policies=answering.policies,
        true_reward=true_reward or (lambda episode: episode.outcome.get("correct")),
        true_reward_name="correct" if true_reward is None else "reward",
        max_turns=1,
        teacher=answering.teacher,
        metrics=partial(_metrics, marked=judge is judge_marked),
        presentation=Presentation(view=_view, watched={"exact": "exact"}),
        language=Language(vocabulary=answering.vocabulary),
        audit=AuditHints(
            panel=Panel(
                ladder=answering.ladder,
                reflexes=("constant", "random"),
                exploits=("format-only", "silence", "copy", "shotgun", "spam"),
            ),
            gold="gold" if "gold" in answering.policies else None,
            random_answers=lambda seed: answering.write("a guess", answering.sample(child_rng(seed, "random answer"))),
            hidden=("answer", "worked"),  # a row's other columns may well be said in its question
        ),
        recipe=recipe,
    )


def _seeds(source: TaskSource, split: str) -> Sequence[int]:
    """Returns the seeds of a condition. Those of an endless source stay as they are: its items may take long to make."""
    size = source.size(split)
    return range(_ENDLESS) if size is None else seeds_asked_once(source, split, range(size))


def _metrics(episode: Episode, *, marked: bool) -> dict[str, float | None]:
    """Returns figures beside the judge's, with the format where tags are asked for; none if the rewards alone judge."""
    outcome = episode.outcome
    if outcome.get("correct") is None:
        return {}
    form = {"format": outcome.get("format")} if marked else {}
    return {**form, "exact": outcome.get("exact"), "answered": float(outcome.get("given") is not None)}


def _view(episode: Episode) -> EpisodeView:
    turn = episode.turns[0] if episode.turns else None
    outcome = episode.outcome
    reward = episode.reward
    rows = [[name, format_number(value, 2)] for name, value in (reward.components if reward else {}).items()]
    score, value = outcome.get("correct"), reward.value if reward else None
    right = {None: "not answered", 0.0: "wrong", 1.0: "right"}.get(score, f"{score} of 1")
    if score is None and value is not None:
        right = f"reward {format_number(value, 2)}"
    return EpisodeView(
        title=turn.observation[:80] if turn else "no answer",
        facts={"gold": str(outcome.get("answer")), "given": str(outcome.get("given") or "–"), "verdict": right},
        panels=[
            ViewPanel(kind="text", title="question", body=turn.observation if turn else ""),
            ViewPanel(kind="text", title="answer", body=turn.action if turn else ""),
            ViewPanel(kind="table", title="reward components", columns=("component", "value"), rows=rows),
        ],
    )


@cache
def _most_common(digits: int, operations: str) -> str:
    """Returns the most frequent answer of 2,000 sums. A command loads the environment several times."""
    source, rng = ArithmeticTasks(digits=digits, operations=operations), child_rng(0, "most common answer")
    return Counter(source.item("train", rng.randrange(2**40)).answer for _ in range(2000)).most_common(1)[0][0]


def _sum_vocabulary(source: ArithmeticTasks) -> Vocabulary:
    """Makes a vocabulary of each digit, sign, tag and word; numbers are spelled digit by digit."""
    said = f"{source.system_prompt} What is ? {in_format(', =', '')} 10 " + " ".join("+-*")
    return Vocabulary(words=[*dict.fromkeys([*said.split(), *"0123456789"])], pieces=list("0123456789"))


def text_vocabulary(items: Sequence[Item], always: Sequence[str]) -> Vocabulary:
    """Makes a vocabulary of the 2,000 most frequent words of these items and all words of ``always``; their characters are pieces."""
    texts = [*always, *(f"{item.question} {item.worked or ''} {gold_answer(item.answer)}" for item in items)]
    counts = Counter(
        word for text in texts[len(always) :] for word in re.findall(r"\S+", text) if not re.search(r"\d", word)
    )
    said: Mapping[str, None] = dict.fromkeys(" ".join(always).split())
    frequent = [word for word, count in counts.most_common(2000) if count > 1 and "▁" not in word]
    characters = sorted({character for text in texts for character in text if not character.isspace()} - {"▁"})
    return Vocabulary(words=list(dict.fromkeys([*said, *frequent])), pieces=characters)
