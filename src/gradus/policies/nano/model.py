"""The nano model: a small transformer and a word-level tokenizer, made from an environment's own words.

Both are saved as an ordinary Hugging Face folder, which ``AutoModelForCausalLM`` and ``AutoTokenizer`` load. The model has
the layers that Qwen2 (arXiv 2407.10671) and Llama (arXiv 2302.13971) share: rotary positions, RMSNorm, SwiGLU, tied
embeddings here, random weights; it is trained from nothing. It is saved as a Llama, because ``AutoTokenizer`` of
transformers 5 loads Qwen2's own byte-pair tokenizer for every folder that says ``qwen2``, whatever tokenizer lies there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gradus.core import ConfigError, StorageError, Vocabulary, child_seed
from gradus.core.files import replaceable, write_folder
from gradus.policies.one_at_a_time import quiet_transformers, torch_seeded

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerFast

# Three of them stand at each turn: one before the observation, one before the answer, one behind it.
PAD = "<|pad|>"
SYSTEM = "<|system|>"
OBSERVATION = "<|observation|>"
ACTION = "<|action|>"
END = "<|end|>"
FRAME_TOKENS = (PAD, SYSTEM, OBSERVATION, ACTION, END)

NANO_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'system' -%}{{ '<|system|>' + message['content'] }}"
    "{%- elif message['role'] == 'user' -%}{{ '<|observation|>' + message['content'] }}"
    "{%- elif message['role'] == 'assistant' -%}{{ '<|action|>' + message['content'] + '<|end|>' }}"
    "{%- else -%}{{ raise_exception('unknown role ' + message['role']) }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|action|>' }}{%- endif -%}"
)

# Of mimetic_init.
_SLOW = 0.05  # radians a token: of rotary pairs that match words
_MATCH = 3.0  # attention logit of two equal words
_FETCHED = 0.1  # share of a word, in a head's subspace, that the head adds where it looks

# Of look_back.
_LOOKING_PAIRS = 2  # the fastest, which tell neighbors apart

# Of number_init: what a number's embedding is made of, by standard deviation, and the random waves over a kind's range.
_KIND = 0.6
_LINE = 0.87
_WAVES = 0.5
_WORD = 0.3  # of its own
_WAVE_COUNT = 16
_WAVE_SPREAD = 4.0  # how fast they are, in radians a half of the range
_FEWEST_NUMBERS = 3  # of one kind: two would be opposites

SPACE = "▁"  # stands for the space that is implied before a word

_NUMBER = re.compile(rf"{SPACE}([A-Za-z_]*)([+-]?)(\d{{1,15}}(?:\.\d{{1,15}})?)")  # such as V0.40, r+1.2 or 7


class NanoConfig(BaseModel):
    """Shape of the nano model.

    A model that must learn to copy learns it in about half the time with ``rope_theta`` 100, ``position_bias`` 0.5 and
    ``embedding_std`` 0.1; and in little more than half of that with ``mimetic_init`` and the ordinary ``rope_theta``. One that reads
    many numbers, each a word, learns from them in about seven tenths of the steps with ``number_init``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    hidden_size: int = Field(default=128, ge=8, le=65_536)
    """Width of the model."""
    layers: int = Field(default=4, ge=1, le=1000)
    """Blocks."""
    heads: int = Field(default=4, ge=1, le=4096)
    """Attention heads."""
    kv_heads: int = Field(default=1, ge=1)
    """Heads of keys and values, shared by the attention heads (arXiv 1911.02150): decoding waits for the cache to be read."""
    intermediate_size: int = Field(default=384, ge=8, le=262_144)
    """Width inside the MLP."""
    context: int = Field(default=4096, ge=16, le=16_777_216)
    """Longest sequence, in tokens."""
    rope_theta: float = Field(default=10_000.0, gt=1)
    """Base of the rotary positions; a small one tells near places apart more sharply."""
    position_bias: float = Field(default=0.0, ge=0)
    """Standard deviation of a bias of queries and keys, 0 for none: heads that look at places are there from the first step."""
    embedding_std: float = Field(default=0.02, gt=0)
    """Spread of the embeddings; small ones are soon drowned by what the layers add."""
    mimetic_init: bool = False
    """Heads look for words like their own and fetch words as they are, from the first step (arXiv 2305.09828)."""

    look_back: float = Field(default=0.0, ge=0, le=100)
    """Attention logit by which head h looks h + 1 tokens back from the first step, in the first half of the blocks; 0 for none."""
    number_init: bool = False
    """Words of one kind that hold numbers, such as V0.40 and V0.45, begin with embeddings as near as the numbers."""

    @model_validator(mode="after")
    def _shapes_fit(self) -> NanoConfig:
        if self.hidden_size % self.heads or (self.hidden_size // self.heads) % 2:
            raise ValueError(
                f"hidden_size must be an even multiple of heads, got {self.hidden_size} and {self.heads}; "
                f"try hidden_size = {self.heads * 32}"
            )
        if self.heads % self.kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads, got {self.heads} and {self.kv_heads}")
        return self


def build_tokenizer(vocabulary: Vocabulary) -> PreTrainedTokenizerFast:
    """A tokenizer with one token for each word of ``vocabulary``, its pieces, all bytes, and five frame tokens.

    Unknown words are spelled by the fewest pieces, and bytes where no piece fits. ``decode(encode(text)) == text`` for
    every text without the character U+2581.

    Raises:
        ConfigError: a word or a piece is empty, holds white space, or is a frame token.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.Unigram(_scores(vocabulary), unk_id=0, byte_fallback=True))
    # A space is implied at the start of the text and of every line that has any character, so that a word is the same token there
    # as inside a line.
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(" ", SPACE),
            normalizers.Replace(Regex(r"\n(?=[^\n])"), "\n" + SPACE),
            normalizers.Prepend(SPACE),
        ]
    )
    words = Regex(rf"\n|{SPACE}?[^{SPACE}\n]+|{SPACE}")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(words, "isolated")
    # The decoder takes back exactly what was put in.
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Replace("\n" + SPACE, "\n"),
            decoders.Replace(SPACE, " "),
            decoders.Strip(" ", 1, 0),
        ]
    )
    # The frame tokens stay out of the model's own vocabulary, so that a text that spells them out gets letters for it.
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in FRAME_TOKENS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False
    )
    fast.chat_template = NANO_TEMPLATE
    return fast


def _scores(vocabulary: Vocabulary) -> list[tuple[str, float]]:
    """Unigram scores: the segmentation with the highest sum wins, so whole words beat pieces, and pieces beat bytes."""
    for word in (*vocabulary.words, *vocabulary.pieces):
        spaced = any(letter.isspace() or letter == SPACE for letter in word)
        if not word or spaced or word in FRAME_TOKENS:
            raise ConfigError(f"a nano vocabulary needs words without spaces, other than frame tokens, got {word!r}")
    unknown = [(PAD, -1000.0)]  # never written: bytes spell what no word or piece fits
    words = [(SPACE + word, -1.0) for word in dict.fromkeys(vocabulary.words)]
    unique_pieces = dict.fromkeys((*vocabulary.pieces, SPACE, "\n"))
    pieces = [(piece, -10.0) for piece in unique_pieces]
    raw = [(f"<0x{byte:02X}>", -100.0) for byte in range(256)]
    return [*unknown, *words, *pieces, *raw]


def make_nano(folder: str | Path, vocabulary: Vocabulary, config: NanoConfig | None = None, *, seed: int = 0) -> Path:
    """Write a nano model with fresh weights to ``folder`` and return it. The same arguments write the same weights.

    Raises:
        StorageError: ``folder`` is there already and not empty, or cannot be written.
        ConfigError: the vocabulary cannot be used, or ``folder`` is the one that is worked in.
    """
    target = replaceable(Path(folder))
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StorageError(
            f"a nano model needs a new or empty folder, but {target} has something in it; remove it first"
        )
    # The vocabulary is checked before any weight is drawn.
    tokenizer = build_tokenizer(vocabulary)
    model = _fresh_model(config or NanoConfig(), tokenizer, seed)

    def fill(aside: Path) -> None:
        with quiet_transformers():
            model.save_pretrained(aside)
            tokenizer.save_pretrained(aside)

    write_folder(target, fill)
    return target


def _fresh_model(config: NanoConfig, tokenizer: PreTrainedTokenizerFast, seed: int) -> Any:
    """A model with random weights out of ``seed``; the caller's random state stays as it was."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.context,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        attention_bias=config.position_bias > 0 or config.look_back > 0,
        tie_word_embeddings=True,
        attention_dropout=0.0,
        eos_token_id=tokenizer.backend_tokenizer.token_to_id(END),
        pad_token_id=tokenizer.backend_tokenizer.token_to_id(PAD),
        bos_token_id=None,
    )
    with torch_seeded(child_seed(seed, "nano")), torch.no_grad():
        model: Any = LlamaForCausalLM(shape)
        embeddings = model.model.embed_tokens.weight
        layers = model.model.layers
        # transformers has drawn them with its own spread: the same draws, scaled.
        embeddings.mul_(config.embedding_std / shape.initializer_range)
        if config.number_init:
            _init_numbers(embeddings, tokenizer.get_vocab(), config.embedding_std)
        if config.position_bias:
            for layer in layers:
                layer.self_attn.q_proj.bias.normal_(std=config.position_bias)
                layer.self_attn.k_proj.bias.normal_(std=config.position_bias)
        if config.mimetic_init:
            _init_mimetically(layers, config)
        if config.look_back:
            for layer in layers[: max(1, config.layers // 2)]:
                _init_looking_back(layer.self_attn, config)
        return model


def _init_numbers(embeddings: Tensor, vocabulary: Mapping[str, int], std: float) -> None:
    """Embeddings of words that hold numbers: what is common to their kind, a line and waves along the kind's range, and something of
    their own. Line and waves have the same directions in all kinds, so that a layer which reads the size of one number reads all.

    A kind is a word's letters and whether it has a sign; its embeddings keep the standard deviation ``std``. The waves are random
    Fourier features (Rahimi and Recht, 2007): their products fall with the distance of the numbers.
    """
    import torch

    kinds: dict[tuple[str, bool], dict[int, float]] = {}
    for word, place in sorted(vocabulary.items()):
        match = _NUMBER.fullmatch(word)
        if match:
            letters, sign, digits = match.groups()
            members = kinds.setdefault((letters, bool(sign)), {})
            members[place] = float(sign + digits)
    width = embeddings.shape[1]
    line = torch.randn(width)
    rates = torch.randn(_WAVE_COUNT) * _WAVE_SPREAD
    directions = torch.randn(2 * _WAVE_COUNT, width) / _WAVE_COUNT**0.5
    for members in kinds.values():
        if len(members) < _FEWEST_NUMBERS:
            continue
        numbers = torch.tensor(list(members.values()))
        low = numbers.min()
        high = numbers.max()
        extent = (high - low).clamp(min=1e-9)
        along = ((2 * numbers - low - high) / extent).unsqueeze(1)  # from -1 to 1
        phases = along * rates
        waves = torch.cat([phases.sin(), phases.cos()], dim=1)
        kind = torch.randn(width)
        words = torch.randn(len(members), width)
        vectors = _KIND * kind + _LINE * along * line + _WORD * words
        # One wave after another: a matrix product's last bit depends on the number of threads.
        for wave, direction in zip(waves.T, directions, strict=True):
            vectors += _WAVES * wave.unsqueeze(1) * direction
        spread = float(vectors.double().square().mean().sqrt())
        embeddings[list(members)] = vectors * (std / spread)


def _init_looking_back(attention: Any, config: NanoConfig) -> None:
    """The biases of the fastest rotary pairs agree at one distance, another for each head: what stands just before a word says what
    the word is, and a head that looks there need not be found. One token away the logit is a third less."""
    size = config.hidden_size // config.heads
    pairs = min(_LOOKING_PAIRS, size // 2)
    length = (config.look_back * size**0.5 / pairs) ** 0.5
    keys = attention.k_proj.bias.view(-1, 2, size // 2)
    queries = attention.q_proj.bias.view(-1, 2, size // 2)
    for pair in range(pairs):
        radians = config.rope_theta ** (-2 * pair / size)
        keys[:, 0, pair] = length
        keys[:, 1, pair] = 0.0
        for head, query in enumerate(queries):
            angle = -(head + 1) * radians
            query[0, pair] = length * math.cos(angle)
            query[1, pair] = length * math.sin(angle)


def _init_mimetically(layers: Any, config: NanoConfig) -> None:
    """Queries equal keys in the slow rotary pairs, which hardly tell places apart; outputs are the transpose of values.

    So a query meets the keys of words like its own, and what a head fetches goes into the residual stream as it was, in a
    subspace of the head's size. The biases stay in the fast pairs, which tell places apart. After Trockman and Kolter, arXiv 2305.09828,
    who set products of the same weights close to a multiple of the identity.
    """
    import torch

    size = config.hidden_size // config.heads
    width = config.hidden_size
    shared = config.heads // config.kv_heads
    half = size // 2
    rates = config.rope_theta ** -(torch.arange(half) / half)
    slow = (rates < _SLOW).repeat(2)  # a pair is a place in a head's first half and the same in its second
    count = int(slow.sum())
    for attention in (layer.self_attn for layer in layers):
        match = torch.zeros(config.kv_heads, size, width)
        if count:
            std = (_MATCH * size**0.5 / (count * width)) ** 0.5
            match[:, slow] = torch.randn(config.kv_heads, count, width) * std
        _set_rows(attention.q_proj, match.repeat_interleave(shared, 0), slow)
        _set_rows(attention.k_proj, match, slow)
        values = attention.v_proj.weight.view(config.kv_heads, size, width)
        values = values.repeat_interleave(shared, 0).flatten(0, 1)
        factor = _FETCHED / (width * values.var())
        attention.o_proj.weight.copy_(values.T * factor)


def _set_rows(projection: Any, heads: Tensor, slow: Tensor) -> None:
    """Sets the slow rows of a projection to those of ``heads`` (heads, size, width), and their biases to 0."""
    rows = slow.repeat(len(heads))
    projection.weight[rows] = heads.flatten(0, 1)[rows]
    if projection.bias is not None:
        projection.bias[rows] = 0.0
