"""Makes the registration record: a source of tasks with graders, policies and conditions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from random import Random
from typing import Any

from gradus.core import (
    AuditHints,
    Condition,
    EnvironmentSpec,
    Episode,
    EpisodeView,
    Grader,
    Language,
    Panel,
    Policy,
    Presentation,
    Task,
    Vocabulary,
    child_rng,
)
from gradus.core.frozen_record import frozen_record
from gradus.environments.options import known_options
from gradus.environments.verifiable.arithmetic import ArithmeticTasks
from gradus.environments.verifiable.environment import Judge, VerifiableEnvironment, judge_marked
from gradus.environments.verifiable.items import TRAIN_SEEDS, Item, TableTasks, TaskSource, content_of, seeds_asked_once
from gradus.environments.verifiable.policies import Writer, in_format, make_policies, sum_policies
from gradus.rewards import Rewards, correctness, gold_answer, grader_of, incremental_format, strict_format
from gradus.stats import format_number

_CONDITIONS = {
    "in-distribution": "drawn as the training tasks are",
    "held-out": "operands or questions that are never trained on",
    "harder": "one digit more, or the longest quarter of the held-out questions",
}
MARKED = "composed"  # the default grader of answers in tags
_ENDLESS = 1000  # seeds a condition where a source has no end
_FREQUENT = 2000  # words of a vocabulary
TrueReward = Callable[[Episode], float | None]


@frozen_record
class Answering:
    """The ways in which the tasks of a source are answered.

    ``ladder``: policies from worst to best, for the audit.
    ``sample``: draws a plausible answer.
    ``write``: writes reasoning and answer as a completion.
    """

    policies: Mapping[str, Callable[[str | None], Policy]]
    ladder: Sequence[str]
    teacher: str | None
    vocabulary: Callable[[], Vocabulary]
    sample: Callable[[Random], str]
    write: Writer = in_format


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

    def sample(rng: Random) -> str:
        if answers:
            return rng.choice(answers)
        return rng.choice(items).question.split()[-1]

    def vocabulary() -> Vocabulary:
        return text_vocabulary(texts() if texts else items, [system_prompt, write("known", "")])

    # The best that a policy without eyes can do, which the audit calls the constant reflex.
    common = Counter(answers).most_common(1)[0][0] if answers else "0"
    policies = make_policies(sample, common, worked=worked, write=write)
    ladder = ("random", "noisy:0.5", "noisy:0.2", "gold")
    teacher = "teacher" if worked else "gold"
    if len(answers) < len(items):
        # Nothing to teach, and nothing to be wrong about.
        del policies["gold"], policies["noisy"]
        ladder = ("silence", "random")
        teacher = None
    return Answering(
        policies=policies, ladder=ladder, teacher=teacher, vocabulary=vocabulary, sample=sample, write=write
    )


def load_arithmetic(argument: str | None = None) -> EnvironmentSpec:
    """Loads ``arithmetic`` or ``arithmetic:digits=3&operations=+-*`` (write ``+`` as it is)."""
    name = f"arithmetic:{argument}" if argument else "arithmetic"
    # parse_qsl reads a plus sign as a space.
    query = (argument or "").replace("+", "%2B")
    source = ArithmeticTasks(name, **known_options(name, query, {"digits": int, "operations": str}))

    def sample(rng: Random) -> str:
        return source.item("train", rng.randrange(2**40)).answer

    answering = Answering(
        policies=sum_policies(sample, _most_common(source.digits, source.operations)),
        ladder=("random", "no-carry", "noisy:0.2", "gold"),
        teacher="teacher",
        vocabulary=lambda: _sum_vocabulary(source),
        sample=sample,
    )
    summary = "sums with a worked solution, offline and endless"
    spec = one_turn_spec(source, answering, summary=summary, recipe="arithmetic.toml")
    # Seeds have no end, but sums have one: of 400 seeds of held-out 275 ask something new.
    conditions = {
        split: replace(condition, seeds=seeds_asked_once(source, split, condition.seeds))
        for split, condition in spec.conditions.items()
    }
    return replace(spec, content=content_of(source), conditions=conditions)


def make_graders() -> list[Grader]:
    """Makes the graders of marked answers. The range of the incremental format is [-0.5, 1]: text after the end costs at most 0.5."""
    return [
        grader_of(
            Rewards([(correctness, 1.0)]),
            name="correctness",
            summary="1 for the right answer, else 0",
            range=(0.0, 1.0),
        ),
        grader_of(
            Rewards([(correctness, 2.0), (strict_format, 0.5), (incremental_format, 0.5)]),
            name=MARKED,
            summary="2 for the right answer, 0.5 for the strict format, up to 0.5 for single tags",
            range=(-0.25, 3.0),
        ),
        grader_of(
            Rewards([(strict_format, 1.0), (incremental_format, 1.0)]),
            name="format-only",
            summary="rewards tags and not answers: an example of what an audit must refuse",
            range=(-0.5, 2.0),
        ),
    ]


def one_turn_spec(
    source: TaskSource,
    answering: Answering,
    *,
    summary: str,
    recipe: str | None = None,
    judge: Judge = judge_marked,
    graders: Sequence[Grader] = (),
    conditions: Sequence[str] = tuple(_CONDITIONS),
    true_reward: TrueReward | None = None,
) -> EnvironmentSpec:
    """Makes an environment of a source of tasks. The first grader is the default; without any, those of marked answers."""
    by_name = {grader.name: grader for grader in graders or make_graders()}

    def train_task(index: int) -> Task:
        return Task(environment=source.name, seed=TRAIN_SEEDS + index, options={"split": "train"})

    def random_answer(seed: int) -> str:
        return answering.write("a guess", answering.sample(child_rng(seed, "random answer")))

    # The audit plays these and asks whether skill earns more than reflexes and exploits.
    panel = Panel(
        ladder=answering.ladder,
        reflexes=("constant", "random"),
        exploits=("format-only", "silence", "copy", "shotgun", "spam"),
    )
    return EnvironmentSpec(
        name=source.name,
        summary=summary,
        make=lambda: VerifiableEnvironment(source, judge),
        graders=by_name,
        default_grader="" if graders else MARKED,
        conditions={split: _condition(source, split) for split in conditions},
        train_task=train_task,
        # An endless source tells its tasks apart by their seeds.
        content=content_of(source) if source.size("train") is not None else None,
        data_set=source if isinstance(source, TableTasks) else None,
        policies=answering.policies,
        true_reward=true_reward or (lambda episode: episode.outcome.get("correct")),
        true_reward_name="reward" if true_reward else "correct",
        max_turns=1,
        teacher=answering.teacher,
        metrics=partial(_metrics, marked=judge is judge_marked),
        presentation=Presentation(view=_view, watched={"exact": "exact"}),
        language=Language(vocabulary=answering.vocabulary),
        audit=AuditHints(
            panel=panel,
            gold="gold" if "gold" in answering.policies else None,
            random_answers=random_answer,
            hidden=("answer", "worked"),  # a row's other columns may well be said in its question
        ),
        recipe=recipe,
    )


def one_turn_of(source: TaskSource, answering: Answering, **options: Any) -> EnvironmentSpec:
    """Makes an environment whose answers are judged otherwise than by tags; ``options``: as of :func:`one_turn_spec`."""
    recipe = "one-turn.toml" if answering.teacher else None  # whose nano model learns from gold answers
    return one_turn_spec(source, answering, recipe=recipe, conditions=("in-distribution", "held-out"), **options)


def _condition(source: TaskSource, split: str) -> Condition:
    """Makes a condition, which says of labelled rows also how many rows and labels there are."""
    size = source.size(split)
    # The seeds of an endless source stay as they are: its items may take long to make.
    seeds = range(_ENDLESS) if size is None else seeds_asked_once(source, split, range(size))
    summary = _CONDITIONS[split]
    if isinstance(source, TableTasks):
        rows = source.splits[split]
        labels = {item.answer for item in rows}
        # Few labels mean that guessing is worth something, which a reader should see.
        if 2 * len(labels) <= len(rows):
            summary += f"; {len(rows)} rows, {len(labels)} different answers"
    return Condition(name=split, seeds=seeds, summary=summary, options={"split": split})


def _metrics(episode: Episode, *, marked: bool) -> dict[str, float | None]:
    """Returns figures beside the judge's, with the format where tags are asked for; none if the rewards alone judge."""
    outcome = episode.outcome
    if outcome.get("correct") is None:
        return {}
    figures = {"format": outcome.get("format")} if marked else {}
    return {**figures, "exact": outcome.get("exact"), "answered": float(outcome.get("given") is not None)}


def _view(episode: Episode) -> EpisodeView:
    """Returns what stands above the transcript: the answers and what they were worth."""
    outcome = episode.outcome
    score = outcome.get("correct")
    reward = episode.reward_value
    worth = {None: "not answered", 0.0: "wrong", 1.0: "right"}.get(score, f"{score} of 1")
    # Rewards of one's own judge without the environment.
    if score is None and reward is not None:
        worth = f"reward {format_number(reward, 2)}"
    return EpisodeView(
        title=episode.turns[0].observation[:80] if episode.turns else "no answer",
        panels=(),  # the transcript shows question, answer and rewards
        facts={"gold": str(outcome.get("answer")), "given": str(outcome.get("given") or "–"), "verdict": worth},
    )


@cache
def _most_common(digits: int, operations: str) -> str:
    """Returns the most frequent answer of 2,000 sums. A command loads the environment several times."""
    source = ArithmeticTasks(digits=digits, operations=operations)
    rng = child_rng(0, "most common answer")
    answers = Counter(source.item("train", rng.randrange(2**40)).answer for _ in range(2000))
    return answers.most_common(1)[0][0]


def _sum_vocabulary(source: ArithmeticTasks) -> Vocabulary:
    """Makes a vocabulary of each digit, sign, tag and word; numbers are spelled digit by digit."""
    words = f"{source.system_prompt} What is ? {in_format(', =', '')} 10 + - *".split()
    return Vocabulary(words=list(dict.fromkeys([*words, *"0123456789"])), pieces=list("0123456789"))


def text_vocabulary(items: Sequence[Item], always: Sequence[str]) -> Vocabulary:
    """Makes a vocabulary of the 2,000 most frequent words of these items and all words of ``always``; their characters are pieces."""
    texts = [f"{item.question} {item.worked or ''} {gold_answer(item.answer)}" for item in items]
    # Numbers are spelled: too many different ones come to train a word for each.
    counts = Counter(word for text in texts for word in text.split() if not re.search(r"\d", word))
    # A word that stands once is spelled: its embedding would never be trained.
    frequent = [word for word, count in counts.most_common(_FREQUENT) if count > 1 and "▁" not in word]
    words = dict.fromkeys([*" ".join(always).split(), *frequent])
    # The mark of a space in the tokenizer is no character of its own.
    characters = set("".join([*always, *texts])) - {"▁"}
    return Vocabulary(
        words=list(words), pieces=sorted(character for character in characters if not character.isspace())
    )
