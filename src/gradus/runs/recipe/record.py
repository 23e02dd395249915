"""A recipe: the settings of a run as data, with every key checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PrivateAttr, field_validator, model_validator

from gradus.core.values import Json, JsonDict
from gradus.environments import file_name
from gradus.policies.nano.model import NanoConfig
from gradus.policies.tinker.service import server_of
from gradus.rewards import AdaptiveConfig, RewardConfig, StageConfig
from gradus.rewards.grading import OWN_GRADER
from gradus.runs.recipe import MOST_EPISODES
from gradus.runs.recipe.promises import Promise
from gradus.training.config import GrpoConfig
from gradus.training.lesson_config import DistillTable, SftConfig

M = TypeVar("M", bound=BaseModel)


class _Section(BaseModel):
    """A table of a recipe, which refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ModelSection(_Section):
    """The model. Without a path a nano model is made from the environment's words."""

    path: str | None = None
    """A model folder, a run folder, or a name on the hub."""
    system_prompt: str | None = None
    """Asked before each row, if the rows bring no prompt; with reward functions. Short answers have one by default."""
    keep_history: bool = False
    """Keep earlier answers as sampled if the chat template would rewrite them (many drop earlier reasoning). Episodes of one turn need it not."""
    template_options: JsonDict = Field(default_factory=dict)
    """Passed to the chat template, as in `{ enable_thinking = false }`."""
    tool_calls: Literal["auto", "template", "json"] = "auto"
    """How calls of tools are written: `template` as the chat template has it, `json` as lines of JSON with the tools in the system prompt. `auto` is `template`, and JSON for nano models."""
    nano: NanoConfig = NanoConfig()
    """Shape of the nano model."""


class AuditSection(_Section):
    """The grader's audit."""

    enabled: bool = True
    """Begin the run with it."""
    episodes: int = Field(default=40, ge=2, le=MOST_EPISODES)
    """Paired seeds for every policy of the panel."""
    budget: int = Field(default=4000, ge=0, le=MOST_EPISODES)
    """Episodes that the search for a hack may roll out; 0 for no search."""


Tokens = tuple[NonNegativeFloat, NonNegativeFloat] | None


class RemoteSection(_Section):
    """Settings of a teacher behind an API. What is not set is the policy's default or the server's."""

    max_tokens: int | None = Field(default=None, ge=1)
    """Longest answer; 512 by default."""
    temperature: float | None = Field(default=None, ge=0.0)
    """Of its sampling; 1 by default."""
    concurrency: int | None = Field(default=None, ge=1, le=1024)
    """Calls in flight at once; 8 by default."""
    timeout: float | None = Field(default=None, gt=0.0)
    """Seconds for one answer; 120 by default."""


class PricesSection(_Section):
    """The prices in US dollars. Without one of them no money is counted; they change no figure of a run."""

    teacher: Tokens = None
    """Of a million prompt tokens, and of a million completion tokens, of a teacher behind an API."""
    judge: Tokens = None
    """The same of judges that have no price of their own."""
    reader: Tokens = None
    """The same of a served reader that the environment asks."""
    evaluation: Tokens = None
    """The same of served policies in the evaluation."""
    training: tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeFloat] | None = None
    """Of a million prompt, sampled and trained tokens of the server that `trainer` names."""
    hour: float = Field(default=0.0, ge=0)
    """Of an hour of this machine."""
    max_cost: float | None = Field(default=None, gt=0)
    """The run stops before it costs more; `--max-cost` sets it."""

    @property
    def are_set(self) -> bool:
        """True if there is a price."""
        return any([self.teacher, self.judge, self.reader, self.evaluation, self.training, self.hour])

    @model_validator(mode="after")
    def _limit_has_prices(self) -> PricesSection:
        """A limit without a price would never be reached."""
        if self.max_cost is not None and not self.are_set:
            raise ValueError("max_cost needs a price: of teacher, judge, reader, evaluation, training or hour")
        return self


class TeachSection(_Section):
    """The teacher whose episodes warm-start the model."""

    enabled: bool = True
    """False leaves the teacher and SFT out: GRPO begins with the model as it is."""
    policy: str | None = None
    """The teacher; the environment's own by default."""
    episodes: int = Field(default=200, ge=1, le=MOST_EPISODES)
    """How many training tasks it answers."""
    remote: RemoteSection = RemoteSection()
    """How a teacher behind an API is asked."""


class EvalSection(_Section):
    """The comparison at the end. ``grpo``, ``grpo-greedy``, ``sft`` and ``sft-greedy`` are the run's checkpoints."""

    policies: tuple[str, ...] = ()
    """Names of policies; random, sft, grpo and grpo-greedy by default, and base in any case."""
    conditions: tuple[str, ...] = ()
    """Conditions; all by default."""
    graders: tuple[str, ...] = ()
    """Further graders; the run's own comes first."""
    episodes: int | None = None
    """Seeds of each condition; all it has by default."""
    seed: int | None = None
    """Seed of what policies draw in the evaluation; that of the whole run by default."""
    samples: int = Field(default=1, ge=1)
    """episodes of each task"""
    pairs: tuple[str, ...] = ()
    """Pairs to compare, as `a-b`; each policy minus those before it by default."""
    prompted: str | None = None
    """A better prompt of the base, which is asked with it too, as `prompted`."""
    shown: int = Field(default=3, ge=0)
    """episodes of each policy and condition that the report can open"""


class Recipe(_Section):
    """A whole run. ``stage`` and ``adaptive`` change the grader's weights in the course of GRPO; stages set its length."""

    # A key, as in grpo.lr -> the layer that set it.
    _layers: Mapping[str, str] = PrivateAttr(default_factory=dict[str, str])
    _chosen: str = PrivateAttr(default="")  # see Recipe.chosen
    # Its name, if it comes with Gradus and was asked for by that name alone.
    _shipped: str | None = PrivateAttr(default=None)

    environment: str
    """What to train on, as `gradus envs` lists it; rows, or code of your own."""
    grader: str | None = None
    """A grader of the environment; its default one if unset."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Weights of the grader's components in place of its own; `weights.compression` is Mem-alpha's beta, `weights.validity` its gamma."""
    failed_reward: float | None = None
    """Reward of an episode in which the model broke its agent or environment. Left out: the floor of the grader's range, else the least of 0 and all rewards so far."""
    seed: int = 0
    """Seed of the whole run."""
    quick: bool = False
    """At toy size; `--quick` sets it."""
    trainer: str = "local"
    """Who holds the weights, trains and samples them: `local` is this process, `tinker:URL` a server of the Tinker API."""
    trackers: tuple[str, ...] = ()
    """Where metrics go besides metrics.jsonl (`tensorboard`, `wandb`); they change no stage."""
    model: ModelSection = ModelSection()
    audit: AuditSection = AuditSection()
    teach: TeachSection = TeachSection()
    sft: SftConfig = SftConfig()
    distill: DistillTable | None = None
    """Distillation before GRPO, trained as `sft` says; none without this table."""
    grpo: GrpoConfig = GrpoConfig()
    rewards: tuple[RewardConfig, ...] = ()
    """Reward functions that compose a grader, called `rewards`, in place of `grader`."""
    reward_messages: bool | None = None
    """Give the functions prompts and completions as chat messages. Left out: if the rows are chats, as in TRL."""
    stage: tuple[StageConfig, ...] = ()
    """The stages of the rewards' schedule."""
    adaptive: AdaptiveConfig | None = None
    """Weights that follow success."""
    eval: EvalSection = EvalSection()
    prices: PricesSection = PricesSection()
    promises: tuple[Promise, ...] = ()
    """What the run must show."""

    @field_validator("environment")
    @classmethod
    def _rows(cls, environment: str) -> str:
        """``rows.jsonl`` as on a command line."""
        return file_name(environment)

    @field_validator("rewards")
    @classmethod
    def _one_spelling(cls, rewards: tuple[RewardConfig, ...]) -> tuple[RewardConfig, ...]:
        """``mine:exact`` of a file in the current folder is recorded as ``mine.py:exact``: both are one setting."""
        spelled: list[RewardConfig] = []
        for reward in rewards:
            module, colon, name = reward.function.rpartition(":")
            if colon and module.isidentifier() and Path(f"{module}.py").is_file():
                reward = reward.model_copy(update={"function": f"{module}.py:{name}"})
            spelled.append(reward)
        return tuple(spelled)

    @model_validator(mode="after")
    def _as_long_as_its_stages(self) -> Recipe:
        """Stages that all say how long they are set ``grpo.max_steps``; if both are given they must agree."""
        for name, config in (("sft", self.sft), ("grpo", self.grpo)):
            if "seed" in config.model_fields_set:
                raise ValueError(f"{name}.seed is no key; set seed, which holds for the whole run")
        lengths = [stage.steps for stage in self.stage if stage.steps is not None]
        if not lengths or len(lengths) < len(self.stage):
            return self
        total, max_steps = sum(lengths), self.grpo.max_steps
        if "max_steps" not in self.grpo.model_fields_set:
            return self.with_settings({"grpo.max_steps": total})
        if max_steps != total:
            raise ValueError(
                f"the stages have {' + '.join(map(str, lengths))} = {total} steps and grpo.max_steps is {max_steps}; "
                "leave max_steps out, or leave out the steps of the last stage, which then lasts to the end"
            )
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        """Refuses settings that exclude each other, or have no effect together."""
        self.grpo.check_own_sampler()
        self._check_trainer()
        if self.model.system_prompt is not None and not self.rewards:
            raise ValueError(
                "model.system_prompt has no effect without rewards; leave it out, or give rows with ?system=FILE"
            )
        if self.reward_messages is not None and not self.rewards:
            raise ValueError("reward_messages has no effect without rewards; leave it out")
        if self.rewards and self.grader not in (None, OWN_GRADER):
            raise ValueError(f"a recipe has rewards or a grader, got both; leave out grader = {self.grader!r}")
        if self.rewards and self.weights:
            raise ValueError("weights are a grader's; give each of the rewards its own weight")
        # The last stage needs no length: it lasts to the end.
        earlier_steps = sum(stage.steps or 0 for stage in self.stage[:-1])
        if earlier_steps >= self.grpo.max_steps:
            raise ValueError(
                f"the stages before the last take {earlier_steps} steps, which leaves none of grpo.max_steps = "
                f"{self.grpo.max_steps} for {self.stage[-1].name!r}; raise max_steps"
            )
        return self

    def _check_trainer(self) -> None:
        """Refuses what a server of the Tinker API cannot do."""
        if server_of(self.trainer) is None:
            if self.prices.training is not None:
                raise ValueError("prices.training has no effect with trainer = 'local'; leave it out")
            return
        self.sft.check_served()
        self.grpo.check_served()
        if self.model.path is None:
            raise ValueError("a Tinker server trains a model that it has; name it with model.path (--model)")
        if self.distill is not None:
            raise ValueError(
                "a Tinker server gives log-probs of sampled tokens, not whole distributions; leave out distill and set "
                "grpo.distill_coef, which learns from the sampled token"
            )

    def with_settings(self, changes: Json) -> Recipe:
        """The recipe with some values changed, by dotted keys as in ``grpo.sampling.top_k``. They are taken as they are: nothing is checked anew."""
        recipe = self
        for key, value in changes.items():
            if isinstance(value, list):  # it was stored as JSON
                value = tuple(cast(list[Any], value))
            recipe = _replaced(recipe, key.split("."), value)
        return recipe

    def with_origin(self, layers: Mapping[str, str], choice: str, shipped: str | None) -> Recipe:
        """The same settings, and where they came from."""
        recipe = self.model_copy()
        recipe._layers, recipe._chosen, recipe._shipped = layers, choice, shipped
        return recipe

    @property
    def chosen(self) -> str:
        """Says which of its settings a recipe has in force for the model that was given, in a line; empty if there was no choice."""
        return self._chosen

    def fixed(self, *, all_of_file: bool) -> frozenset[str]:
        """Keys that a person set, on the command line or, with ``all_of_file``, in a file of their own."""
        open_layers = () if all_of_file else ("recipe", "model")
        return frozenset(key for key, layer in self._layers.items() if layer not in open_layers)

    def default_folder(self) -> Path:
        """Returns the folder of its run if nobody names one: after the recipe's name or the environment, and apart at toy size."""
        return default_folder(self._shipped or self.environment, quick=self.quick)


def _replaced(section: M, path: Sequence[str], value: Any) -> M:
    """The section with the value that the keys of a path lead to."""
    name, *inner = path
    if inner:
        value = _replaced(getattr(section, name), inner, value)
    return section.model_copy(update={name: value})


def default_folder(environment: str, *, quick: bool = False) -> Path:
    """``runs/`` and a name for the environment, one for each file, set and game; ``-quick`` is added for a run at toy size.

    >>> [default_folder(name).name for name in ("rhythm", "jsonl:data/rows.jsonl?answer=label", "/home/a/mine.py:spec")]
    ['rhythm', 'rows', 'mine']
    >>> [default_folder(name).name for name in ("mine.py:Doors", "reasoning-gym:gcd", "openenv:ws://host:8000")]
    ['mine-Doors', 'reasoning-gym-gcd', 'openenv-ws-host-8000']
    >>> default_folder("rhythm", quick=True).name
    'rhythm-quick'
    """
    head, _, argument = environment.partition("?")[0].partition(":")
    if head.endswith(".py"):
        head = Path(head).stem
        argument = "" if argument == "spec" else argument
    elif head in ("jsonl", "csv", "parquet"):
        head, argument = Path(argument).stem, ""
    text = f"{head}-{argument}" if argument else head
    name = re.sub(r"[^\w.-]+", "-", text).strip("-.") or "run"
    return Path("runs") / (f"{name}-quick" if quick else name)
