"""A language model of a few minutes goes through `gradus run` in bfloat16: what base, SFT and GRPO get.

    python benchmarks/pretrained_like.py --out runs/pretrained

Nothing is downloaded. The text is what a Python installation carries (its manual, docstrings and source) and problems in words; the
tokenizer is a byte-level BPE of 32,000 words with single digits; the model is a Qwen2 of 13 million parameters, stored in bfloat16
with a chat template. Then two runs use the recipes' settings for language models: rows like GSM8K's, in other words than the
model has read, and Rhythm at a small budget. The last line is JSON.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from gradus.core import child_rng
from gradus.core.files import write_lines
from gradus.runs.job import resolve
from gradus.runs.recipe.load import load_recipe
from gradus.runs.stages.runner import run_stages

CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
NAMES = ["Ann", "Ben", "Cora", "Dan", "Eva", "Finn", "Gina", "Hugo", "Ida", "Jon"]
THINGS = ["apples", "books", "cards", "coins", "eggs", "marbles", "pens", "shells", "stamps", "tickets"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
TEXT_STEPS, BATCH, LENGTH = 260, 16, 256


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, default=Path("runs/pretrained"))
    arguments.add_argument("--steps", type=int, default=TEXT_STEPS, help="steps of 4,096 tokens before the runs")
    arguments.add_argument("--rows", type=int, default=6000)
    arguments.add_argument("--only", choices=("rows", "rhythm"), help="one of the two runs")
    arguments.add_argument("--threads", type=int, default=1)
    given = arguments.parse_args()
    torch.set_num_threads(given.threads)
    folder = given.out / "model"
    if not (folder / "config.json").exists():
        make_model(folder, steps=given.steps)
    write_lines(given.out / "rows.jsonl", (json.dumps(row) + "\n" for row in rows(given.rows)))
    runs: dict[str, Any] = {}
    if given.only != "rhythm":
        runs["rows"] = trained(f"gsm8k:{given.out / 'rows.jsonl'}", folder, given.out / "gsm8k", ROWS)
    if given.only != "rows":
        runs["rhythm"] = trained("rhythm", folder, given.out / "rhythm", RHYTHM)
    print(json.dumps({"name": "pretrained_like", **runs}))


# -- text ----------------------------------------------------------------------------------------------------------


def library_texts() -> Iterator[str]:
    """Docstrings of the standard library."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                yield text


def story(rng: Random) -> tuple[str, str, str, int]:
    """What happened, what is asked, how one works it out, and the answer: one step that is within reach after minutes of text."""
    (one, two), (thing, other, third) = rng.sample(NAMES, 2), rng.sample(THINGS, 3)
    first, second, last = rng.sample(range(2, 20), 3)
    kind = rng.choice(("more", "fewer", "of", "days", "sum"))
    if kind == "of":
        told = f"{one} has {first} {thing}, {second} {other} and {last} {third}."
        asked, total = rng.choice(((thing, first), (other, second), (third, last)))
        return told, f"How many {asked} does {one} have?", f"{one} has {total} {asked}", total
    if kind == "days":
        days = DAYS[: rng.randint(2, 6)]
        told = f"{one} buys {thing} on {', '.join(days[:-1])} and {days[-1]}."
        work = ", ".join(f"{day} {number}" for number, day in enumerate(days, 1))
        return told, f"On how many days does {one} buy {thing}?", work, len(days)
    if kind == "sum":
        first, second = rng.randint(1, 8), rng.randint(1, 2)
        told = f"{one} has {first} {thing}. {one} gets {second} {thing}."
        return told, "How many are there now?", f"{first} + {second} = {first + second}", first + second
    total, rest = (max(first, second), min(first, second))[:: 1 if kind == "more" else -1]
    told = f"{one} has {first} {thing}. {two} has {second} {thing}."
    return told, f"How many has the one who has {kind}?", f"{total} is {kind} than {rest}", total


def problem_text(rng: Random) -> str:
    told, _, work, total = story(rng)
    return f"{told} {work}. That makes {total}."


def rows(count: int) -> Iterator[dict[str, str]]:
    """Rows of GSM8K's form. Their question and their way of answering are in no text that the model has read.

    There are so many rows, and each asks one small thing, because a model of a few minutes cannot add: where all rows are sums,
    GRPO finds hardly a right answer to praise, and with few rows it learns those by heart.
    """
    rng = child_rng(0, "pretrained-like-rows")
    for _ in range(count):
        told, asked, work, total = story(rng)
        yield {"question": f"{told} {asked}", "answer": f"{work}\n#### {total}"}


# -- the model -----------------------------------------------------------------------------------------------------


def make_model(folder: Path, *, steps: int) -> None:
    texts = list(library_texts())
    tokenizer = make_tokenizer(texts)
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=256,
            intermediate_size=768,
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            eos_token_id=tokenizer.convert_tokens_to_ids(STOP),
            bos_token_id=None,
            pad_token_id=tokenizer.convert_tokens_to_ids(END),
        )
    )
    read_texts(model, tokenizer, texts, steps=steps)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE. Source code joins the texts here, because docstrings alone are too few for 32,000 words."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    rng = child_rng(0, "pretrained-like-tokenizer")
    code = [
        path.read_text(encoding="utf-8", errors="replace") for path in sorted(Path(ast.__file__).parent.glob("*.py"))
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=32_000,
        special_tokens=[END, START, STOP],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([*texts, *code, *(problem_text(rng) for _ in range(2000))], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=STOP, pad_token=END)
    tokenizer.chat_template = CHAT
    return tokenizer


def read_texts(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, texts: list[str], *, steps: int) -> None:
    """Plain next-token training: half docstrings, half problems, packed into rows of 256 tokens."""
    rng = child_rng(0, "pretrained-like-text")
    end = tokenizer.convert_tokens_to_ids(END)
    library = [token for text in texts for token in (*tokenizer.encode(text), end)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    begun = time.process_time()
    for step in range(steps):
        batch = [packed(library, tokenizer, rng, end) for _ in range(BATCH)]
        ids = torch.tensor(batch)
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min((step + 1) / 20, 1 - 0.9 * step / steps)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0 or step == steps - 1:
            print(
                f"text {step + 1}/{steps}: loss {loss.item():.3f}, {time.process_time() - begun:.0f} CPU s", flush=True
            )


def packed(library: list[int], tokenizer: PreTrainedTokenizerFast, rng: Random, end: int) -> list[int]:
    if rng.random() < 0.5:
        first = rng.randrange(len(library) - LENGTH)
        return library[first : first + LENGTH]
    row: list[int] = []
    while len(row) < LENGTH:
        row += [*tokenizer.encode(problem_text(rng)), end]
    return row[:LENGTH]


# -- the runs ------------------------------------------------------------------------------------------------------

ROWS = [
    "sft.dtype=bfloat16",
    "grpo.dtype=bfloat16",
    "grpo.lr=2e-4",
    "grpo.max_steps=120",
    "grpo.groups=16",
    "grpo.validation_every=30",
    "grpo.validation_tasks=64",
    "grpo.sampling.max_new_tokens=64",
    "eval.episodes=400",
    'eval.conditions=["held-out"]',
    'eval.pairs=["sft-base", "grpo-base", "grpo-sft", "grpo-greedy-sft-greedy"]',
]
RHYTHM = [
    "sft.dtype=bfloat16",
    "grpo.dtype=bfloat16",
    "audit.enabled=false",
    "teach.episodes=120",
    "sft.batch_size=4",
    "sft.max_steps=64",
    "sft.short_turns=8",
    "sft.short_turns_share=0.8",
    "sft.validation_every=32",
    "grpo.max_steps=6",
    "grpo.groups=2",
    "grpo.validation_every=6",
    "grpo.validation_tasks=8",
    "grpo.sampling.max_new_tokens=40",
    "eval.episodes=16",
    'eval.conditions=["held-out"]',
    'eval.policies=["random", "heuristic", "sft", "grpo", "bayes"]',
    'eval.pairs=["sft-base", "grpo-base", "grpo-sft"]',
    "promises=[]",
]


def trained(environment: str, model: Path, out: Path, settings: list[str]) -> dict[str, Any]:
    """One run, and its first condition's rewards with intervals."""
    recipe = load_recipe(environment, model=str(model), changes=settings)
    run = run_stages(resolve(recipe), out, redo=True)
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    condition = results["conditions"].get("held-out") or next(iter(results["conditions"].values()))
    table = {
        name: {figure: policy[figure] for figure in ("reward", "true_reward")}
        for name, policy in condition["policies"].items()
        if name.split("-")[0] in ("base", "sft", "grpo")
    }
    pairs = {
        name: {figure: pair[figure] for figure in ("reward", "true_reward")}
        for name, pair in condition["pairs"].items()
        if "base" in name or name == "grpo - sft"
    }
    return {"policies": table, "pairs": pairs}


if __name__ == "__main__":
    main()
