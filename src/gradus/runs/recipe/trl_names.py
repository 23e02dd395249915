"""Maps settings of TRL's GRPOConfig to recipe keys. docs/trl_names.md says how they differ."""

from __future__ import annotations

from collections.abc import Collection

TRL_NAMES: dict[str, str] = {
    "beta": "grpo.kl_coef",
    "bf16": "grpo.dtype",
    "chat_template_kwargs": "model.template_options",
    "epsilon": "grpo.clip_low",
    "epsilon_high": "grpo.clip_high",
    "eval_steps": "grpo.validation_every",
    "generation_batch_size": "grpo.groups",
    "gradient_accumulation_steps": "grpo.token_budget",
    "importance_sampling_level": "grpo.algorithm",
    "learning_rate": "grpo.lr",
    "log_completions": "grpo.store_every",
    "loss_type": "grpo.algorithm",
    "lr_scheduler_type": "grpo.schedule",
    "max_completion_length": "grpo.sampling.max_new_tokens",
    "max_grad_norm": "grpo.grad_clip",
    "max_steps": "grpo.max_steps",
    "max_tool_calling_iterations": "grpo.max_turns",
    "multi_objective_aggregation": "grpo.algorithm",
    "num_generations": "grpo.group_size",
    "num_generations_eval": "eval.samples",
    "num_iterations": "grpo.epochs",
    "num_train_epochs": "grpo.max_steps",
    "optim": "grpo.optimizer",
    "peft_config": "grpo.lora",
    "per_device_train_batch_size": "grpo.token_budget",
    "report_to": "trackers",
    "reward_funcs": "rewards",
    "reward_weights": "rewards",
    "save_steps": "grpo.checkpoint_every",
    "save_total_limit": "grpo.keep_checkpoints",
    "scale_rewards": "grpo.scale",
    "steps_per_generation": "grpo.minibatches",
    "temperature": "grpo.sampling.temperature",
    "top_k": "grpo.sampling.top_k",
    "top_p": "grpo.sampling.top_p",
    "use_vllm": "grpo.sampler",
    "vllm_importance_sampling_correction": "grpo.correction",
    "vllm_importance_sampling_mode": "grpo.correction",
    "vllm_mode": "grpo.sampler",
    "vllm_server_base_url": "grpo.sampler_url",
    "warmup_ratio": "grpo.warmup",
    "warmup_steps": "grpo.warmup",
}


def trl_hint(name: str, *, sft: Collection[str] = ()) -> str:
    """Returns the hint for TRL's ``name``, or an empty text. ``sft``: the keys of SFT, if it is a setting of SFT.

    >>> trl_hint("beta")
    ", TRL's beta is grpo.kl_coef here"
    >>> trl_hint("learning_rate", sft=["lr"])
    ", TRL's learning_rate is sft.lr here"
    """
    if name not in TRL_NAMES:
        return ""
    stage, _, key = TRL_NAMES[name].partition(".")
    return f", TRL's {name} is {f'sft.{key}' if stage == 'grpo' and key in sft else TRL_NAMES[name]} here"
