"""From a microbatch to the log-probs of its sampled tokens, with any causal transformer of Hugging Face's.

The tree of shared prefixes is computed by a registered attention function (``tree_support``); everything else of the
model sees one long row with position ids. Models that bring their own attention take plain padded rows instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from gradus.algorithms import entropy as token_entropy
from gradus.core.frozen_record import frozen_record
from gradus.policies.local.cpu.float32_linear import FastLinear
from gradus.policies.local.llama_forward import causal_model, decode_hidden, has_lean_decoder
from gradus.policies.local.sampling import SamplingConfig, chosen_logprobs, sampling_logprobs
from gradus.training.data.microbatches import MicroBatch, Tree
from gradus.training.engine.tree_attention import attend
from gradus.training.engine.tree_support import TREE, TREE_BF16
from gradus.training.engine.vocabulary_loss import MAX_LOGITS, TokenFigures, chunked_scores, in_chunks

PLAIN = SamplingConfig()
Finish = Callable[[Tensor], Tensor]
Compare = Callable[[Tensor, Tensor | None, slice], Tensor]


@frozen_record
class TokenScores:
    """``logprobs`` (A,) of the sampled tokens under the sampling distribution, nats, with gradient.

    ``entropy`` (A,) of that distribution, nats, with gradient if ``differentiate`` was set. ``greedy`` (A,) bool, true where the token
    is the most likely one. ``read`` (R,): log-probs of what the environment showed, under the model itself, with gradient. The last three
    are None unless the caller wants them.
    """

    logprobs: Tensor
    entropy: Tensor | None
    greedy: Tensor | None
    read: Tensor | None


class _FigureChoice(NamedTuple):
    """The figures that are computed beside log-probs."""

    entropy: bool = False
    differentiate: bool = False
    greedy: bool = False

    def is_plain(self, sampling: SamplingConfig, legal: Tensor | None) -> bool:
        """Says whether a softmax is all that must be computed."""
        cut = sampling.greedy or sampling.top_k or sampling.top_p < 1.0
        return legal is None and not (cut or self.differentiate)


def score_tokens(
    model: nn.Module,
    batch: MicroBatch,
    sampling: SamplingConfig,
    *,
    entropy: bool = False,
    differentiate: bool = False,
    greedy: bool = False,
    read: bool = False,
) -> TokenScores:
    """Log-probs of the sampled tokens of a microbatch. Call inside ``tree_attention(model)``.

    Only positions that predict a sampled token reach the language-model head. The distribution is made by the very function
    that the sampler draws with (temperature, top-k, top-p and grammar).
    """
    causal, labels = causal_model(model), batch.labels
    choice = _FigureChoice(entropy, differentiate, greedy)
    places = torch.cat([labels.source, labels.read_source]) if read else labels.source
    # Members that share a prefix have their first token predicted from one place: the head takes it once.
    source, order = _unique(places)
    many = len(source) * vocabulary_size(model) > MAX_LOGITS
    # In a processor's cache passes over a softmax cost little.
    tiled = causal.device.type == "cpu" and choice.is_plain(sampling, labels.legal)
    finish = _finish_of(causal) if many or tiled else None
    if finish is not None and (many or _takes_tiles(causal, finish)):
        states = _hidden(causal, batch, source)
        score = partial(_score_hidden, causal, finish)
    else:
        states = _logits(causal, batch, source)
        score = _score_logits
    if not torch.equal(source, places):  # repeated, or in another order: unique sorts
        states = states.index_select(0, order)
    # No slice of all states: in the backward pass it would be a copy of them.
    sampled = states[: len(labels.source)] if read else states
    logprobs, entropies, best = score(sampled, labels.target, labels.legal, sampling, choice)
    shown = None
    if read:  # nobody drew these: no temperature, no grammar
        shown = score(states[len(sampled) :], labels.read_target, None, PLAIN, _FigureChoice())[0]
    return TokenScores(
        logprobs=logprobs,
        entropy=entropies if entropy else None,
        greedy=best if greedy else None,
        read=shown,
    )


def compare_tokens(
    model: nn.Module,
    batch: MicroBatch,
    compare: Compare,
    *,
    teacher: nn.Module | None = None,
    read: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """``compare(logits, teacher's logits, rows)`` of the sampled tokens, (A, ...), and log-probs (R,) of what the environment showed.

    Logits are made a chunk of tokens at a time, and again in the backward pass: memory grows with tokens times hidden size. The gradient
    goes into ``model`` alone. Call inside ``tree_attention`` of both models.
    """
    labels = batch.labels
    words = vocabulary_size(model)
    places = torch.cat([labels.source, labels.read_source]) if read else labels.source
    states, head = _states_and_head(model, batch, places)
    sampled, shown = states[: len(labels.source)], states[len(labels.source) :]
    teacher_states, teacher_head = sampled, _same
    if teacher is not None:
        with torch.no_grad():
            teacher_states, teacher_head = _states_and_head(teacher, batch, labels.source)

    def compared(part: Tensor, start: int) -> tuple[Tensor]:
        rows = slice(start, start + len(part))
        taught = None
        if teacher is not None:
            with torch.no_grad():
                taught = teacher_head(teacher_states[rows])
        return (compare(head(part), taught, rows),)

    def read_logprobs(part: Tensor, start: int) -> tuple[Tensor]:
        return (chosen_logprobs(head(part), labels.read_target[start : start + len(part)], PLAIN),)

    (figures,) = in_chunks(compared, sampled, words)
    assert figures is not None
    return figures, in_chunks(read_logprobs, shown, words)[0] if read else None


def _unique(places: Tensor) -> tuple[Tensor, Tensor]:
    """The places in ascending order, each once, and where each of ``places`` stands among them."""
    return cast(tuple[Tensor, Tensor], torch.unique(places, return_inverse=True))


def _states_and_head(model: nn.Module, batch: MicroBatch, places: Tensor) -> tuple[Tensor, Finish]:
    """Returns what a model's head reads at ``places``, and the head; the logits if it cannot be taken apart."""
    causal: Any = causal_model(model)
    source, order = _unique(places)
    finish = _finish_of(causal)
    if finish is None:
        return _logits(causal, batch, source).index_select(0, order), _same
    head = causal.get_output_embeddings()
    return _hidden(causal, batch, source).index_select(0, order), lambda hidden: finish(head(hidden))


def _score_hidden(
    causal: Any,
    finish: Finish,
    hidden: Tensor,
    target: Tensor,
    legal: Tensor | None,
    sampling: SamplingConfig,
    choice: _FigureChoice,
) -> TokenFigures:
    """Figures of tokens from the hidden states (A, d) that predict them, in chunks."""
    head = causal.get_output_embeddings()
    if choice.is_plain(sampling, legal) and _takes_tiles(causal, finish):
        return chunked_scores(head, hidden, target, sampling)

    def figures(part: Tensor, start: int) -> TokenFigures:
        rows = slice(start, start + len(part))
        return _score_logits(finish(head(part)), target[rows], None if legal is None else legal[rows], sampling, choice)

    return cast(TokenFigures, in_chunks(figures, hidden, vocabulary_size(causal)))


def _takes_tiles(causal: Any, finish: Finish) -> bool:
    """Says whether logits are the head's product and nothing else, so that they can be made a tile at a time."""
    return finish is _same and type(causal.get_output_embeddings()) in (nn.Linear, FastLinear)


def _score_logits(
    logits: Tensor,
    target: Tensor,
    legal: Tensor | None,
    sampling: SamplingConfig,
    choice: _FigureChoice,
) -> TokenFigures:
    """Log-probs, entropy and greedy of tokens from their logits (A, V)."""
    best = _is_greedy(logits, target, legal) if choice.greedy else None
    if not choice.entropy:
        return chosen_logprobs(logits, target, sampling, legal), None, best
    logprobs = sampling_logprobs(logits, sampling, legal, drawn_ids=target)
    entropy = token_entropy(logprobs if choice.differentiate else logprobs.detach())
    return logprobs.gather(1, target[:, None])[:, 0], entropy, best


@torch.no_grad()
def _is_greedy(logits: Tensor, target: Tensor, legal: Tensor | None) -> Tensor:
    scores = logits if legal is None else logits.masked_fill(~legal, float("-inf"))
    return scores.argmax(dim=1) == target


def _attends_by_tree(causal: Any) -> bool:
    return causal.config._attn_implementation in (TREE, TREE_BF16)


def _logits(causal: Any, batch: MicroBatch, source: Tensor) -> Tensor:
    """Logits (S, V) at places of a microbatch."""
    if not _attends_by_tree(causal):
        return _row_logits(causal, batch, source)
    if has_lean_decoder(causal):
        return causal.lm_head(_hidden(causal, batch, source))
    out = causal(
        input_ids=batch.input_ids,
        position_ids=batch.positions,
        use_cache=False,
        logits_to_keep=source,
        tree=batch.tree,
    )
    return out.logits[0]


def _hidden(causal: Any, batch: MicroBatch, source: Tensor) -> Tensor:
    """Hidden states (S, d) that the language-model head reads, at places of a microbatch."""
    if not _attends_by_tree(causal):
        ids = _row_ids(batch)
        states = causal.base_model(input_ids=ids, use_cache=False).last_hidden_state
        return states[source // ids.shape[1], source % ids.shape[1]]
    if has_lean_decoder(causal):
        attend_tree = partial(_lean_attend, batch.tree, causal.config._attn_implementation == TREE_BF16)
        return decode_hidden(causal, batch.input_ids, batch.positions, attend_tree, source)
    out = causal.base_model(
        input_ids=batch.input_ids,
        position_ids=batch.positions,
        use_cache=False,
        tree=batch.tree,
    )
    return out.last_hidden_state[0].index_select(0, source)


def _row_logits(causal: Any, batch: MicroBatch, source: Tensor) -> Tensor:
    """Logits (S, V) where a model brings its own attention: rows of a microbatch cut with ``share=False``, right-padded.

    Padding stands behind every real token, so causal attention alone keeps it out.
    """
    ids = _row_ids(batch)
    width = ids.shape[1]
    if "logits_to_keep" not in inspect.signature(causal.forward).parameters:
        return causal(input_ids=ids, use_cache=False).logits.flatten(0, 1)[source]
    columns, place = _unique(source % width)
    logits = causal(input_ids=ids, use_cache=False, logits_to_keep=columns).logits
    return logits[source // width, place]


def _row_ids(batch: MicroBatch) -> Tensor:
    """Ids (B, Ls) of a microbatch without shared prefixes."""
    if batch.tree.prefixes[0]:
        raise ValueError("this model's attention cannot share prefixes; cut microbatches with share=False")
    return batch.input_ids.view(batch.tree.suffixes)


def _same(logits: Tensor) -> Tensor:
    return logits


_FINISHES: WeakKeyDictionary[nn.Module, Finish | None] = WeakKeyDictionary()
_CAP, _FACTORS = "final_logit_softcapping", ("logit_scale", "logits_scaling", "lm_head_multiplier")


def _finishes(causal: Any) -> Iterator[Finish]:
    """Returns what a model may do with its head's product: nothing, a cap (Gemma), a factor (Cohere, Granite, Falcon-H1)."""
    config = causal.config.get_text_config(decoder=True)
    yield _same
    cap = getattr(config, _CAP, None)
    if cap:
        yield lambda logits: torch.tanh(logits / cap) * cap
    for name in _FACTORS:
        factor = getattr(config, name, None)
        if factor:
            yield lambda logits, factor=factor: logits * factor
            yield lambda logits, factor=factor: logits / factor


def finishes_logits(config: Any) -> bool:
    """Says whether a model of this config (of its text) makes more of its head's product than logits, so that no tiles of it are taken."""
    return any(getattr(config, name, None) not in (None, 1.0) for name in (_CAP, *_FACTORS))


def _finish_of(causal: Any) -> Finish | None:
    """Returns what makes the model's logits of its head's product with its last hidden states; None if that is not known.

    Tried once on three tokens. Not for a model that is sharded: its weights are gathered by the forward of the whole.
    """
    if any(hasattr(parameter, "full_tensor") for parameter in causal.parameters()):
        return None
    if causal not in _FINISHES:
        attention = causal.config._attn_implementation
        if _attends_by_tree(causal):  # a plain pass has no tree to attend by
            causal.config._attn_implementation = "sdpa"
        try:
            _FINISHES[causal] = _try_finishes(causal)
        finally:
            causal.config._attn_implementation = attention
    return _FINISHES[causal]


@torch.no_grad()
def _try_finishes(causal: Any) -> Finish | None:
    ids = torch.tensor([[1, 2, 3]], device=causal.device)
    hidden = causal.base_model(input_ids=ids, use_cache=False).last_hidden_state
    logits = causal(input_ids=ids, use_cache=False).logits
    product = causal.get_output_embeddings()(hidden)
    equal = (finish for finish in _finishes(causal) if torch.equal(finish(product), logits))
    return next(equal, None)


def vocabulary_size(model: nn.Module) -> int:
    """Width of the logits."""
    return int(causal_model(model).config.get_text_config().vocab_size)


def disable_dropout(model: nn.Module) -> None:
    """Makes train mode and eval mode the same function, so that a ratio before the first update is 1.

    Dropout would make the log-probs of the trainer differ from the sampler's for no reason; RL has noise enough.
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        # Attention takes its rate from the layer, which is no module of its own.
        for name in ("attention_dropout", "dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def _lean_attend(
    tree: Tree,
    bf16_backward: bool,
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float,
    source: Tensor | None,
) -> Tensor:
    """Attention as the lean decoder asks for it; a tree is the same in all layers."""
    return attend(query, key, value, scaling, tree=tree, source=source, bf16_backward=bf16_backward)
