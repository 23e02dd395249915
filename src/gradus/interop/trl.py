"""Our environments, rewards and credit under TRL's GRPO trainer, for those who stay there. Needs the extra ``trl``.

TRL 1.16 takes rollouts through ``rollout_func``, which returns token ids and log-probs, and ``env_mask``, which is 1 on
sampled tokens. Its loss accepts advantages of shape (B, T) from subclasses; :class:`TokenCreditTrainer` is that subclass.
``rollout_func`` is experimental there, so the version is checked. Environments that restart their prompt give several
training sequences an episode, which TRL cannot take; train those with ``gradus grpo``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
import trl
from datasets import Dataset
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from gradus.algorithms import find_algorithm
from gradus.core import ConfigError, EnvironmentSpec, Episode, Grader, Group, Task
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.renderers import ChatRenderer
from gradus.policies.local.sampling import SamplingConfig
from gradus.rollouts import roll_out
from gradus.training.data.credit import CreditRule, credit_groups
from gradus.training.data.sequences import TrainingSample

_TESTED = "1.16"
# Settings of TRL's own generation, which a rollout of ours does not read, and their values that change nothing.
_NEUTRAL: Mapping[str, Sequence[Any]] = {
    "use_vllm": (False,),
    "top_p": (1.0,),
    "top_k": (0, -1, None),
    "min_p": (0.0, None),
    "repetition_penalty": (1.0,),
    "generation_kwargs": ({}, None),
    "chat_template_kwargs": ({}, None),
}


def task_dataset(tasks: Sequence[Task]) -> Dataset:
    """Tasks as the rows that TRL deals out: a prompt that names the task, which :class:`Rollout` reads back."""
    rows = [{"prompt": json.dumps([task.seed, task.condition, dict(task.options)])} for task in tasks]
    return Dataset.from_list(rows)


def grade_reward(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
    """TRL's reward function: the rewards that came with the rollout. A missing reward stays missing."""
    return list(columns["reward"])


class Rollout:
    """TRL's ``rollout_func``: rolls out each prompt's task with the trainer's own model and credits every sampled token.

    Members of a group share their task and differ by their seed keys (seed, step of the trainer, group, member). The sampler
    draws at the trainer's temperature from the whole vocabulary, because TRL's softmax knows no grammar and no top-k.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        *,
        grader: Grader | None = None,
        credit: Literal["episode", "turn", "span"] = "turn",
        scale: Literal["none", "batch", "group"] = "batch",
        max_new_tokens: int = 64,
        seed: int = 0,
    ) -> None:
        self.spec, self.grader, self.max_new_tokens, self.seed = spec, grader, max_new_tokens, seed
        self.credit = CreditRule(algorithm=find_algorithm("gradus"), credit=credit, scale=scale)
        self._policy: tuple[Any, LocalPolicy] | None = None
        self._calls = 0

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, list[Any]]:
        """Roll out; returns TRL's keys, and ``reward`` and ``token_advantages`` beside them, one entry per prompt."""
        training = trainer.model.training
        size = trainer.num_generations if training else trainer.num_generations_eval
        tasks = [self._task(group) for group in _groups(prompts, size)]
        rank = int(trainer.accelerator.process_index)
        key = ("trl", "train" if training else "eval", trainer.state.global_step, self._calls, rank)
        self._calls += 1
        with _evaluating(trainer.model):
            rolled_out = roll_out(
                self.spec,
                self._local(trainer),
                tasks,
                group_size=size,
                seed=self.seed,
                key=key,
                grader=self.grader,
            )
        return self._columns(rolled_out.groups, self._local(trainer).loaded.renderer)

    def _task(self, prompt: str) -> Task:
        seed, condition, options = json.loads(prompt)
        return Task(environment=self.spec.name, seed=seed, condition=condition, options=options)

    def _local(self, trainer: Any) -> LocalPolicy:
        """The trainer's model as a policy; made once, because the weights change in place."""
        model = trainer.accelerator.unwrap_model(trainer.model)
        if self._policy is None or self._policy[0] is not model:
            tokenizer = trainer.processing_class
            loaded = LoadedModel(
                model=model,
                tokenizer=tokenizer,
                renderer=ChatRenderer(tokenizer),
                device=model.device,
                dtype=model.dtype,
                path=str(model.config.name_or_path),
            )
            sampling = SamplingConfig(temperature=trainer.temperature, max_new_tokens=self.max_new_tokens)
            self._policy = (model, LocalPolicy(loaded, sampling, name="trl"))
        return self._policy[1]

    def _columns(self, groups: Sequence[Group], renderer: ChatRenderer) -> dict[str, list[Any]]:
        credited: dict[int, list[TrainingSample]] = {}
        weights = (self.grader or self.spec.grader()).weights
        for one in credit_groups(groups, self.credit, renderer, weights=weights):
            credited.setdefault(one.episode, []).append(one)
        columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
        graded = 0
        for episode in (episode for group in groups for episode in group.episodes):
            # credit_groups numbers the episodes that it could credit, in order, and leaves the others out.
            usable = episode.reward is not None and episode.reward.value is not None and bool(episode.turns)
            row = _row(episode, credited[graded]) if usable else _empty(renderer)
            graded += usable
            for name, value in row.items():
                columns[name].append(value)
        return columns


_COLUMNS = ("prompt_ids", "completion_ids", "logprobs", "env_mask", "token_advantages", "reward")


def _row(episode: Episode, credited: Sequence[TrainingSample]) -> dict[str, Any]:
    """One episode as one sequence: what was read first is the prompt, all that follows the completion."""
    if len(credited) != 1:
        raise ConfigError(
            f"TRL takes one token sequence per episode, this one restarts its prompt {len(credited) - 1} times; "
            "train it with `gradus grpo`"
        )
    sequence, advantages = credited[0], credited[0].advantages
    assert advantages is not None
    start = int(sequence.positions[0])
    length = len(sequence) - start
    columns = {"logprobs": [0.0] * length, "env_mask": [0] * length, "token_advantages": [0.0] * length}
    for token, position in enumerate(sequence.positions.tolist()):
        columns["logprobs"][position - start] = float(sequence.logprobs[token])
        columns["env_mask"][position - start] = 1
        columns["token_advantages"][position - start] = float(advantages[token])
    assert episode.reward is not None
    ids = sequence.ids.tolist()
    return {"prompt_ids": ids[:start], "completion_ids": ids[start:], **columns, "reward": episode.reward.value}


def _empty(renderer: ChatRenderer) -> dict[str, Any]:
    """Stands for an episode that failed: TRL wants a row, and this one trains nothing and has no reward."""
    stop = min(renderer.stop_ids)
    masked = {"logprobs": [0.0], "env_mask": [0], "token_advantages": [0.0]}
    return {"prompt_ids": [stop], "completion_ids": [stop], **masked, "reward": None}


def _groups(prompts: Sequence[str], size: int) -> list[str]:
    """One prompt per group; TRL deals ``size`` copies of each, one after another."""
    firsts = list(prompts[::size])
    if len(prompts) % size or [each for each in firsts for _ in range(size)] != list(prompts):
        raise ConfigError(
            f"expected {size} copies of every prompt side by side, got {len(prompts)} prompts; set "
            "per_device_train_batch_size x gradient_accumulation_steps to a multiple of num_generations"
        )
    return firsts


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Eval mode and no gradient during a rollout: gradient checkpointing would switch the cache off."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


class TokenCreditTrainer(GRPOTrainer):
    """TRL's trainer, with the advantages of :class:`Rollout` per token in place of its own per completion."""

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)  # type: ignore[arg-type]
        rows = [torch.tensor(each["token_advantages"], dtype=torch.float32) for each in inputs]
        advantages = torch.zeros(output["completion_ids"].shape)
        padded = pad_sequence(rows, batch_first=True)
        advantages[:, : padded.shape[1]] = padded  # completions may be padded further, to a multiple
        output["advantages"] = advantages.to(output["completion_ids"].device)
        return output


def make_trainer(
    model: str, spec: EnvironmentSpec, config: GRPOConfig, *, tasks: Sequence[Task], **options: Any
) -> TokenCreditTrainer:
    """TRL's trainer on our environment. ``options`` are :class:`Rollout`'s.

    Raises ConfigError for a version of TRL that this was not tested with, and for settings that cannot hold here.
    """
    if not trl.__version__.startswith(f"{_TESTED}."):
        raise ConfigError(
            f"this bridge was tested with TRL {_TESTED}, found {trl.__version__}; install trl=={_TESTED}.0"
        )
    without_effect = [name for name, neutral in _NEUTRAL.items() if getattr(config, name) not in neutral]
    if without_effect:
        raise ConfigError(
            f"the rollout samples in process from the whole vocabulary; unset {', '.join(without_effect)}"
        )
    tokenizer = AutoTokenizer.from_pretrained(model)
    return TokenCreditTrainer(
        model=model,
        reward_funcs=grade_reward,
        args=config,
        train_dataset=task_dataset(tasks),
        processing_class=tokenizer,
        rollout_func=Rollout(spec, **options),
    )
