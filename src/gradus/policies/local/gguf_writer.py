"""Writes a model as a GGUF file, which llama.cpp and Ollama run, with a Modelfile: template, system prompt, sampling.

Layers are named by the package ``gguf``, which llama.cpp's converter uses too. What is said of the file's meaning is checked where two
computations can be compared: the words that the tokenizer cuts a text into, and the prompt that the Modelfile's template writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter, LlamaFileType, get_tensor_name_map, quantize
from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from gradus.core import ConfigError
from gradus.policies.local.chat_template import PLAIN_TEMPLATE, ChatTemplate
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.local.settings import free_sampling

FORMATS = ("f16", "q8_0", "q4_0")
"""Bits of a weight: 16, 8.5 and 4.5."""
_ARCHITECTURES = {"llama": "Llama", "qwen2": "Qwen 2", "qwen3": "Qwen 3"}
_BLOCK = 32  # weights that share a scale; a matrix whose rows cannot be cut so stays f16
# Kinds of tokens, as llama.cpp numbers them.
_NORMAL = 1
_CONTROL = 3
_USER_DEFINED = 4
_UNUSED = 5
_SCALED_ROPES = ("default", "linear", "llama3")  # those that change frequencies alone

# How llama.cpp cuts a text before it merges bytes, by the name that it has there.
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_BYTES = ByteLevel(add_prefix_space=False, use_regex=False)


def _split(digits: str) -> PreTokenizer:
    return Sequence([Split(Regex(_WORDS.replace("DIGITS", digits)), "isolated"), _BYTES])


_CUTS: dict[str, PreTokenizer] = {
    "gpt-2": ByteLevel(add_prefix_space=False),
    "smollm": Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]),
    "qwen2": _split(""),
    "llama-bpe": _split("{1,3}"),
}
_TEXT = "Don't  STOP: it's 12345 café\n\n  x=3.14; naïve\t'll DON'T (a+b) 中文!\r\n end "


def write_gguf(file: Path, kind: str, loaded: LoadedModel) -> None:
    """Writes a GGUF file, and a Modelfile beside it. The model's adapters are merged already.

    The model is one that :func:`check_gguf` lets pass.
    """
    writer: Any = GGUFWriter(str(file), loaded.model.config.model_type)
    writer.add_name(file.stem)
    writer.add_file_type(LlamaFileType[f"MOSTLY_{kind.upper()}"])
    _add_shape(writer, loaded.model.config)
    _add_tokenizer(writer, loaded)
    sampling = free_sampling(loaded.settings)
    writer.add_sampling_temp(0.0 if sampling.greedy else sampling.temperature)
    writer.add_sampling_top_k(sampling.top_k)
    writer.add_sampling_top_p(sampling.top_p)
    for target, array in chain(_tensors(loaded.model), _rope_factors(loaded.model)):
        stored = _stored_as(target, array, kind)
        writer.add_tensor(target, quantize(np.ascontiguousarray(array), stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file.with_name("Modelfile").write_text(_modelfile(file.name, loaded, sampling), encoding="utf-8")


def gguf_name(name: str, kind: str) -> str:
    """Returns the file's name, as publishers of GGUF files write it: model, then format."""
    return f"{name}-{kind}.gguf"


def check_gguf(loaded: LoadedModel) -> None:
    """Raises ConfigError for a model whose layers, rotary scaling, tokenizer or system prompt these files could not say."""
    config = loaded.model.config
    if config.model_type not in _ARCHITECTURES:
        raise ConfigError(
            f"GGUF files are written of {', '.join(_ARCHITECTURES.values())}, and this model is {config.model_type}; "
            "llama.cpp's convert_hf_to_gguf.py takes the folder that gradus export writes without --gguf"
        )
    rope = config.rope_parameters["rope_type"]
    slides = getattr(config, "use_sliding_window", False)
    if rope not in _SCALED_ROPES or slides:
        raise ConfigError(
            f"GGUF files are written of models with full attention and rotary scaling {', '.join(_SCALED_ROPES)}, and this one has {rope} "
            f"scaling and use_sliding_window = {slides}"
        )
    backend = loaded.tokenizer.backend_tokenizer
    kind = type(backend.model).__name__
    if kind != "BPE" or backend.pre_tokenizer is None:
        raise ConfigError(
            f"GGUF files are written of models with a tokenizer of byte pairs, as Llama 3, Qwen and SmolLM2 have, and this one's is {kind}"
        )
    _cut_of(backend.pre_tokenizer)
    if '"""' in loaded.settings.system_prompt:
        raise ConfigError('a Modelfile cannot hold """ in a system prompt; write it with other quotation marks')


def _add_shape(writer: Any, config: Any) -> None:
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


def _tensors(model: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Names as llama.cpp has them and float32 arrays. A head that is tied to the embeddings is left out."""
    config = model.config
    (architecture,) = (key for key, name in MODEL_ARCH_NAMES.items() if name == config.model_type)
    names = get_tensor_name_map(architecture, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if target is None:
            raise ConfigError(f"a GGUF file has no place for the model's tensor {name}")
        array = value.detach().float().cpu().numpy()
        layer = name.split(".")[-2]
        if config.model_type == "llama" and layer in heads:
            array = _neighbors(array, heads[layer])
        yield target, array


def _neighbors(array: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a Llama's query or key in llama.cpp's order: what is rotated together lies side by side, and not half a head apart."""
    halves = array.reshape(heads, 2, -1, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape)


def _rope_factors(model: Any) -> Iterator[tuple[str, np.ndarray]]:
    """What scaling divides each rotary frequency by, read off the model's own frequencies; nothing if it divides none."""
    scaled = model.model.rotary_emb.inv_freq.double().cpu()
    places = torch.arange(len(scaled), dtype=torch.float64) / len(scaled)
    plain = model.config.rope_parameters["rope_theta"] ** -places
    factors = plain / scaled
    if not torch.allclose(factors, torch.ones_like(factors), rtol=1e-4):
        yield "rope_freqs.weight", factors.float().numpy()


def _stored_as(target: str, array: np.ndarray, kind: str) -> GGMLQuantizationType:
    """Returns a tensor's format: vectors stay float32; every word passes embeddings and head, so they have eight bits at least."""
    if array.ndim < 2:
        return GGMLQuantizationType.F32
    if array.shape[1] % _BLOCK:
        return GGMLQuantizationType.F16
    at_the_ends = target in ("token_embd.weight", "output.weight")
    return GGMLQuantizationType.Q8_0 if at_the_ends and kind == "q4_0" else GGMLQuantizationType[kind.upper()]


def _add_tokenizer(writer: Any, loaded: LoadedModel) -> None:
    tokenizer = loaded.tokenizer
    backend = tokenizer.backend_tokenizer
    written = json.loads(backend.to_str())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_cut_of(backend.pre_tokenizer))
    tokens, kinds = _token_list(tokenizer, loaded.model.config.vocab_size)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    # Older versions of tokenizers write a pair as one text.
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in written["model"]["merges"]]
    writer.add_token_merges(merges)
    renderer = loaded.renderer
    writer.add_eos_token_id(renderer.stop_id)
    others = sorted(renderer.stop_ids - {renderer.stop_id})
    if others:
        writer.add_eot_token_id(others[0])
    if tokenizer.bos_token_id is not None:
        writer.add_bos_token_id(tokenizer.bos_token_id)
    if tokenizer.pad_token_id is not None:
        writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_add_bos_token(_adds_bos(tokenizer))
    writer.add_chat_template(_jinja(loaded))


def _cut_of(cut: PreTokenizer) -> str:
    """Returns llama.cpp's name of the rule that cuts a text as ``cut`` does."""
    pieces = cut.pre_tokenize_str(_TEXT)
    names = [name for name, rule in _CUTS.items() if rule.pre_tokenize_str(_TEXT) == pieces]
    if not names:
        raise ConfigError(
            f"GGUF files are written of tokenizers that cut texts as {', '.join(_CUTS)} do, and this model's cuts them in another way"
        )
    return names[0]


def _token_list(tokenizer: Any, size: int) -> tuple[list[str], list[int]]:
    """Tokens by id, and their kinds. A model may have rows for more tokens than its tokenizer has."""
    tokens = [f"[PAD{place}]" for place in range(size)]
    kinds = [_UNUSED] * size
    for token, place in tokenizer.get_vocab().items():
        tokens[place] = token
        kinds[place] = _NORMAL
    # The vocabulary holds these too; only here is said what they are.
    for place, added in tokenizer.added_tokens_decoder.items():
        tokens[place] = added.content
        kinds[place] = _CONTROL if added.special else _USER_DEFINED
    return tokens, kinds


def _adds_bos(tokenizer: Any) -> bool:
    """Says whether the tokenizer itself puts its first token in front of a text."""
    bos = tokenizer.bos_token_id
    return bos is not None and tokenizer("a")["input_ids"][0] == bos


def _jinja(loaded: LoadedModel) -> str:
    """The chat template, with the options that the model was trained with set in front."""
    template = loaded.renderer.dated_tokenizer().chat_template
    lines: list[str] = []
    for key, value in loaded.settings.template_options.items():
        if key != "tools":  # who calls the model says which it has
            lines.append(f"{{%- set {key} = {json.dumps(value)} -%}}")
    lines.append(template if isinstance(template, str) else PLAIN_TEMPLATE)
    return "".join(lines)


# -- for Ollama ---------------------------------------------------------------------------------------------------


def _modelfile(file: str, loaded: LoadedModel, sampling: SamplingConfig) -> str:
    """Text of a Modelfile. What cannot be written there exactly is said in a comment, and Ollama reads the file's own template."""
    settings = loaded.settings
    tokenizer = loaded.tokenizer
    bos = tokenizer.bos_token if _adds_bos(tokenizer) else ""
    template = go_template(loaded.renderer, bos)
    lines = [f"FROM ./{file}"]
    if template is None:
        lines.append("# The chat template is more than a frame around messages; the file itself holds it.")
    else:
        lines.append(f'TEMPLATE """{template}"""')
    if settings.system_prompt:
        lines.append(f'SYSTEM """{settings.system_prompt}"""')
    values = {
        "temperature": 0.0 if sampling.greedy else sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "repeat_penalty": 1.0,  # Ollama's own is 1.1, which no training knew
        "num_predict": sampling.max_new_tokens,
    }
    lines += [f"PARAMETER {key} {value}" for key, value in values.items()]
    stops = [tokenizer.decode([stop]) for stop in sorted(loaded.renderer.stop_ids)]
    lines += [f'PARAMETER stop """{stop}"""' for stop in stops]
    return "\n".join(lines) + "\n"


def go_template(renderer: ChatTemplate, bos: str) -> str | None:
    """The chat template as Ollama writes one, put together from the pieces that the renderer writes around messages.

    ``bos``: what the tokenizer puts in front by itself. None if the pieces do not make up the text that the chat template renders.
    """
    system = "zqsystemqz"
    first = "zqfirstqz"
    answer = "zqanswerqz"
    second = "zqsecondqz"
    prompt = renderer.render(renderer.messages(system, first))
    without_system = renderer.render(renderer.messages("", first))
    conversation = renderer.render(renderer.messages(system, first, answer, second))
    behind, _, around = prompt.partition(system)
    between, _, frame = around.partition(first)
    bare = without_system.partition(first)[0]
    middle = conversation.partition(answer)[2].partition(second)[0]
    frame += renderer.lead
    again = "".join((behind, system, between, first, frame, answer, middle, second, frame))
    # Neither can be written in a template of Go, or in a Modelfile.
    pieces = (behind, between, bare, frame, middle)
    literal = not any("{{" in piece or '"""' in piece for piece in pieces)
    if not literal or again != conversation + renderer.lead:
        return None
    # Ollama puts the first token in front by itself.
    behind = behind.removeprefix(bos)
    bare = bare.removeprefix(bos)
    system_part = f"{{{{ if .System }}}}{behind}{{{{ .System }}}}{between}{{{{ else }}}}{bare}{{{{ end }}}}"
    user = f"{{{{ .Content }}}}{frame}"
    assistant = f"{{{{ .Content }}}}{middle}"
    turns = f'{{{{ if eq .Role "user" }}}}{user}{{{{ else if eq .Role "assistant" }}}}{assistant}{{{{ end }}}}'
    return f"{system_part}{{{{ range .Messages }}}}{turns}{{{{ end }}}}"
