"""What SFT and distillation learn, again: the text of answers, the order of episodes, and the gradient and optimizer's step by a plain pass."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, product
from pathlib import Path

import torch
from torch import Tensor

from gradus.core import AnswerDistribution, Episode, Renderer, Task, child_rng
from gradus.core.records import FAULTS
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.renderers import ChatRenderer
from gradus.policies.local.sampling import SamplingConfig
from gradus.training.data.sequences import Episodes, Samples, TrainingSample, ints
from gradus.training.engine.prepare import precision
from gradus.training.laws.plain_pass import STRIDE, beginning, plain_logprobs, plain_scores, read_logprobs
from gradus.training.laws.runner import LawRunner, NotMeasured, Pair, Pairs, alone, holds, in_order
from gradus.training.laws.step import StepLaws
from gradus.training.laws.tokens import texts_again, texts_shown
from gradus.training.lesson_config import DistillConfig, LessonConfig
from gradus.training.run.splits import task_id

_MOST_SAMPLES = 10_000  # of a set whose order is looked at as a whole
_FEW = 12  # episodes of which two shuffles may be equal by chance
_LACKING = 2.0**-20  # of a distribution's sum: rounding
_READ = 4  # samples of a step whose conversation is looked at
_SAMPLES = 3  # of a step whose loss is computed again
_ERRORS = 6.0  # standard errors
_ANSWERS = 512  # that a teacher may state in a turn that is looked at
_TURNS = 2  # of a sample that are looked at
Plain = Callable[[TrainingSample], Tensor]


def lesson_text(
    renderer: Renderer, episodes: Episodes, batch: Samples, config: LessonConfig, turns: int | None
) -> Pairs:
    """The learned tokens of each answer in a batch are its text and the token that ends it; those of an invalid one are not learned.

    ``turns``: of each sample that are learned, None for all. What stands before a sample's last answer holds the conversation before it.
    """
    for sample in batch:
        place = f"episode {sample.episode}"
        stands = bool(config.history_noise) or sample.learned_ids.equal(sample.ids[sample.positions])
        yield holds(stands, f"{place} learns the tokens that it reads")
        count = len(set(ints(sample.turns)))
        what = "turns that are learned in a step that is short (short_turns_share) or not"
        yield Pair(count, min(count, turns or count), f"{place}: {what}")
    for sample in batch[:_READ]:
        yield from _conversation_again(renderer, episodes[sample.episode], sample, config)
    learned = _learned_tokens(batch)
    for number in {sample.episode for sample in batch}:
        episode = episodes[number]
        for turn in episode.turns:
            place = f"episode {number}, turn {turn.index}"
            ids = learned.get((number, turn.index), [])
            # In a short step a turn without learned tokens may be one that the step leaves out.
            if ids or turns is None:
                yield holds(bool(ids), f"{place} is learned", turn.valid)
            # Calls of tools, and answers to another agent's requests, are written by the template, not as the action's text.
            if ids and turn.asked is None and not episode.tools:
                text = renderer.decode(ids).strip()
                yield holds(turn.action.strip() in text, f"{place}: the learned targets are the answer's text")
                ends = ids[-1] in renderer.stop_ids
                yield holds(ends, f"{place}: the token that ends an answer is learned", not turn.cut)


def _learned_tokens(batch: Samples) -> dict[tuple[int, int], list[int]]:
    """Episode and turn -> the ids that a batch learns of it."""
    learned: dict[tuple[int, int], list[int]] = {}
    for sample in batch:
        for turn, rows in sample.by_turn():
            learned.setdefault((sample.episode, turn), []).extend(ints(sample.learned_ids[rows]))
    return learned


def _conversation_again(renderer: Renderer, episode: Episode, sample: TrainingSample, config: LessonConfig) -> Pairs:
    """What stands before a sample's last learned answer holds what was shown since the last restart, and the answers to it."""
    last = int(sample.turns.max())
    first = max((turn.index for turn in episode.turns[: last + 1] if turn.restart), default=0)
    texts = [text for turn in episode.turns[first : last + 1] for text in texts_shown(turn)]
    if not config.history_noise and not episode.tools:
        texts += [turn.action for turn in episode.turns[first:last]]
    start = int(sample.positions[sample.turns == last].min())
    place = f"episode {sample.episode}, turn {last}: the context (history, prompt)"
    yield from texts_again(renderer, ints(sample.ids[:start]), texts, place)
    if sample.read is not None and not episode.tools:
        # What is shown later stands between the answers, and no answer is among it.
        later = [text for turn in episode.turns[first + 1 : last + 1] for text in texts_shown(turn)]
        learned = set(ints(sample.read)) & set(ints(sample.positions))
        yield Pair(len(learned), 0, f"{place}: tokens that are learned as an answer and as what the environment showed")
        shown = ints(sample.ids[sample.read[sample.read < start]])
        yield from texts_again(
            renderer, shown, later, f"{place}: what the environment showed, which observations predict,"
        )


def said_again(renderer: Renderer, episode: Episode, sample: TrainingSample, config: LessonConfig) -> Pairs:
    """A sample of an episode that was rolled out to be taught has the tokens, or the text, of its answers, behind what was shown."""
    place = (
        f"episode {sample.episode} of the step: the tokens that its sample learns are its answers (which episode, turn)"
    )
    for turn, rows in sample.by_turn():
        ids, tokens = ints(sample.learned_ids[rows]), episode.turns[turn].tokens
        if tokens is None:
            yield holds(renderer.decode(ids).strip() in episode.turns[turn].action, place)
        else:
            yield holds(ids == [tokens.action_ids[offset] for offset in ints(sample.offsets[rows])], place)
    if sample.actions:
        yield from _conversation_again(renderer, episode, sample, config)


def noise_again(batch: Samples, samples: Samples, share: float) -> Pairs:
    """The share of answer tokens that the settings name is read as tokens that any of the ``samples`` has at that place, but for chance."""
    pools: dict[int, set[int]] = {}
    for sample in samples:
        for offset, token in zip(ints(sample.offsets), ints(sample.learned_ids), strict=True):
            pools.setdefault(offset, set()).add(token)
    # A word of a pool of two is drawn again half of the time.
    rates = [share * (1 - 1 / len(pools[offset])) for sample in batch for offset in ints(sample.offsets)]
    chance = _ERRORS * math.sqrt(sum(rate * (1 - rate) for rate in rates)) + 1
    changed = sum(int((sample.ids[sample.positions] != sample.learned_ids).sum()) for sample in batch)
    yield Pair(changed, sum(rates), "answer tokens that are read as other ones (history_noise)", chance)


def turns_again(config: LessonConfig, *key: int) -> int | None:
    """How many turns a step learns, by the coin of its place; None for all."""
    short = child_rng(config.seed, "sft", "short", *key).random() < config.short_turns_share
    return config.short_turns if short else None


def held_out_tasks(training: Episodes, validation: Episodes, share: float) -> Pairs:
    """So many tasks are held out, and none of them is trained on."""
    taught, judging = set(map(task_id, training)), set(map(task_id, validation))
    yield Pair(len(taught & judging), 0, "tasks that are trained on and held out for validation")
    number = round(share * len(taught | judging))
    yield Pair(len(judging), number, "the tasks that are held out for validation, by validation_share")


def order_of_lessons(
    batch: Callable[[int], Samples], epoch_of: Callable[[int], int], steps: int, samples: Samples, training: Episodes
) -> Pairs:
    """Samples are of all the episodes that are not held out; an epoch's batches have each of them once, the next one's in another order.

    ``batch`` and ``epoch_of``: the samples and the epoch of a step; ``steps``: of an epoch.
    """
    epochs = [epoch_of(step) for step in (1, steps, steps + 1)]
    yield holds(epochs == [1, 1, 2], f"the epoch (pass over the episodes) of steps 1, {steps} and {steps + 1}")
    if len(samples) > _MOST_SAMPLES:
        return
    lessons = Counter(sample.episode for sample in samples)
    taught = sum(map(_is_taught, training))
    yield Pair(len(lessons), taught, "the episodes that are trained on, of those that are not held out for validation")
    orders: list[list[int]] = []
    for first in (1, 1 + steps):
        epoch = chain.from_iterable(map(batch, range(first, first + steps)))
        orders.append([sample.episode for sample in epoch])
        yield alone(
            Counter(orders[-1]).items(),
            lessons.items(),
            "episodes, each with its samples once, that an epoch or the run has",
        )
    if len(lessons) >= _FEW:
        yield holds(orders[0] == orders[1], "two epochs have their episodes in one order", False)


def _is_taught(episode: Episode) -> bool:
    """Says whether an episode has a token to learn: those of a valid answer. An empty one that a limit cut has none."""
    return episode.stop not in FAULTS and any(turn.valid and (turn.action or not turn.cut) for turn in episode.turns)


def rolled_again(
    tasks: Sequence[Task], episodes: Episodes, config: DistillConfig, step: int, student: str, limit: int
) -> Pairs:
    """A step of distillation rolls out its ``tasks``, some by the student, of at most so many turns."""
    place = f"the tasks of step {step} that are the next ones in the order of tasks"
    yield in_order([episode.task for episode in episodes], tasks, place)
    share = sum(episode.policy == student for episode in episodes) / len(episodes)
    place = f"the share of the episodes of step {step} that the student rolled out (on_policy)"
    yield Pair(share, config.on_policy, place, 0.5 / len(episodes) + 1e-9)
    turns = min(turns_again(config, step) or limit, limit)
    longest = max(len(episode.turns) for episode in episodes)
    yield Pair(longest, min(longest, turns), f"the turns of the longest episode of step {step} (short_turns_share)")


def stated_again(
    renderer: ChatRenderer, sample: TrainingSample, stated: Sequence[AnswerDistribution], logprobs: Tensor | None = None
) -> Pairs:
    """A token's target is its share among the teacher's whole answers to this turn that begin like its answer; some turns.

    ``logprobs`` (A,): what the teacher has of the tokens, in place of targets that the sample carries.
    """
    for turn, rows in sample.by_turn()[-_TURNS:]:
        if not stated[turn] or math.prod(len(span.answers) for span in stated[turn]) > _ANSWERS:
            continue
        answers = _spelled_answers(renderer, stated[turn])
        said = tuple(ints(sample.learned_ids[rows]))
        for place, row in enumerate(ints(rows)):
            shares: dict[int, float] = {}
            for spelled, chance in answers:
                if spelled[:place] == said[:place]:
                    shares[spelled[place]] = shares.get(spelled[place], 0.0) + chance
            # The student says what the teacher never does: from here on there is no target.
            if not math.fsum(shares.values()):
                break
            if logprobs is None:
                assert sample.soft is not None
                ids, chances = (part[row] for part in sample.soft)
                word = max(shares, key=shares.__getitem__)
                target = float(chances[ids == word].sum())
            else:
                word = said[place]
                target = float(logprobs[row].exp().nan_to_num(0.0))
            where = f"turn {turn}, token {place}: the teacher's probability of a token (the target), from the answers that it states"
            yield Pair(target, shares.get(word, 0.0) / math.fsum(shares.values()), where, 1e-4)


def _spelled_answers(renderer: ChatRenderer, spans: AnswerDistribution) -> list[tuple[Sequence[int], float]]:
    """All answers that a teacher may give, one word for each span, in tokens, with their probabilities."""
    words = [zip(span.answers, span.probabilities, strict=True) for span in spans]
    answers: list[tuple[Sequence[int], float]] = []
    for combination in product(*words):
        text = " ".join(word for word, _ in combination)
        chance = math.prod([chance for _, chance in combination])
        answers.append((tuple(renderer.encode_answer(text)), float(chance)))
    return answers


def plain_likelihood(loaded: LoadedModel, sample: TrainingSample) -> Tensor:
    """The negative log-likelihood of what a sample learns, by a plain pass."""
    return -plain_logprobs(loaded, SamplingConfig(), sample).sum()


def plain_divergence(
    loaded: LoadedModel, teacher: LoadedModel | None, name: str, temperature: float, sample: TrainingSample
) -> Tensor:
    """The divergence of a student from its teacher over the tokens of a sample, by a plain pass and the sum over all words."""
    sampling, bare = SamplingConfig(temperature=temperature), replace(sample, legal=None)
    q = plain_scores(loaded, sampling, bare)
    if teacher is not None:
        with torch.no_grad():
            p = plain_scores(teacher, sampling, bare)
    else:
        # A word ``other`` stands for what is lacking, and no sum over all words knows how it is spread.
        if sample.soft is None or float((1.0 - sample.soft[1].sum(1)).abs().max()) > _LACKING:
            raise NotMeasured("a teacher that states all that it may say")
        ids, chances = (part.to(q.device) for part in sample.soft)
        p = torch.zeros_like(q).scatter_add(1, ids, chances.to(q)).log().clamp(min=-1e30)
    if name == "forward":
        return _kl(p, q)
    if name == "reverse":
        return _kl(q, p)
    mixture = torch.logaddexp(p, q) - math.log(2)
    return (_kl(p, mixture) + _kl(q, mixture)) / 2


def _kl(first: Tensor, second: Tensor) -> Tensor:
    """The divergence of log-probs (A, V) from others, added up."""
    return (first.exp() * (first - second)).sum()


class LessonLaws(StepLaws):
    """Watches a step of SFT or distillation.

    ``plain``: the sum of the losses of a sample's tokens. ``part``: the run's own loss of some samples.
    """

    def __init__(
        self,
        runner: LawRunner,
        loaded: LoadedModel,
        config: LessonConfig,
        plain: Plain,
        part: Callable[[Samples], Tensor],
    ) -> None:
        super().__init__(runner, loaded, config)
        self.config = config
        self._plain, self._part = plain, part

    def passed(self, samples: Samples, optimizer: torch.optim.Optimizer, lr: float, tokens: int, loss: float) -> None:
        """Between the passes, which had so many learned ``tokens`` and this ``loss`` without observations, and the optimizer's step."""
        self.runner.check("loss", self.sums_again)
        self.runner.check("loss", self._gradient_again, samples, tokens)
        if self.runner.step == 1:
            self.runner.check("loss", self._loss_again, samples, loss)
        self.moves(optimizer, lr)

    @torch.no_grad()
    def _loss_again(self, samples: Samples, loss: float) -> Pairs:
        """The loss of the step's record is that of all its samples."""
        if self.config.observations:
            raise NotMeasured("observations = 0")
        with precision(self.loaded, self.config):
            again = float(self._part(samples))
        yield Pair(loss, again, "the loss of the step's record (metrics)", self.rounding * (1 + abs(again)))

    def _gradient_again(self, samples: Samples, tokens: int) -> Pairs:
        """The passes have all learned tokens, and the loss and the gradient of some samples are those of plain passes."""
        n_tokens = sum(sample.actions for sample in samples)
        yield Pair(tokens, n_tokens, "the learned tokens of the step's passes")
        if self.config.gradient_checkpointing:
            raise NotMeasured("gradient_checkpointing = false")
        start = self.runner.step * STRIDE % len(samples)
        drawn = (*samples[start:], *samples[:start])[:_SAMPLES]
        begun = [beginning(self.loaded, sample) for sample in drawn]
        some = [sample for sample in begun if sample.actions]
        if not some:
            raise NotMeasured("an answer behind a shorter prompt")
        # A passage back through the model costs twice as much as one forward, so gradients are compared once.
        is_first = self.runner.step == 1
        with torch.set_grad_enabled(is_first), precision(self.loaded, self.config):
            loss = self._part(some)
        with torch.set_grad_enabled(is_first):
            again = torch.stack([self._plain(sample) for sample in some]).sum() / n_tokens
            if self.config.observations:
                read = torch.cat([read_logprobs(self.loaded, sample) for sample in some])
                again = again - self.config.observations * read.sum() / n_tokens
        value = float(again.detach())
        share = sum(sample.actions for sample in some) / n_tokens
        place = f"the loss of {len(some)} samples, by plain passes (tokens read and their positions, targets, observations by their weight)"
        yield Pair(float(loss.detach()), value, place, self.rounding * (share + abs(value)))
        if is_first:
            first, second = self.gradient([loss]), self.gradient([again])
            yield self.same_gradient(first, second, f"of {len(some)} samples by plain passes")


def held_out_again(
    loss: float, accuracy: float | None, loaded: LoadedModel, plain: Plain, samples: Samples, rounding: float
) -> Pairs:
    """The validation loss and accuracy of some samples are means over their learned tokens, by plain passes."""
    tokens = sum(sample.actions for sample in samples)
    with torch.no_grad():
        again = float(sum(plain(sample) for sample in samples)) / tokens
        scores = [plain_scores(loaded, SamplingConfig(), sample).cpu() for sample in samples]
    place = "the validation (held-out) loss, a mean over the learned tokens"
    yield Pair(loss, again, place, rounding * (1 + abs(again)))
    if accuracy is not None and rounding < 1e-3:
        right = [each.argmax(-1) == sample.learned_ids for each, sample in zip(scores, samples, strict=True)]
        # Two words may be equally likely.
        mean = float(torch.cat(right).double().mean())
        yield Pair(accuracy, mean, "the validation (held-out) accuracy", 1.5 / tokens)


def lowest_again(metrics: Path, best: float | None) -> Pairs:
    """The loss that chose the best weights is the lowest of the validations in the metrics."""
    losses: list[float] = []
    for line in metrics.read_bytes().splitlines():
        loss = json.loads(line).get("validation_loss")
        if loss is not None:
            losses.append(loss)
    if not losses or best is None:
        raise NotMeasured("a validation")
    yield Pair(best, min(losses), "the lowest validation loss")
