"""A tiny Qwen2 with random weights, a byte-level BPE tokenizer and Qwen's kind of chat template, for tests of the whole path."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

__all__ = ["FORGETFUL", "byte_tokenizer", "make_tiny_llama", "make_tiny_qwen2", "random_qwen2"]

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{%- if messages[0]['role'] != 'system' -%}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{%- endif -%}"
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
# Keeps earlier answers as Qwen3's template does: without their reasoning.
FORGETFUL = (
    "{%- for message in messages -%}{%- set said = message['content'] -%}"
    "{%- if message['role'] == 'assistant' and '</think>' in said -%}{%- set said = said.split('</think>')[-1].lstrip('\\n') -%}"
    "{%- endif -%}{{ '<|im_start|>' + message['role'] + '\\n' + said + '<|im_end|>' + '\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
TEXT = [
    "<reasoning> 7 + 8 = 15 , 4 + 3 + 1 = 8 </reasoning> <answer> 85 </answer>",
    "system user assistant You are a helpful assistant. What is the answer to this question?",
]

SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
}


def random_qwen2(seed: int = 0, **changes: Any) -> Qwen2ForCausalLM:
    """Random weights in a shape of two small layers, or one that ``changes`` makes of it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(Qwen2Config(**{"vocab_size": 300, **SHAPE, **changes})).eval()


def make_tiny_qwen2(folder: Path, *, context: int = 512) -> Path:
    """Write the folder and return it."""
    fast = byte_tokenizer()
    return _written(folder, random_qwen2(tie_word_embeddings=False, **_fitting(fast, context)), fast)


def make_tiny_llama(folder: Path, *, context: int = 512, text: Sequence[str] = ()) -> Path:
    """The same of Llama's architecture, which is that of SmolLM2. ``text``: its words are single tokens, as in a large vocabulary."""
    fast = byte_tokenizer(text, words=2000) if text else byte_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = LlamaConfig(**{**SHAPE, **_fitting(fast, context)})
        return _written(folder, LlamaForCausalLM(config).eval(), fast)


def _fitting(fast: PreTrainedTokenizerFast, context: int) -> dict[str, Any]:
    return {
        "vocab_size": len(fast),
        "max_position_embeddings": context,
        "eos_token_id": fast.eos_token_id,
        "pad_token_id": fast.pad_token_id,
        "bos_token_id": None,
    }


def _written(folder: Path, model: PreTrainedModel, fast: PreTrainedTokenizerFast) -> Path:
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def byte_tokenizer(text: Sequence[str] = TEXT, words: int = 320) -> PreTrainedTokenizerFast:
    """Bytes with some merges, as Qwen's family has them, and ChatML."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=words,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHATML
    return fast
