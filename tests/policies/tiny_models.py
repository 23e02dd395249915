"""Tiny real models of several architectures, and a driver that plays rows of different lengths with them."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from model_matrix import ARCHITECTURES

from gradus.core import Action, EpisodeStart, Observation, Request, Task, Vocabulary
from gradus.policies.local.loading import LoadedModel, context_length, load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.renderers import ChatRenderer
from gradus.policies.local.sampling import SamplingConfig, sampling_logprobs
from gradus.policies.nano.model import build_tokenizer

WORDS = tuple(f"w{i}" for i in range(40))
ENDS = {"bos_token_id": None, "eos_token_id": None}  # the generation config names them
VOCABULARY = Vocabulary(words=WORDS, pieces=tuple("abcw0123456789"))


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder with a random model of an architecture. Many ids end its answers, so that answers differ in length, and
    its pad token is its end token, as in many published models."""
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            import transformers

            name, settings = ARCHITECTURES["mistral-window" if kind == "mistral" else kind]
            tokenizer = build_tokenizer(VOCABULARY)
            tokenizer.pad_token = tokenizer.eos_token
            with torch.random.fork_rng():
                torch.manual_seed(7)
                config = getattr(transformers, name)(**settings, vocab_size=len(tokenizer), **ENDS)
                model = transformers.AutoModelForCausalLM.from_config(config)
            ends = [tokenizer.eos_token_id, *tokenizer.convert_tokens_to_ids([f"▁{w}" for w in WORDS[:12]])]
            model.generation_config = transformers.GenerationConfig(
                eos_token_id=ends, pad_token_id=tokenizer.eos_token_id
            )
            folder = tmp_path_factory.mktemp(kind)
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            made[kind] = folder
        return made[kind]

    return make


@pytest.fixture(scope="session")
def loaded(model_folder: Callable[[str], Path]) -> Callable[[str], LoadedModel]:
    """A loaded model of an architecture. Llama goes the ordinary way; for some others transformers would put the model
    family's own tokenizer in place of the folder's, so the parts are put together here."""
    kept: dict[str, LoadedModel] = {}

    def get(kind: str) -> LoadedModel:
        if kind not in kept:
            folder = model_folder(kind)
            kept[kind] = load_model(folder) if kind == "llama" else _assembled(folder)
        return kept[kind]

    return get


def _assembled(folder: Path) -> LoadedModel:
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa").eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        renderer=ChatRenderer(tokenizer, stop_ids=model.generation_config.eos_token_id),
        device=torch.device("cpu"),
        dtype=torch.float32,
        path=str(folder),
        context=context_length(model.config),
    )


def starts(count: int, *, group_size: int = 4, system: str = "w1 w2 w3 w4 w5 w6") -> list[EpisodeStart]:
    task = Task(environment="test", seed=0)
    return [
        EpisodeStart(
            task=task,
            system_prompt=system,
            key=(11, i // group_size, i % group_size),
            group=i // group_size,
            member=i % group_size,
            environment=None,  # type: ignore[arg-type]
        )
        for i in range(count)
    ]


def play(policy: LocalPolicy, rows: int, turns: int, *, seed: int = 0, restarts: bool = True) -> list[list[Action]]:
    """Rows that stop at different turns, are asked in changing order, restart at times, and read 1 to 30 words a turn."""
    rng = random.Random(seed)
    session = policy.start(starts(rows))
    actions: list[list[Action]] = [[] for _ in range(rows)]
    for turn in range(turns):
        asked = [row for row in range(rows) if turn == 0 or rng.random() < 0.85]
        rng.shuffle(asked)
        requests: list[Request] = []
        for row in asked:
            told = random.Random(row // 4 if turn == 0 else 1000 * turn + row)
            text = " ".join(told.choice(WORDS) for _ in range(told.choice([1, 4, 5, 6, 30])))
            restart = restarts and turn > 0 and told.random() < 0.2
            requests.append(Request(row=row, observation=Observation(text=text, restart=restart)))
        for row, action in zip(asked, session.act(requests), strict=True):
            actions[row].append(action)
    session.close()
    return actions


def sequences(turns: Sequence[Action]) -> list[list[Action]]:
    """One row's turns, cut where a new training sequence begins."""
    cut: list[list[Action]] = []
    for action in turns:
        if action.tokens.restart:
            cut.append([])
        cut[-1].append(action)
    return cut


def recomputed(model: Any, turns: Sequence[Action], sampling: SamplingConfig) -> torch.Tensor:
    """Log-probs of all action tokens of one sequence, from one plain forward over it, without cache or padding."""
    ids: list[int] = []
    places: list[int] = []
    legal: list[tuple[int, ...] | None] = []
    for action in turns:
        ids += action.tokens.context_ids
        places += range(len(ids), len(ids) + len(action.tokens.action_ids))
        ids += action.tokens.action_ids
        legal += action.tokens.legal or [None] * len(action.tokens.action_ids)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, [p - 1 for p in places]]
    mask = torch.ones_like(logits, dtype=torch.bool)
    for row, allowed in enumerate(legal):
        if allowed is not None:
            mask[row] = False
            mask[row, list(allowed)] = True
    chosen = torch.tensor([ids[p] for p in places])
    return sampling_logprobs(logits, sampling, mask, drawn_ids=chosen).gather(-1, chosen[:, None]).squeeze(-1)
