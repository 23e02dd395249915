"""The money of a run: what it may cost, what it has cost, and when it must stop."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import fsum
from typing import cast

from gradus.core import ConfigError, Grader, GradusError, Policy
from gradus.core.documents import SCHEMA, Costs, GainPerDollar, Results, StageCost, differences_of
from gradus.core.money import Account, OutOfMoney, Price
from gradus.core.values import Json, JsonDict
from gradus.policies.remote.client import RemoteUsage
from gradus.policies.tinker.policy import TokenCounts
from gradus.rewards.grading import rewards_of
from gradus.rewards.judge import Judge
from gradus.rollouts.under_way import first_sight
from gradus.runs.job import Job
from gradus.runs.manifest import Manifest
from gradus.stats import format_money

STEPS = ("step", "sft", "distill")  # kinds of records of a step of training
_BYTES_A_TOKEN = 4


class Ledger:
    """Counts what the stages of a run cost, and lets none go beyond ``prices.max_cost``.

    What is bought is counted before it is asked for: a request that could cost more than what is left is not made, and a step of training is the
    last one if another like it could be too much. What was done is kept, and a raised limit goes on there.
    """

    def __init__(self, job: Job, manifest: Manifest, counts: TokenCounts) -> None:
        self._job, self._manifest, self._counts = job, manifest, counts
        self.prices = job.recipe.prices
        self.account = Account()
        self._began, self._before = 0.0, 0.0
        self._stopped = False

    @contextmanager
    def paying(self, stage: str, row: JsonDict) -> Generator[None]:
        """Does a stage with what is left, and writes to its ``row`` what servers were paid. Raises OutOfMoney if that is not enough."""
        most = self.prices.max_cost
        budget = None if most is None else most - (self.total or 0.0)
        if budget is not None and budget <= 0:
            raise OutOfMoney(self._sentence(f"nothing is left for {stage}"))
        # Each stage has an account of its own, whose limit is what earlier stages left.
        self.account = Account(limit=budget)
        self._began, self._before, self._stopped = time.perf_counter(), 0.0, False
        for judge in judges_of(self._job.grader):
            judge.price = judge.price or self.prices.judge
            judge.account.parent = self.account
        for reader in self._job.environment.asks:
            self.charge(reader, self.prices.reader)
        paid = row.get("paid", 0.0)
        try:
            yield
        except (KeyboardInterrupt, GradusError):
            # What a refused request comes to in a stage is an error of its own, which does not speak of the run's limit.
            if not self._is_spent:
                raise
        finally:
            if self._paid or paid:
                row["paid"] = paid + self._paid
        if self._is_spent:
            raise OutOfMoney(self._sentence(f"{stage} would go beyond it"))

    def watch(self, record: Json) -> None:
        """Asks a training to stop behind a checkpoint if one more step like this could cost more than what is left."""
        if self.account.limit is None or record.get("kind") not in STEPS:
            return
        spent = self._paid + self._machine(time.perf_counter() - self._began)
        # Steps cost about the same, so the last one foretells the next.
        step, self._before = spent - self._before, spent
        if self.account.refused or spent + step > self.account.limit:
            self._stopped = True

    def must_stop(self) -> bool:
        """True if a training must stop behind its next checkpoint."""
        return self._stopped

    @property
    def _is_spent(self) -> bool:
        """True if this stage was stopped, or a request of it refused."""
        return self._stopped or self.account.refused

    def charge(self, policy: Policy, price: Sequence[float] | None) -> None:
        """Puts what a served policy costs on the stage's account."""
        usage = getattr(policy, "usage", None)
        if isinstance(usage, RemoteUsage):
            if price is not None:  # else the policy may have one of its own
                usage.price = Price(prompt=price[0], completion=price[1])
            usage.account.parent = self.account

    def costs(self) -> list[JsonDict]:
        """The manifest's rows, each with its ``cost`` if there is a price."""
        rows = self._manifest.costs()
        return [{**row, "cost": self._cost(row)} for row in rows] if self.prices.are_set else rows

    @property
    def total(self) -> float | None:
        """US dollars so far; None without prices."""
        return fsum(row["cost"] for row in self.costs()) if self.prices.are_set else None

    def _cost(self, row: Json) -> float:
        """What a stage's row of the manifest cost: servers and this machine."""
        return row.get("paid", 0.0) + self._machine(row["seconds"])

    def _machine(self, seconds: float) -> float:
        """What this machine costs for so many seconds."""
        return seconds * self.prices.hour / 3600

    @property
    def _paid(self) -> float:
        """What servers were paid in this stage: for answers, and for training."""
        return self.account.spent + self._counts.cost(self.prices.training)

    def _sentence(self, reason: str) -> str:
        """What the run has cost, why it stops, and the way on."""
        spent, most = format_money(self.total or 0.0), format_money(self.prices.max_cost or 0.0)
        onward = "what was done is kept, and the same command with a higher --max-cost goes on"
        return f"the run has cost {spent} of at most {most}, and {reason}; {onward}"


def judges_of(grader: Grader) -> list[Judge]:
    """Returns the judges among the functions of a grader."""
    rewards = rewards_of(grader)
    functions = cast(Iterable[object], rewards.functions.values() if rewards else ())
    return [function for function in functions if isinstance(function, Judge)]


def costs_document(stages: Sequence[Json], results: Results) -> Costs:
    """Returns what ``costs.json`` holds: the stages, their total, and the gain in reward for each dollar of it."""
    costs = [stage["cost"] for stage in stages if stage.get("cost") is not None]
    total = fsum(costs) if costs else None
    rows = [cast(StageCost, dict(stage)) for stage in stages]
    return {"schema": SCHEMA, "stages": rows, "total": total, "gain_per_dollar": _gain(results, total)}


def _gain(results: Results, total: float | None) -> GainPerDollar | None:
    """What the trained model is above its base under the first condition, divided by what the run cost; None without either."""
    if not total:
        return None
    pairs = next(iter(results["conditions"].values()))["pairs"]
    for name in ("grpo - base", "distill - base", "sft - base"):  # the last stage that trained
        if name in pairs:
            reward = differences_of(pairs[name])["reward"]
            bounds = reward["mean"], reward["low"], reward["high"]
            mean, low, high = [None if bound is None else bound / total for bound in bounds]
            return {"pair": name, "mean": mean, "low": low, "high": high}
    return None


def forecast_money(job: Job) -> Iterator[str]:
    """Yields the most that servers can be paid in each stage, before anything is spent. A token is taken for four bytes."""
    recipe, spec = job.recipe, job.environment
    prices, teach, grpo = recipe.prices, recipe.teach, recipe.grpo
    judges = judges_of(job.grader)
    # Without a price no environment is begun: that may take minutes.
    if not prices.are_set and not any(judge.price for judge in judges):
        return
    start = first_sight(spec, spec.train_task(0))
    first = len(f"{start['system prompt']}{start['text']}".encode()) // _BYTES_A_TOKEN + 1
    is_served = teach.enabled and (teach.policy or "").startswith("remote:")
    if is_served and prices.teacher is not None:
        episode = _episode_cost(prices.teacher, spec.max_turns, first, teach.remote.max_tokens or 512)
        most = format_money(teach.episodes * episode)
        yield f"the teacher's {teach.episodes:,} episodes cost at most about {most}"
    for judge in judges:
        price = judge.price or prices.judge
        if price is not None:
            scores = grpo.max_steps * grpo.groups * grpo.group_size * judge.samples
            most = scores * _episode_cost(price, 1, first + grpo.sampling.max_new_tokens, judge.max_tokens)
            yield f"the judge's {scores:,} scores of GRPO cost at most about {format_money(most)}"
    if prices.max_cost is not None:
        yield f"the run stops before {format_money(prices.max_cost)}"


def _episode_cost(price: Sequence[float], turns: int, first: int, longest: int) -> float:
    """The cost of an episode in which each answer is as long as it may be, and each observation as long as the first."""
    # Each prompt holds all turns before it.
    prompts = turns * first + turns * (turns - 1) // 2 * (first + longest)
    return Price(prompt=price[0], completion=price[1]).cost(prompts, turns * longest)


def read_dollars(text: str) -> float:
    """Reads an amount such as ``5usd``, ``$5`` or ``0.5``. Raises ConfigError.

    >>> read_dollars("5usd")
    5.0
    """
    plain = text.strip().lower().removeprefix("$").removesuffix("usd").strip()
    try:
        amount = float(plain)
    except ValueError:
        amount = -1.0
    if not 0 < amount < float("inf"):
        raise ConfigError(f"expected an amount of US dollars, as in 5usd, got {text!r}")
    return amount
