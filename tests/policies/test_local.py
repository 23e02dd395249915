"""The local sampler against plain forwards: what it says it drew is what the model gives, whatever else is in the batch."""

import json
import random
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import WORDS, play, recomputed, sequences, starts
from tiny_qwen2 import make_tiny_qwen2

from gradus.core import Action, Asked, ConfigError, Observation, PolicyError, Request, StopReason
from gradus.policies.local.grammar import WordGrammar
from gradus.policies.local.kv_cache import RaggedCache
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig

Load = Callable[[str], LoadedModel]
KINDS = ("qwen2", "llama", "gpt2", "mistral", "gemma3")
GRAMMAR = [WORDS[12:20], WORDS[20:23], ("w39", "w30", "aw", "ab", "abc")]
SAMPLINGS = [
    SamplingConfig(temperature=t, max_new_tokens=8, **more)
    for t in (0.5, 1.0, 1.5)
    for more in ({}, {"top_k": 9}, {"top_p": 0.7}, {"grammar": True}, {"top_k": 20, "top_p": 0.8, "grammar": True})
]


def gap(loaded: LoadedModel, actions: list[list[Action]], sampling: SamplingConfig) -> float:
    worst = 0.0
    for row in actions:
        for turns in sequences(row):
            said = torch.tensor([x for action in turns for x in action.tokens.logprobs])
            worst = max(worst, float((recomputed(loaded.model, turns, sampling) - said).abs().max()))
    return worst


@pytest.mark.parametrize("kind", KINDS)
def test_every_logprob_equals_a_plain_forward_of_the_row_alone(loaded: Load, kind: str):
    sampling = SamplingConfig(max_new_tokens=6)
    model = loaded(kind)
    actions = play(LocalPolicy(model, sampling), rows=10, turns=4)
    assert gap(model, actions, sampling) < 2e-5
    lengths = {len(a.tokens.action_ids) for row in actions for a in row}
    assert len(lengths) > 2, "answers must differ in length, or this test shows little"


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda s: s.model_dump_json(exclude_defaults=True))
def test_sampler_and_recomputation_agree_under_every_mask(loaded: Load, sampling: SamplingConfig):
    model = loaded("qwen2")
    policy = LocalPolicy(model, sampling, grammar=GRAMMAR)
    actions = play(policy, rows=6, turns=2)
    assert gap(model, actions, sampling) < 2e-5
    if sampling.grammar:
        for action in (a for row in actions for a in row):
            words = action.text.split()
            assert len(words) == 3
            assert all(word in place for word, place in zip(words, GRAMMAR, strict=True))
            assert all(t in legal for t, legal in zip(action.tokens.action_ids, action.tokens.legal, strict=True))


@pytest.mark.parametrize("kind", ["words and bytes", "bytes"])
def test_a_constrained_answer_fits_its_schema_and_both_sides_renormalize(loaded: Load, kind: str, tmp_path: Path):
    """Of random weights, with both kinds of tokenizers; a call that asks for no form, or offers tools, is free."""
    pytest.importorskip("outlines_core", reason="needs the extra constrain")
    model = load_model(make_tiny_qwen2(tmp_path / "tiny"), tool_calls="json") if kind == "bytes" else loaded("qwen2")
    fields = {"look": {"type": "boolean"}, "color": {"enum": ["red", "blau ä"]}, "n": {"type": "integer"}}
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    tool = {"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object"}}}
    calls = [*[Asked(schema=schema)] * 6, Asked(), Asked(schema={})]
    if kind == "bytes":
        calls.append(Asked(schema=schema, tools=(tool,)))
    sampling = SamplingConfig(max_new_tokens=64, constrain=True, temperature=0.9)
    session = LocalPolicy(model, sampling).start(starts(len(calls), group_size=1))
    seen = [Observation(text=f"w1 w{row}", asked=asked) for row, asked in enumerate(calls)]
    actions = session.act([Request(row=row, observation=each) for row, each in enumerate(seen)])
    assert [action.tokens.legal is not None for action in actions] == [True] * 6 + [False] * (len(calls) - 6)
    ended = [action for action in actions[:6] if action.stop is None]
    assert len(ended) > 2
    for action in ended:
        answer = json.loads(action.text)
        assert (type(answer["look"]), type(answer["n"])) == (bool, int)
        assert answer["color"] in ("red", "blau ä")
    assert gap(model, [[action] for action in actions], sampling) < 2e-5


def test_a_schema_that_no_grammar_can_follow_fails_its_answer_alone(loaded: Load):
    pytest.importorskip("outlines_core", reason="needs the extra constrain")
    session = LocalPolicy(loaded("qwen2"), SamplingConfig(constrain=True)).start(starts(2))
    odd = Asked(schema={"type": "object", "properties": {"n": {"$ref": "#/$defs/none"}}})
    seen = [Observation(text="w1", asked=asked) for asked in (odd, Asked())]
    failed, other = session.act([Request(row=row, observation=each) for row, each in enumerate(seen)])
    assert "cannot be constrained" in str(failed.failure)
    assert other.failure is None


@pytest.mark.parametrize("batch_size", [3, None])
def test_rows_that_read_the_same_behind_different_pasts_answer_each_for_itself(loaded: Load, batch_size: int | None):
    sampling = SamplingConfig(max_new_tokens=1)
    model = loaded("llama")
    session = LocalPolicy(model, sampling, batch_size=batch_size).start(starts(20, group_size=1))
    first = session.act([Request(row=row, observation=Observation(text=WORDS[row])) for row in range(20)])
    again = session.act([Request(row=row, observation=Observation(text="w39 w38")) for row in range(20)])
    read = [(said.tokens.action_ids, told.tokens.context_ids) for said, told in zip(first, again, strict=True)]
    assert len(set(read)) < 20, "some rows must read the same, or this test shows nothing"
    assert gap(model, [list(pair) for pair in zip(first, again, strict=True)], sampling) < 2e-5


@pytest.mark.parametrize("batch_size", [1, 3, None])
def test_a_row_does_not_depend_on_its_batch(loaded: Load, batch_size: int | None):
    sampling = SamplingConfig(max_new_tokens=5)
    whole = play(LocalPolicy(loaded("llama"), sampling), rows=7, turns=3)
    cut = play(LocalPolicy(loaded("llama"), sampling, batch_size=batch_size), rows=7, turns=3)
    for a, b in zip(chain(*whole), chain(*cut), strict=True):
        assert a.tokens.action_ids == b.tokens.action_ids
        assert a.usage == b.usage, "whole prompts are counted, whatever is kept of them"
        assert a.tokens.logprobs == pytest.approx(b.tokens.logprobs, abs=2e-5)


def test_the_same_call_twice_gives_the_same_numbers(loaded: Load):
    policy = LocalPolicy(loaded("qwen2"), SamplingConfig(max_new_tokens=5))
    assert play(policy, rows=5, turns=3) == play(policy, rows=5, turns=3)


def test_stop_tokens_are_kept_and_cut_answers_say_so(loaded: Load):
    """Several ids end an answer, and the pad token is one of them: nothing may be lost or added."""
    model = loaded("qwen2")
    stops = model.renderer.stop_ids
    assert len(stops) > 5
    assert model.tokenizer.pad_token_id in stops
    actions = list(chain(*play(LocalPolicy(model, SamplingConfig(max_new_tokens=6)), rows=12, turns=4)))
    assert {action.stop for action in actions} == {None, StopReason.TOKEN_LIMIT}
    for action in actions:
        ids = action.tokens.action_ids
        assert not set(ids[:-1]) & stops
        assert len(ids) == len(action.tokens.logprobs) <= 6
        if action.stop is None:
            assert ids[-1] in stops
            assert action.text == model.tokenizer.decode(ids[:-1])
        else:
            assert len(ids) == 6
            assert ids[-1] not in stops


def test_context_and_answers_chain_to_what_the_model_read(loaded: Load):
    """Each turn's context is the renderer's frame; behind a cut answer it begins with the stop token that is missing."""
    model = loaded("qwen2")
    session = LocalPolicy(model, SamplingConfig(max_new_tokens=3)).start(starts(8))
    texts = ["w20 w21", "w22", "w23 w24"]
    cut = [False] * 8
    for turn, text in enumerate(texts):
        answers = session.act([Request(row=r, observation=Observation(text=text)) for r in range(8)])
        for row, action in enumerate(answers):
            tail = (model.renderer.stop_id,) if cut[row] else ()
            expected = model.renderer.following(text) if turn else model.renderer.first("w1 w2 w3 w4 w5 w6", text)
            assert action.tokens.context_ids == (*tail, *expected)
            assert action.tokens.restart == (turn == 0)
            assert action.usage.completion_tokens == len(action.tokens.action_ids)
            cut[row] = action.stop is StopReason.TOKEN_LIMIT


def test_greedy_takes_the_likeliest_token(loaded: Load):
    model = loaded("llama")
    session = LocalPolicy(model, SamplingConfig(max_new_tokens=4, greedy=True)).start(starts(2, group_size=1))
    for action in session.act([Request(row=r, observation=Observation(text=WORDS[r])) for r in range(2)]):
        ids = list(action.tokens.context_ids)
        for token in action.tokens.action_ids:
            with torch.no_grad():
                assert int(model.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()) == token
            ids.append(token)
        assert action.tokens.logprobs == (0.0,) * len(action.tokens.logprobs)


def forwards(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(rows, new tokens) of each forward from now on, as the first layer writes them into the cache."""
    sizes: list[tuple[int, int]] = []
    update = RaggedCache.update

    def counted(self: RaggedCache, key: torch.Tensor, value: torch.Tensor, layer: int, *rest: Any):
        if layer == 0:
            sizes.append((key.shape[0], key.shape[2]))
        return update(self, key, value, layer, *rest)

    monkeypatch.setattr(RaggedCache, "update", counted)
    return sizes


def test_one_prefill_and_one_forward_per_further_token(loaded: Load, monkeypatch: pytest.MonkeyPatch):
    """A group's prompt is read once; a later turn is one forward, and each further token one more."""
    model = loaded("qwen2")
    sampling = SamplingConfig(max_new_tokens=8, grammar=True)
    policy = LocalPolicy(model, sampling, grammar=[WORDS[12:20]] * 3)
    sizes = forwards(monkeypatch)
    session = policy.start(starts(8))
    texts = ["w20 w21 w22", "w23 w24 w25"]
    session.act([Request(row=r, observation=Observation(text=texts[r // 4])) for r in range(8)])
    shared = 1 + 6 + 1  # frame, six words of system prompt, frame; then two prompts differ
    assert sizes == [(1, shared), (2, 4), (8, 1), (8, 1), (8, 1)]
    sizes.clear()
    session.act([Request(row=r, observation=Observation(text=WORDS[r])) for r in range(8)])
    assert sizes == [(8, 1 + 3), (8, 1), (8, 1), (8, 1)]  # the last answer's stop token is read with the new frame


def test_an_overlong_prompt_fails_its_row_and_names_both_lengths(loaded: Load):
    model = loaded("qwen2")
    session = LocalPolicy(model, SamplingConfig(max_new_tokens=4)).start(starts(3, group_size=1))
    texts = ["w20", " ".join(["w21"] * 600), "w22"]
    good, bad, also = session.act([Request(row=r, observation=Observation(text=t)) for r, t in enumerate(texts)])
    assert good.failure is None
    assert also.failure is None
    assert good.tokens
    assert bad.failure.type == "ContextLengthError"
    assert bad.failure.stage == "act"
    length = len(model.renderer.first("w1 w2 w3 w4 w5 w6", texts[1]))
    assert str(length) in bad.failure.message
    assert "512" in bad.failure.message


def test_weights_that_diverged_are_an_error_of_the_row_not_a_token(model_folder):
    model = load_model(model_folder("llama"))
    policy = LocalPolicy(model, SamplingConfig(max_new_tokens=3))
    with torch.no_grad():
        model.model.get_input_embeddings().weight[:] = float("nan")
    action = policy.start(starts(1)).act([Request(row=0, observation=Observation(text="w1"))])[0]
    assert action.failure.type == "PolicyError"
    assert "not finite" in action.failure.message


def test_sampling_leaves_the_model_as_it_was(loaded: Load):
    """No dropout while sampling, training mode back afterwards, and weights that can still be trained."""
    model = loaded("gpt2").model  # 0.1 dropout
    model.train()
    sampling = SamplingConfig(max_new_tokens=4)
    actions = play(LocalPolicy(loaded("gpt2"), sampling), rows=2, turns=2)
    assert model.training
    model.eval()
    assert gap(loaded("gpt2"), actions, sampling) < 2e-5
    model(input_ids=torch.tensor([[1, 2, 3]])).logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    model.zero_grad(set_to_none=True)


def test_growing_beyond_the_first_capacity_changes_nothing(loaded: Load):
    model = loaded("qwen2")
    sampling = SamplingConfig(max_new_tokens=3)
    session = LocalPolicy(model, sampling).start(starts(3))
    rng = random.Random(3)
    rows: list[list[Action]] = [[] for _ in range(3)]
    for _ in range(9):  # 9 turns of about 45 tokens: past 256
        text = " ".join(rng.choice(WORDS) for _ in range(40))
        for row, action in enumerate(
            session.act([Request(row=r, observation=Observation(text=text)) for r in range(3)])
        ):
            rows[row].append(action)
    assert gap(model, rows, sampling) < 2e-5


def test_word_grammar_follows_all_readings_of_overlapping_words():
    spelled = {"ab": (1, 2), " a": (1,), "a": (1,), " ab": (1, 2), "b": (2,), " b": (2,)}
    grammar = WordGrammar([["a", "ab"], ["b"]], lambda text: spelled[text], {9})
    state = grammar.begin()
    assert grammar.legal(state) == (1,)
    state = grammar.advance(state, 1)
    assert grammar.legal(state) == (2,)  # either the b of "ab", or the second word behind "a"
    state = grammar.advance(state, 2)
    assert grammar.legal(state) == (2, 9)
    assert grammar.legal(grammar.advance(state, 2)) == (9,)
    with pytest.raises(ConfigError, match="ends answers"):
        WordGrammar([["a"]], lambda text: spelled[text], {1})
    with pytest.raises(ConfigError, match="place 2"):
        WordGrammar([["a"], []], lambda text: (1,), {9})


@pytest.mark.parametrize("fits", [2, 0])
def test_out_of_memory_halves_the_rows_and_changes_no_token(
    loaded: Load, fits: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    sampling = SamplingConfig(max_new_tokens=5)
    whole = play(LocalPolicy(loaded("llama"), sampling), rows=6, turns=5)
    reserve = RaggedCache.reserve

    def scarce(cache: RaggedCache, width: int) -> None:
        if cache.rows > (fits if width > 60 else 6):  # it runs out in the middle of an episode
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        reserve(cache, width)

    monkeypatch.setattr(RaggedCache, "reserve", scarce)
    policy = LocalPolicy(loaded("llama"), sampling)
    if not fits:
        with pytest.raises(
            PolicyError, match=r"one row was sampled \(CUDA out of memory.*lower sampling.max_new_tokens"
        ):
            play(policy, rows=6, turns=5)
        return
    cut = play(policy, rows=6, turns=5)
    assert policy.batch_size == 1  # 6, 3, 1
    assert "going on with batch_size = 3" in capsys.readouterr().err
    for a, b in zip(chain(*whole), chain(*cut), strict=True):
        assert a.tokens.action_ids == b.tokens.action_ids
        assert a.tokens.logprobs == pytest.approx(b.tokens.logprobs, abs=2e-5)
