"""A GGUF file becomes an ordinary model folder: the same function of the same tokens, with its name and licence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from gradus.core import ConfigError
from gradus.policies.local.export import export_model
from gradus.policies.local.folders import check_model_source, find_model
from gradus.policies.local.gguf import dequantize, read_source, source_facts
from gradus.policies.local.loading import load_model
from gradus.training.run.checkpoints import save_model

gguf = pytest.importorskip("gguf")
LETTERS = [*"abcdefgh", "Ġ", "ab", "cd"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def tiny_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(SPECIAL + LETTERS), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=True, initializer_range=0.2,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def write_gguf(path: Path, model: LlamaForCausalLM, kind: Any) -> None:
    """The model as llama.cpp's converter writes it: query and key rows in its own order, matrices quantized."""
    writer = gguf.GGUFWriter(str(path), "llama")
    config = model.config
    writer.add_name("Tiny Llama")
    writer.add_license("apache-2.0")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(SPECIAL + LETTERS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * len(LETTERS))
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, value in model.state_dict().items():
        if name == "lm_head.weight":
            continue  # tied
        array = value.numpy()
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if part in name:
                rows = array.reshape(heads, 2, -1, array.shape[1])
                array = rows.swapaxes(1, 2).reshape(array.shape)
        target = names.get_name(name, try_suffixes=(".weight",))
        stored = kind if array.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(target, gguf.quantize(np.ascontiguousarray(array), stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_1"])
def test_a_gguf_file_becomes_the_same_model(tmp_path: Path, kind: str) -> None:
    model, stored = tiny_llama(), gguf.GGMLQuantizationType[kind]
    write_gguf(tmp_path / "tiny.gguf", model, stored)
    for value in model.state_dict().values():  # the file holds rounded weights
        if value.ndim == 2:
            value.copy_(torch.from_numpy(gguf.dequantize(gguf.quantize(value.numpy(), stored), stored)))
    source = dequantize(tmp_path / "tiny.gguf", tmp_path / "model")
    assert (source["name"], source["license"], source["quantization"]) == ("Tiny Llama", "apache-2.0", kind)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    ids = torch.tensor([[1, 3, 4, 5, 11, 2]])
    with torch.no_grad():
        assert (loaded(ids).logits - model(ids).logits).abs().max() < 1e-5
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.chat_template == TEMPLATE
    assert tokenizer("ab", add_special_tokens=False)["input_ids"] == [len(SPECIAL) + LETTERS.index("ab")]
    assert read_source(tmp_path / "model") == source
    assert source_facts(tmp_path / "model") == [
        f"trained from Tiny Llama, licence apache-2.0, dequantized from {kind} (`tiny.gguf`)"
    ]


def test_what_is_no_model_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("not weights")
    with pytest.raises(ConfigError, match=r"text\.gguf is not a GGUF file"):
        dequantize(tmp_path / "text.gguf", tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_path_of_a_gguf_file_is_a_model_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading, checking and saving take the file; the card of what was trained from it says where it came from."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_gguf(tmp_path / "tiny.gguf", tiny_llama(), gguf.GGMLQuantizationType.F32)
    folder = find_model(tmp_path / "tiny.gguf")
    assert folder is not None
    assert folder.is_relative_to(tmp_path / "cache")
    assert find_model(tmp_path / "tiny.gguf") == folder == Path(check_model_source(str(tmp_path / "tiny.gguf")))
    loaded = load_model(folder)
    save_model(tmp_path / "trained", loaded)
    assert source_facts(tmp_path / "trained")[0].startswith("trained from Tiny Llama")
    export_model(tmp_path / "trained", tmp_path / "exported")
    assert "licence apache-2.0, dequantized from F32" in (tmp_path / "exported" / "README.md").read_text()
    with pytest.raises(ConfigError, match="expected a GGUF file"):
        find_model(tmp_path / "other.gguf")
