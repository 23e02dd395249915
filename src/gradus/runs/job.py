"""A job: everything that a run needs, as objects. Names stand in recipes and on the command line alone.

:func:`resolve` turns the names of a recipe into objects once. The stages of a run are functions of a job and a folder. Two jobs of one process,
or of two threads, share nothing.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gradus import environments
from gradus.core import ConfigError, EnvironmentSpec, Grader
from gradus.core.frozen_record import frozen_record
from gradus.core.spec import Vocabulary
from gradus.core.values import Json, JsonDict
from gradus.environments.verifiable.from_rows import with_own_rewards
from gradus.policies.local.folders import find_model, is_nano
from gradus.policies.local.loading import LoadedTokenizer, load_tokenizer
from gradus.policies.tinker.served import WeightsAddress, address_of
from gradus.policies.tinker.service import server_of
from gradus.rewards import RewardChoice, RewardSchedule, own_grader, reweigh
from gradus.rewards.catalog import IN_MEMORY
from gradus.rewards.grading import WEIGHED, rewards_of
from gradus.runs.manifest import CHECKPOINTS, stage_names
from gradus.runs.recipe.promises import Promise, parse_pair
from gradus.runs.recipe.record import Recipe
from gradus.training.data.tasks import epochs_a_step


@frozen_record
class Job:
    """A recipe and the objects that its names stand for."""

    recipe: Recipe
    environment: EnvironmentSpec  # what is trained on; its default grader is the one that training uses
    grader: Grader  # that grader, composed and weighed
    bare: EnvironmentSpec  # the environment before the recipe's rewards and weights
    rewards: RewardChoice  # the reward functions of the recipe
    named: bool  # the environment was loaded by its name

    @property
    def portable(self) -> bool:
        """True if another process finds the same objects by the recipe's names."""
        names = [self.recipe.grpo.algorithm, *(entry.function for entry in self.rewards.entries)]
        return self.named and not any(name.startswith((IN_MEMORY, "__main__:")) for name in names)

    @property
    def pretrained(self) -> bool:
        """True for a pretrained model, False for a nano model."""
        path = self.recipe.model.path
        return path is not None and not is_nano(path)

    def with_recipe(self, recipe: Recipe) -> Job:
        """Returns the job with other settings of the same environment and rewards."""
        # From the bare environment: rewards and weights would else be composed twice.
        return _job(recipe, self.bare, self.rewards, named=self.named)

    def with_settings(self, changes: Json) -> Job:
        """Returns the job with some settings changed; see :meth:`Recipe.with_settings`."""
        return self.with_recipe(self.recipe.with_settings(changes))

    def schedule(self) -> RewardSchedule | None:
        """Returns how weights change from step to step, before its first step; None if they stay. Raises ConfigError.

        Rewards of one's own have a schedule even if weights stay: their functions may look at the step.
        """
        recipe = self.recipe
        if not self.rewards.entries and not recipe.stage and recipe.adaptive is None:
            return None
        rewards = rewards_of(self.grader)
        ranges = rewards.ranges if rewards else None
        return RewardSchedule(self.grader.weights, stages=recipe.stage, adaptive=recipe.adaptive, ranges=ranges)

    def policies(self) -> tuple[str, ...]:
        """Returns the names of the policies of the evaluation, in the order of its tables."""
        section = self.recipe.eval
        names = [self._in_run(name) for name in section.policies]
        if not names:
            trained = ("sft", "distill", "grpo", "grpo-greedy")
            names = ["random"] if "random" in self.environment.policies else []
            names += filter(self._has, trained)
        if "base" not in names:  # a gain is over what training began with
            names.insert(0, "base")
        if section.prompted is not None and "prompted" not in names:
            names.insert(names.index("base") + 1, "prompted")
        return tuple(dict.fromkeys(names))

    def pairs(self) -> list[tuple[str, str]] | None:
        """Returns the pairs that the recipe names; None for those by default. Raises ConfigError for a pair of unknown policies."""
        section, names = self.recipe.eval, self.policies()
        texts = list(section.pairs)
        # Without pairs of its own the evaluation compares all policies, and this pair is one of them.
        # A trained model should also beat the base with the best prompt, which costs nothing.
        if texts and section.prompted is not None and "grpo" in names:
            texts.append("grpo-prompted")
        pairs: dict[tuple[str, str], None] = {}
        for text in texts:
            first, second = map(self._in_run, parse_pair(text, [*section.policies, *names]))
            if first != second:  # both may be the base, if the run leaves their stages out
                pairs[first, second] = None
        return list(pairs) or None

    def promises(self) -> list[Promise]:
        """Returns the promises about policies that the run has."""
        return [promise for promise in self.recipe.promises if all(map(self._has, promise.policies()))]

    def _has(self, policy: str) -> bool:
        return self._in_run(policy) == policy

    def _in_run(self, policy: str) -> str:
        """The policy itself, or the base in place of the checkpoint of a stage that the run leaves out."""
        stage, greedy = CHECKPOINTS.get(policy, ("model", False))
        if stage in stage_names(self.recipe):
            return policy
        return "base-greedy" if greedy else "base"

    def template(self) -> JsonDict:
        """Returns options of the chat template for ``load_model``. Episodes of one turn have no earlier answers to rewrite."""
        model = self.recipe.model
        keep = model.keep_history or (model.path is not None and self.environment.keeps_answers)
        return {
            "keep_history": keep or None,
            "template_options": model.template_options or None,
            "tool_calls": None if model.tool_calls == "auto" else model.tool_calls,
        }

    def loading(self, *, trained: bool = False) -> JsonDict:
        """Returns options of ``load_model`` for the model that the run begins with, or a checkpoint of it, which stores its quantization."""
        grpo = self.recipe.grpo
        return {
            **self.template(),
            "dtype": grpo.weights_dtype,
            "autocast": grpo.autocast,
            "attention": grpo.attention,
            "device": grpo.device,
            "quantize": None if trained else grpo.quantize,
        }

    def address(self, model: str | None = None) -> WeightsAddress | None:
        """Returns where the server has the weights of a model folder, or of the run's first model; None without a server."""
        url = server_of(self.recipe.trainer)
        if url is None:
            return None
        first = self.recipe.model.path or ""
        name = model or first
        stored = address_of(find_model(name) or name) or WeightsAddress(url=url, words=first)
        # The recipe's address counts: a server may have moved since the weights were stored.
        return stored.model_copy(update={"url": url})

    def words(self, address: WeightsAddress, model: str | None = None) -> LoadedTokenizer:
        """Returns tokenizer and settings of a model whose weights a server has; ``model``: its folder, if it was trained."""
        return load_tokenizer(address.words, trained=model, **self.template())

    def base_model(self, folder: Path) -> str:
        """Returns the model before any training: the one that the recipe names, or the nano model of this run folder."""
        path = self.recipe.model.path
        return str(folder / "model") if path is None else str(find_model(path) or path)


def resolve(recipe: Recipe, *, environment: EnvironmentSpec | None = None, rewards: RewardChoice | None = None) -> Job:
    """Turns the names of a recipe into objects, once. Raises ConfigError for a name that stands for nothing.

    ``environment`` and ``rewards``: objects that take the place of the recipe's names.
    """
    functions = (rewards or RewardChoice()).functions
    bare = environments.load(recipe.environment) if environment is None else environment
    choice = RewardChoice(entries=recipe.rewards, functions=functions)
    return _job(recipe, bare, choice, named=environment is None)


def _job(recipe: Recipe, bare: EnvironmentSpec, rewards: RewardChoice, *, named: bool) -> Job:
    """The job of a recipe: its rewards and weights make the grader of its environment."""
    spec = bare
    if recipe.weights:
        grader = bare.grader(recipe.grader)
        # Other weights are another grader: stored rewards of the two must not be mixed.
        weighed = replace(reweigh(grader, recipe.weights), name=f"{grader.name}{WEIGHED}")
        spec = replace(bare, graders={**bare.graders, weighed.name: weighed}, default_grader=weighed.name)
    elif rewards.entries:
        composed = own_grader(
            bare,
            rewards,
            messages=recipe.reward_messages,
            max_steps=recipe.grpo.max_steps,
            epochs_a_step=epochs_a_step(bare, recipe.grpo),
        )
        spec = with_own_rewards(bare, composed, system_prompt=recipe.model.system_prompt)
    if recipe.failed_reward is not None:
        graders = {name: replace(one, failed_reward=recipe.failed_reward) for name, one in spec.graders.items()}
        spec = replace(spec, graders=graders)
    return Job(
        recipe=recipe,
        environment=spec,
        grader=spec.grader(None if recipe.weights else recipe.grader),
        bare=bare,
        rewards=rewards,
        named=named,
    )


def vocabulary_of(spec: EnvironmentSpec) -> Vocabulary:
    """Returns the words that a nano model of an environment is made of. Raises ConfigError if it has none."""
    if spec.language.vocabulary is None:
        raise ConfigError(f"{spec.name} has no vocabulary to make a nano model from; give a model with --model")
    return spec.language.vocabulary()
