"""Random models of many architectures, small and real: transformers' classes, a tokenizer, a chat template, weights on disk."""

from pathlib import Path
from typing import Any

import torch
from tiny_qwen2 import byte_tokenizer

from gradus.core import Vocabulary
from gradus.policies.nano.model import build_tokenizer

__all__ = ["ARCHITECTURES", "make_model"]

VOCABULARY = Vocabulary(
    words=("red", "green", "blue", "gold", "say", "the", "word"),
    pieces=tuple("abcdefghijklmnopqrstuvwxyz0123456789?.,+"),
)
_BASE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}
_GROUPED = {**_BASE, "num_key_value_heads": 2}
_EIGHT = {**_GROUPED, "head_dim": 8}
_WINDOW = {"sliding_window": 12}
_MIXED = {**_WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
_MLA = {
    **_BASE,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
}
_SHORT_ROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}

# name -> (transformers' config class, its settings besides vocabulary and end token)
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _GROUPED),
    "qwen2": ("Qwen2Config", _GROUPED),
    "qwen2-moe": ("Qwen2MoeConfig", {**_GROUPED, **_EXPERTS, "shared_expert_intermediate_size": 16}),
    "qwen3": ("Qwen3Config", _EIGHT),
    "qwen3-moe": ("Qwen3MoeConfig", {**_EIGHT, **_EXPERTS}),
    "qwen3-next": ("Qwen3NextConfig", {**_EIGHT, **_EXPERTS, **_LINEAR, "shared_expert_intermediate_size": 16}),
    "qwen3.5": ("Qwen3_5TextConfig", {**_EIGHT, **_LINEAR}),
    "mistral": ("MistralConfig", {**_GROUPED, "sliding_window": None}),
    "mistral-window": ("MistralConfig", {**_GROUPED, **_WINDOW}),
    "phi3-window": ("Phi3Config", {**_GROUPED, **_WINDOW}),
    "phi3-longrope": (
        "Phi3Config",
        {
            **_GROUPED,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 512,
            "rope_parameters": _SHORT_ROPE,
        },
    ),
    "gemma2": ("Gemma2Config", {**_EIGHT, **_WINDOW, "query_pre_attn_scalar": 8}),
    "gemma3": ("Gemma3TextConfig", {**_EIGHT, **_MIXED, "query_pre_attn_scalar": 8}),
    "gpt-oss": ("GptOssConfig", {**_EIGHT, **_MIXED, **_LOCAL_EXPERTS}),
    "gpt2": ("GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512, "initializer_range": 0.3}),
    "olmo2": ("Olmo2Config", _GROUPED),
    "granite": ("GraniteConfig", _GROUPED),
    "cohere2": ("Cohere2Config", {**_GROUPED, **_MIXED}),
    "smollm3": ("SmolLM3Config", _GROUPED),
    "glm4": ("Glm4Config", _EIGHT),
    "deepseek-v3": (
        "DeepseekV3Config",
        {
            **_MLA,
            "q_lora_rank": 16,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "first_k_dense_replace": 1,
            "n_group": 2,
            "topk_group": 1,
            "n_shared_experts": 1,
        },
    ),
    "lfm2": (
        "Lfm2Config",
        {**_GROUPED, "layer_types": ["conv", "full_attention"], "block_ff_dim": 48, "block_auto_adjust_ff_dim": False},
    ),
    "jamba": (
        "JambaConfig",
        {
            **_GROUPED,
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
    ),
    "mamba": ("MambaConfig", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "initializer_range": 0.3}),
    "nemotron-h": (
        "NemotronHConfig",
        {**_EIGHT, "mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 1},
    ),
    "gpt-neo": (
        "GPTNeoConfig",
        {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "max_position_embeddings": 512,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 12,
            "initializer_range": 0.3,
        },
    ),
    "nemotron": ("NemotronConfig", _GROUPED),
    "gemma4": (
        "Gemma4TextConfig",
        {
            **_EIGHT,
            **_WINDOW,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 2,
            "global_head_dim": 16,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 512,
        },
    ),
    "rwkv": ("RwkvConfig", {"hidden_size": 32, "num_hidden_layers": 2, "context_length": 512}),
}


def make_model(name: str, folder: Path) -> Path:
    """Write a random model of the architecture ``name`` as an ordinary folder and return it. The same name, the same weights."""
    import transformers

    kind, settings = ARCHITECTURES[name]
    # transformers puts Qwen's own kind of tokenizer in place of any other in a folder that says qwen2.
    tokenizer = byte_tokenizer() if name.startswith("qwen") else build_tokenizer(VOCABULARY)
    known = {"vocab_size": len(tokenizer), "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        config = getattr(transformers, kind)(**settings, **known, pad_token_id=tokenizer.pad_token_id)
        model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
